"""Fetch: slices of logs leave as they lie on the disk; too little data waits for more, or for its time.

A reader gets whole batches, at least one where there is any, and never a byte past what it may see.
"""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

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
_BY_ID_SINCE_VERSION = 13


class Look(NamedTuple):
    """What there is to read at one moment."""

    found: list[tuple[FetchPartition, Read | BrokerError]]
    lacking_bytes: int  # before an answer is worth sending; 0: now


def handle(request: FetchRequest, context: Context) -> FetchResponse | Awaitable[FetchResponse]:
    replica_id = request.replica_state.replica_id if context.version >= 15 else request.replica_id
    if replica_id != _CONSUMER:
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    fetch = Fetch(request, context)
    look = fetch.look()
    return fetch.wait(look.lacking_bytes) if look.lacking_bytes > 0 else fetch.answer(look)


class Fetch:
    """One fetch request, from its first look at the logs to its answer."""

    __slots__ = ("_context", "_enough", "_is_full", "_partitions", "_request", "_session")

    def __init__(self, request: FetchRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self._enough: Look | None = None  # the one that has just ended the waiting
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
            if wanted.topic or context.version < _BY_ID_SINCE_VERSION:
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

    # Looking -----------------------------------------------------------------------------------

    def look(self) -> Look:
        """Read what is there, within the limits of the request.

        Until something was read, a batch may be larger than any limit; from then on none (KIP-74).
        """
        request = self._request
        isolation = request.isolation_level
        left_bytes = min(request.max_bytes, self._context.config.fetch_max_bytes)
        lacking_bytes = request.min_bytes if request.max_wait_ms > 0 else 0
        found: list[tuple[FetchPartition, Read | BrokerError]] = []
        empty = True
        for wanted in self._wanted():
            limit = min(wanted.max_bytes, left_bytes)
            try:
                partition = self._find(wanted)
                partition.check_epoch(wanted.leader_epoch)
                read = partition.read(wanted.offset, limit, isolation, at_least_one=empty)
            except BrokerError as error:
                found.append((wanted, error))
                lacking_bytes = 0  # the answer says it
                continue
            found.append((wanted, read))
            if read.size_bytes:
                empty = False
                left_bytes -= read.size_bytes
                lacking_bytes -= read.size_bytes
            if lacking_bytes > 0 and self._is_urgent(wanted, read):
                lacking_bytes = 0
        nothing_to_wait_for = not found and not self._session  # nor anything in a session
        return Look(found, 0 if nothing_to_wait_for else lacking_bytes)

    def _is_urgent(self, wanted: FetchPartition, read: Read) -> bool:
        """There is more than fits into this answer, or something other than data to be told."""
        end = read.last_stable_offset if self._request.isolation_level else read.high_watermark
        return read.next_offset < end or (
            not self._is_full and wanted.told_log_start != read.log_start_offset
        )

    # Waiting -----------------------------------------------------------------------------------

    def wait(self, lacking_bytes: int) -> asyncio.Future[FetchResponse]:
        """The answer, once there is enough, something changed, or the time is up."""
        loop, session = self._context.services.replicas.loop, self._session
        future: asyncio.Future[FetchResponse] = loop.create_future()
        watched = [w.partition for w in self._partitions if w.partition] if session is None else []
        waiter = Waiter(
            watched,
            lacking_bytes,
            self._request.max_wait_ms / 1000,
            lambda: self._fulfil(future),
            loop,
            recount=self._look_again,
            wary=self._request.isolation_level != 0,
        )
        if session is not None:
            session.parked = waiter
        future.add_done_callback(lambda _: self._waited(waiter))
        return future

    def _look_again(self) -> int:
        look = self.look()
        self._enough = look if look.lacking_bytes <= 0 else None
        return look.lacking_bytes

    def _waited(self, waiter: Waiter) -> None:
        """Answered, or nobody waits any more."""
        waiter.cancel()
        if self._session is not None and self._session.parked is waiter:
            self._session.parked = None

    def _fulfil(self, future: "asyncio.Future[FetchResponse]") -> None:
        if future.done():
            return
        try:
            answer = self.answer(self._enough or self.look())
        except Exception as error:  # noqa: BLE001 - it reaches the connection through the future
            future.set_exception(error)
            return
        if isinstance(answer, FetchResponse):
            future.set_result(answer)
        else:
            self._context.services.spawn(_relay(answer, future), "fetch")

    # Answering ---------------------------------------------------------------------------------

    def answer(self, look: Look) -> FetchResponse | Awaitable[FetchResponse]:
        response = FetchResponse()
        slices: list[FileSlice] = []
        for wanted, outcome in look.found:
            if isinstance(outcome, BrokerError):
                data = _refused(wanted, outcome)
            else:
                data = self._read_data(wanted, outcome)
                slices += outcome.slices
            if self._is_full or self._is_worth_telling(wanted, data, outcome):
                _add(response, wanted, data)
                wanted.told_high_watermark = data.high_watermark
                wanted.told_log_start = data.log_start_offset
            if self._session is not None:
                self._note_answer(wanted, outcome)
        if self._session is not None:
            response.session_id = self._session.id
        cold = [piece for piece in slices if not is_resident(piece)]
        return self._warmed(response, cold) if cold else response

    def _read_data(self, wanted: FetchPartition, read: Read) -> PartitionData:
        assert wanted.partition is not None
        metrics = wanted.partition.topic.metrics
        metrics.fetch_requests.value += 1
        metrics.bytes_out.value += read.size_bytes
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=_aborted(read),
            records=list(read.slices) or b"",
        )

    def _note_answer(self, wanted: FetchPartition, outcome: Read | BrokerError) -> None:
        assert self._session is not None
        if isinstance(outcome, BrokerError):  # it is told again until it is gone
            self._session.answered(wanted, got_data=False, has_more=True)
            return
        committed_only = self._request.isolation_level
        end = outcome.last_stable_offset if committed_only else outcome.high_watermark
        self._session.answered(
            wanted, got_data=outcome.size_bytes > 0, has_more=wanted.offset < end
        )

    def _is_worth_telling(
        self, wanted: FetchPartition, data: PartitionData, outcome: Read | BrokerError
    ) -> bool:
        return (
            isinstance(outcome, BrokerError)
            or outcome.size_bytes > 0
            or data.high_watermark != wanted.told_high_watermark
            or data.log_start_offset != wanted.told_log_start
        )

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
