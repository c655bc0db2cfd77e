"""Fetch: slices of logs leave as they lie on the disk; too little data waits for more, or for its time.

A reader gets whole batches, at least one where there is any, and never a byte past what it may see.
"""

import asyncio
from collections.abc import Awaitable

from penstock.broker.partition import Partition, Read
from penstock.broker.waiters import Waiter
from penstock.kafka.context import Context
from penstock.kafka.fetch_sessions import FetchPartition
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.storage.files import FileSlice, is_resident, warm
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_CONSUMER = -1


def handle(request: FetchRequest, context: Context) -> FetchResponse | Awaitable[FetchResponse]:
    replica_id = request.replica_state.replica_id if context.version >= 15 else request.replica_id
    if replica_id != _CONSUMER:
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    fetch = Fetch(request, context)
    lacking_bytes = fetch.lacking_bytes()
    return fetch.wait(lacking_bytes) if lacking_bytes > 0 else fetch.answer()


class Fetch:
    """One fetch request, from its first look at the logs to its answer."""

    __slots__ = ("_context", "_is_full", "_partitions", "_request", "_session")

    def __init__(self, request: FetchRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self._session, self._partitions, self._is_full = context.services.sessions.resolve(
            request, context.version, context.clock.monotonic_ms()
        )

    def _wanted(self) -> list[FetchPartition]:
        """All that a full fetch names; of a session, what has something to say."""
        if self._session is None or self._is_full:
            return self._partitions
        return list(self._session.active)

    def _find(self, wanted: FetchPartition) -> Partition:
        """Its partition. Raises BrokerError when the reader may not see it, or it is not there."""
        partition = wanted.partition
        replicas, context = self._context.services.replicas, self._context
        if partition is None or partition.failure is not None:
            self._found(wanted, None)
            if wanted.topic:
                context.authorize(Operation.READ, ResourceType.TOPIC, wanted.topic)
                topic = replicas.topic(wanted.topic)
            else:
                topic = replicas.topic_by_id(wanted.topic_id)
            partition = replicas.partition(topic, wanted.index)
            self._found(wanted, partition)
        context.authorize(Operation.READ, ResourceType.TOPIC, partition.topic.name)
        return partition

    def _found(self, wanted: FetchPartition, partition: Partition | None) -> None:
        if self._session is not None:
            self._session.found(wanted, partition)
        else:
            wanted.partition = partition

    # Waiting -----------------------------------------------------------------------------------

    def lacking_bytes(self) -> int:
        """How much must arrive before an answer is worth sending; 0: answer now."""
        request = self._request
        if request.max_wait_ms <= 0 or not (self._partitions or self._session):
            return 0
        lacking_bytes = request.min_bytes
        for wanted in self._wanted():
            try:
                lacking_bytes -= self._available_bytes(wanted, lacking_bytes)
            except BrokerError:
                return 0  # the answer says it
            if lacking_bytes <= 0:
                return 0
        return lacking_bytes

    def _available_bytes(self, wanted: FetchPartition, enough_bytes: int) -> int:
        partition = self._find(wanted)
        partition.check_epoch(wanted.leader_epoch)
        isolation = self._request.isolation_level
        if self._has_news(wanted, partition):
            return enough_bytes
        if wanted.offset == partition.visible_end(isolation):
            return 0
        if enough_bytes <= 1 and wanted.offset < partition.visible_end(isolation):
            return 1
        return partition.read(wanted.offset, wanted.max_bytes, isolation).size_bytes

    def _has_news(self, wanted: FetchPartition, partition: Partition) -> bool:
        """In a session: something other than data that the reader was not told yet."""
        return not self._is_full and wanted.told_log_start != partition.log.start_offset

    def wait(self, lacking_bytes: int) -> asyncio.Future[FetchResponse]:
        """The answer, once there is enough, something changed, or the time is up."""
        loop, session = self._context.services.replicas.loop, self._session
        future: asyncio.Future[FetchResponse] = loop.create_future()
        watched = [] if session else [w.partition for w in self._partitions if w.partition]
        timeout_s = self._request.max_wait_ms / 1000
        waiter = Waiter(watched, lacking_bytes, timeout_s, lambda: self._fulfil(future), loop)
        if session is not None:
            session.parked = waiter
        future.add_done_callback(lambda _: waiter.cancel())
        return future

    def _fulfil(self, future: "asyncio.Future[FetchResponse]") -> None:
        if self._session is not None:
            self._session.parked = None
        if future.done():
            return
        try:
            answer = self.answer()
        except Exception as error:  # noqa: BLE001 - it reaches the connection through the future
            future.set_exception(error)
            return
        if isinstance(answer, FetchResponse):
            future.set_result(answer)
        else:
            self._context.services.spawn(_relay(answer, future), "fetch")

    # Answering ---------------------------------------------------------------------------------

    def answer(self) -> FetchResponse | Awaitable[FetchResponse]:
        response = FetchResponse()
        left_bytes = min(self._request.max_bytes, self._context.config.fetch_max_bytes)
        slices: list[FileSlice] = []
        for wanted in self._wanted():
            data, read = self._read(wanted, left_bytes)
            if read is not None and read.size_bytes:
                left_bytes -= read.size_bytes
                slices += read.slices
            if self._is_full or self._is_worth_telling(wanted, data, read):
                _add(response, wanted, data)
                wanted.told_high_watermark = data.high_watermark
                wanted.told_log_start = data.log_start_offset
            if self._session is not None:
                self._note_answer(wanted, read)
        if self._session is not None:
            response.session_id = self._session.id
        cold = [piece for piece in slices if not is_resident(piece)]
        return self._warmed(response, cold) if cold else response

    def _note_answer(self, wanted: FetchPartition, read: Read | None) -> None:
        assert self._session is not None
        if read is None:  # an error is told again until it is gone
            self._session.answered(wanted, got_data=False, has_more=True)
            return
        committed_only = self._request.isolation_level
        end = read.last_stable_offset if committed_only else read.high_watermark
        self._session.answered(wanted, got_data=read.size_bytes > 0, has_more=wanted.offset < end)

    def _is_worth_telling(
        self, wanted: FetchPartition, data: PartitionData, read: Read | None
    ) -> bool:
        return (
            read is None
            or read.size_bytes > 0
            or data.high_watermark != wanted.told_high_watermark
            or data.log_start_offset != wanted.told_log_start
        )

    def _read(self, wanted: FetchPartition, left_bytes: int) -> tuple[PartitionData, Read | None]:
        """What the answer says of one partition, and what was read unless it was refused."""
        try:
            partition = self._find(wanted)
            partition.check_epoch(wanted.leader_epoch)
            read = partition.read(
                wanted.offset,
                min(wanted.max_bytes, left_bytes),
                self._request.isolation_level,
                at_least_one=left_bytes > 0,
            )
        except BrokerError as error:
            return _refused(wanted, error), None
        metrics = partition.topic.metrics
        metrics.fetch_requests.value += 1
        metrics.bytes_out.value += read.size_bytes
        data = PartitionData(
            partition_index=wanted.index,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=_aborted(read),
            records=list(read.slices) or b"",
        )
        return data, read

    async def _warmed(self, response: FetchResponse, cold: list[FileSlice]) -> FetchResponse:
        """Bring cold data into the page cache from a thread: sending it would stop the loop."""
        await self._context.services.replicas.run_in_thread(lambda: _warm_all(cold))
        return response


def _add(response: FetchResponse, wanted: FetchPartition, data: PartitionData) -> None:
    """Behind the others of its topic."""
    topics = response.responses
    if not topics or topics[-1].topic != wanted.topic or topics[-1].topic_id != wanted.topic_id:
        topics.append(
            FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=[])
        )
    topics[-1].partitions.append(data)


def _aborted(read: Read) -> list[AbortedTransaction] | None:
    if read.aborted is None:
        return None
    return [
        AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
        for txn in read.aborted
    ]


def _refused(wanted: FetchPartition, error: BrokerError) -> PartitionData:
    return PartitionData(
        partition_index=wanted.index,
        error_code=error.code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )


async def _relay(answer: Awaitable[FetchResponse], future: "asyncio.Future[FetchResponse]") -> None:
    try:
        response = await answer
    except Exception as error:  # noqa: BLE001 - it reaches the connection through the future
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(response)


def _warm_all(cold: list[FileSlice]) -> None:
    for piece in cold:
        warm(piece)
