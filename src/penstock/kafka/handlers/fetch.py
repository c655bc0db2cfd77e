"""Fetch: slices of logs leave as they lie on the disk; too little data waits for more, or for its time.

A reader gets whole batches, at least one where there is any, and never a byte past what it may see.
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.broker.partition import Partition
from penstock.broker.waiters import Waiter
from penstock.kafka.context import Context
from penstock.kafka.fetch_sessions import FetchPartition, FetchSession
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
    fetch = Fetch(request, context)
    lacking_bytes = fetch.lacking_bytes()
    return fetch.wait(lacking_bytes) if lacking_bytes > 0 else fetch.answer()


class Fetch:
    """One fetch request, from its first look at the logs to its answer."""

    __slots__ = ("_context", "_incremental", "_request", "_session", "_wanted")

    def __init__(self, request: FetchRequest, context: Context) -> None:
        replica_id = (
            request.replica_state.replica_id if context.version >= 15 else request.replica_id
        )
        if replica_id != _CONSUMER:
            context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        self._request = request
        self._context = context
        self._session: FetchSession | None
        self._session, self._wanted, self._incremental = context.services.sessions.resolve(
            request, context.version, context.clock.monotonic_ms()
        )
        for wanted in self._wanted:
            if wanted.partition is None or wanted.partition.failure is not None:
                wanted.partition = self._find(wanted)

    def _find(self, wanted: FetchPartition) -> Partition | None:
        """None where it cannot be read; the answer then says why."""
        try:
            return self._partition(wanted)
        except BrokerError:
            return None

    def _partition(self, wanted: FetchPartition) -> Partition:
        replicas = self._context.services.replicas
        if wanted.topic:
            self._context.authorize(Operation.READ, ResourceType.TOPIC, wanted.topic)
            topic = replicas.topic(wanted.topic)
        else:
            topic = replicas.topic_by_id(wanted.topic_id)
            self._context.authorize(Operation.READ, ResourceType.TOPIC, topic.name)
        return replicas.partition(topic, wanted.index)

    # Waiting -----------------------------------------------------------------------------------

    def lacking_bytes(self) -> int:
        """How much must arrive before an answer is worth sending; 0: answer now."""
        request = self._request
        if request.max_wait_ms <= 0 or not self._wanted:
            return 0
        lacking_bytes = request.min_bytes
        for wanted in self._wanted:
            partition = wanted.partition
            if lacking_bytes <= 0 or partition is None or self._is_news(wanted, partition):
                return 0
            visible_end = partition.visible_end(request.isolation_level)
            if wanted.offset < visible_end:
                if lacking_bytes > 1:
                    lacking_bytes -= self._available_bytes(wanted, partition)
                else:
                    return 0
            elif wanted.offset > partition.high_watermark:
                return 0
        return lacking_bytes

    def _is_news(self, wanted: FetchPartition, partition: Partition) -> bool:
        return (
            not partition.is_open
            or partition.failure is not None
            or wanted.leader_epoch not in (-1, partition.leader_epoch)
            or (self._incremental and wanted.told_log_start != partition.log.start_offset)
        )

    def _available_bytes(self, wanted: FetchPartition, partition: Partition) -> int:
        try:
            read = partition.read(wanted.offset, wanted.max_bytes, self._request.isolation_level)
        except BrokerError:
            return self._request.min_bytes  # the answer will tell
        for piece in read.slices:
            piece.release()
        return read.size_bytes

    def wait(self, lacking_bytes: int) -> asyncio.Future[FetchResponse]:
        """The answer, once there is enough, something changed, or the time is up."""
        loop = self._context.services.replicas.loop
        future: asyncio.Future[FetchResponse] = loop.create_future()

        def fire() -> None:
            if not future.done():
                answer = _outcome(self.answer)
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                elif isinstance(answer, FetchResponse):
                    future.set_result(answer)
                else:
                    self._context.services.spawn(_relay(answer, future), "fetch")

        waiter = Waiter(
            [wanted.partition for wanted in self._wanted if wanted.partition is not None],
            lacking_bytes,
            self._request.max_wait_ms / 1000,
            fire,
            loop,
        )
        future.add_done_callback(lambda _: waiter.cancel())
        return future

    # Answering ---------------------------------------------------------------------------------

    def answer(self) -> FetchResponse | Awaitable[FetchResponse]:
        topics: list[FetchableTopicResponse] = []
        topic: FetchableTopicResponse | None = None
        left_bytes = min(self._request.max_bytes, self._context.config.fetch_max_bytes)
        served: list[FetchPartition] = []
        slices: list[FileSlice] = []
        for wanted in self._wanted:
            data = self._read(wanted, left_bytes, slices)
            if data.records:
                left_bytes -= sum(len(piece) for piece in data.records)
                served.append(wanted)
            elif self._incremental and not self._has_changed(wanted, data):
                continue
            wanted.told_high_watermark = data.high_watermark
            wanted.told_log_start = data.log_start_offset
            if topic is None or topic.topic != wanted.topic or topic.topic_id != wanted.topic_id:
                topic = FetchableTopicResponse(
                    topic=wanted.topic, topic_id=wanted.topic_id, partitions=[]
                )
                topics.append(topic)
            topic.partitions.append(data)
        response = FetchResponse(responses=topics)
        if self._session is not None:
            response.session_id = self._session.id
            for wanted in served:
                self._session.served(wanted)
        cold = [piece for piece in slices if not is_resident(piece)]
        return self._warmed(response, cold) if cold else response

    async def _warmed(self, response: FetchResponse, cold: list[FileSlice]) -> FetchResponse:
        """Bring cold data into the page cache from a thread: sending it would stop the loop."""
        await self._context.services.replicas.run_in_thread(lambda: _warm_all(cold))
        return response

    def _has_changed(self, wanted: FetchPartition, data: PartitionData) -> bool:
        return (
            data.error_code != 0
            or data.high_watermark != wanted.told_high_watermark
            or data.log_start_offset != wanted.told_log_start
        )

    def _read(
        self, wanted: FetchPartition, left_bytes: int, slices: list[FileSlice]
    ) -> PartitionData:
        try:
            partition = wanted.partition
            if partition is None or partition.failure is not None:
                partition = self._partition(wanted)
            partition.check_epoch(wanted.leader_epoch)
            max_bytes = min(wanted.max_bytes, left_bytes) if left_bytes > 0 else 0
            isolation = self._request.isolation_level
            read = partition.read(wanted.offset, max_bytes, isolation, at_least_one=left_bytes > 0)
        except BrokerError as error:
            return _refused(wanted, error)
        metrics = partition.topic.metrics
        metrics.fetch_requests.value += 1
        metrics.bytes_out.value += read.size_bytes
        slices += read.slices
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=read.aborted
            and [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in read.aborted
            ],
            records=list(read.slices) or b"",
        )


def _refused(wanted: FetchPartition, error: BrokerError) -> PartitionData:
    return PartitionData(
        partition_index=wanted.index,
        error_code=error.code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )


def _outcome(
    compute: Callable[[], FetchResponse | Awaitable[FetchResponse]],
) -> FetchResponse | Awaitable[FetchResponse] | Exception:
    try:
        return compute()
    except Exception as error:  # noqa: BLE001 - it reaches the connection through the future
        return error


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
