"""Fetch: slices of logs leave as they lie on the disk; too little data waits for more, or for its time.

A reader gets whole batches, at least one where there is any, and never a byte past what it may see.
"""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

from penstock.broker.partitions.partition import Partition, Read
from penstock.broker.partitions.turns import Turns
from penstock.broker.partitions.waiters import DelayedFetch
from penstock.kafka import leader_hints
from penstock.kafka.answers import COPIED_SLICE_BYTES
from penstock.kafka.closest_replica import Redirect, closest_replica
from penstock.kafka.context import Context
from penstock.kafka.fetch_sessions import (
    NO_REPLICA,
    FetchPartition,
    FetchSession,
    Wanted,
    replica_of,
    wanted_in_steps,
)
from penstock.kafka.known_fetch import KnownFetch
from penstock.kafka.promise import Promise
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import Steps
from penstock.storage.epochs import EpochEnd
from penstock.storage.files import FileSlice, is_resident, warm
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_BY_ID_SINCE_VERSION = 13
_HINTS_SINCE_VERSION = 16  # KIP-951
_FROM_FOLLOWERS_SINCE_VERSION = 11  # KIP-392
_EPOCHS_SINCE_VERSION = 15  # of the brokers that fetch (KIP-903)

_FILES_OF_AN_ANSWER = 64  # slices too large to be copied: each holds a descriptor until it is sent
_FILES_OF_A_REPLICAS_ANSWER = 512
_SCARCE_BYTES = 64 << 10  # of an answer while those not read yet hold too many descriptors
_MANY = 1000  # partitions: more are looked at in steps
_STEP = 200  # partitions looked at, or answered, at once

Outcome = Read | EpochEnd | Redirect | BrokerError


class Look(NamedTuple):
    """What there is to read at one moment."""

    found: list[tuple[FetchPartition, Outcome]]
    lacking_bytes: int  # before an answer is worth sending; 0 or less: now
    left_bytes: int  # that still fit into the answer
    left_files: int  # that it may still hold open
    is_empty: bool  # nothing was read yet


def handle(request: FetchRequest, context: Context) -> FetchResponse | Awaitable[FetchResponse]:
    replica = None
    replica_id = replica_of(request, context.version)
    if replica_id != NO_REPLICA:
        replica = _check_replica(replica_id, request, context)
    topics = request.topics
    if topics and (len(topics) > 1 or len(topics[0].partitions) > _MANY) and _names_many(request):
        context.holds = True
        return _fetch_many(request, context, replica)
    now_ms = context.clock.monotonic_ms()
    wanted = context.services.sessions.resolve(request, context.version, now_ms)
    return _begin(Fetch(request, context, replica, wanted), context)


def _names_many(request: FetchRequest) -> bool:
    return sum(len(topic.partitions) for topic in request.topics) > _MANY


async def _fetch_many(
    request: FetchRequest, context: Context, replica: tuple[int, int] | None
) -> FetchResponse:
    """A request that names many partitions, in steps."""
    turns = context.replicas.turns
    with turns.without_full_collection():
        named = await turns.run(wanted_in_steps(request))
    now_ms = context.clock.monotonic_ms()
    wanted = context.services.sessions.resolve(request, context.version, now_ms, named)
    if wanted.session is not None:
        await turns.run(_take_in_steps(wanted.session, named))
    return await Fetch(request, context, replica, wanted).run_in_steps(may_wait=True)


def _take_in_steps(session: FetchSession, named: list[FetchPartition]) -> Steps[None]:
    for first in range(0, len(named), _STEP):
        session.take(named[first : first + _STEP])
        yield


def _begin(fetch: "Fetch", context: Context) -> FetchResponse | Awaitable[FetchResponse]:
    wanted = fetch.wanted()
    if len(wanted) > _MANY:
        context.holds = True
        return fetch.run_in_steps(may_wait=True)
    look = fetch.look(wanted)
    waits = look.lacking_bytes > 0
    context.holds = not (waits and fetch.may_be_overtaken)
    return fetch.wait(look.lacking_bytes) if waits else fetch.answer(look)


class FetchAgain(KnownFetch):
    """Handles the known request: with the offsets that it has now."""

    __slots__ = ()

    def handle(
        self, request: FetchRequest, context: Context
    ) -> FetchResponse | Awaitable[FetchResponse]:
        return _begin(Fetch(request, context, None, Wanted(None, self.wanted, True)), context)


def _check_replica(replica_id: int, request: FetchRequest, context: Context) -> tuple[int, int]:
    """Who follows must be the broker that the cluster knows, in its present session (R4)."""
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    epoch = request.replica_state.replica_epoch if context.version >= _EPOCHS_SINCE_VERSION else -1
    _check_session(replica_id, epoch, context)
    return replica_id, epoch


def _check_session(replica_id: int, epoch: int, context: Context) -> None:
    """What is known of it must be of this session: until it is admitted, it may still count as in sync from the last."""
    known = context.cluster.image.brokers.get(replica_id)
    if known is None or known.epoch != epoch or known.fenced:
        raise BrokerError(
            f"broker {replica_id} fetches in session {epoch}, which is not one that it takes part in",
            ErrorCode.STALE_BROKER_EPOCH,
        )


class Fetch:
    """One fetch request, from its first look at the logs to its answer."""

    __slots__ = (
        "_context",
        "_empty",
        "_enough",
        "_held",
        "_is_any_refused",
        "_is_full",
        "_partitions",
        "_replica",
        "_request",
        "_session",
        "_stirs",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: Context,
        replica: tuple[int, int] | None,
        wanted: Wanted,
    ) -> None:
        """`replica`: the id and epoch of a broker that follows; None: a consumer reads."""
        self._request = request
        self._context = context
        self._replica = replica
        self._held: set[FetchPartition] = set()  # throttled: more of them must wait
        self._enough: Look | None = None  # the one that has just ended the waiting
        self._empty: dict[FetchPartition, Read] = {}  # where there was nothing to read yet
        self._session, self._partitions, self._is_full = wanted
        self._is_any_refused = False
        self._stirs: dict[
            FetchPartition, int
        ] = {}  # as of the look, if others run before the answer

    @property
    def may_be_overtaken(self) -> bool:
        """A follower that has something new to ask for does not wait for what it asked before: see `FetchSessions.resolve`."""
        return self._replica is not None and self._session is not None

    def wanted(self) -> list[FetchPartition]:
        """All that a full fetch names; of a session, what has something to say."""
        if self._session is None or self._is_full:
            return self._partitions
        return list(self._session.active)

    @property
    def is_large(self) -> bool:
        """Whether it looks at many partitions, which takes long."""
        if self._session is None or self._is_full:
            return len(self._partitions) > _MANY
        return len(self._session.active) > _MANY

    def _find(self, wanted: FetchPartition) -> Partition:
        """Its partition. Raises BrokerError when the reader may not see it, or it is not there."""
        partition = wanted.partition
        replicas, context = self._context.services.replicas, self._context
        if partition is None or partition.failure is not None:
            self._found(wanted, None)
            if wanted.topic or context.version < _BY_ID_SINCE_VERSION:
                if self._replica is None:
                    context.authorize(Operation.READ, ResourceType.TOPIC, wanted.topic)
                topic = replicas.topic(wanted.topic)
            else:
                topic = replicas.topic_by_id(wanted.topic_id)
            partition = replicas.hosted(topic, wanted.index)
            self._found(wanted, partition)
        if self._replica is None:
            context.authorize(Operation.READ, ResourceType.TOPIC, partition.topic.name)
            if context.version < _FROM_FOLLOWERS_SINCE_VERSION:
                partition.check_leader()
        return partition

    def _found(self, wanted: FetchPartition, partition: Partition | None) -> None:
        if self._session is not None:
            self._session.found(wanted, partition)
        else:
            wanted.partition = partition

    # Looking -----------------------------------------------------------------------------------

    def look(
        self,
        partitions: list[FetchPartition],
        before: Look | None = None,
        *,
        again: bool = False,
    ) -> Look:
        """Read what is there, within the limits of the request. `again`: only where something has been committed since.

        Until something was read, a batch may be larger than any limit; from then on none (KIP-74). `before`: what was
        found in other partitions; the result is about these too.
        The number of files is limited too: a peer that does not read its answers keeps them open.
        """
        if before is not None:
            found, lacking_bytes, left_bytes, left_files, empty = before
        else:
            request = self._request
            found, empty = [], True
            left_bytes = min(request.max_bytes, self._context.config.fetch_max_bytes)
            left_files = (
                _FILES_OF_AN_ANSWER if self._replica is None else _FILES_OF_A_REPLICAS_ANSWER
            )
            room = self._context.services.replicas.directory.files.room_in_queues
            if room > 0:
                left_files = min(left_files, room)
            else:
                left_bytes = min(left_bytes, _SCARCE_BYTES)
            lacking_bytes = request.min_bytes if request.max_wait_ms > 0 else 0
        for wanted in partitions:
            if again and (nothing := self._still_empty(wanted)) is not None:
                found.append((wanted, nothing))
                continue
            limit = min(wanted.max_bytes, left_bytes) if left_files > 0 else 0
            try:
                partition = self._find(wanted)
                partition.check_epoch(wanted.leader_epoch)
                read = self._read(partition, wanted, limit, at_least_one=empty)
            except BrokerError as error:
                # its traceback would keep this frame, and so all that was found, in a cycle
                found.append((wanted, error.with_traceback(None)))
                lacking_bytes = 0  # the answer says it
                if error.code is ErrorCode.UNKNOWN_LEADER_EPOCH:
                    self._context.cluster.look_again()
                    self._doubt(wanted)
                continue
            found.append((wanted, read))
            if not isinstance(read, Read):
                lacking_bytes = 0
                continue
            if read.size_bytes:
                empty = False
                left_bytes -= read.size_bytes
                left_files -= sum(len(piece) > COPIED_SLICE_BYTES for piece in read.slices)
                lacking_bytes -= read.size_bytes
            elif self._replica is None:
                self._empty[wanted] = read
            if lacking_bytes > 0 and self._is_urgent(wanted, read):
                lacking_bytes = 0
        if not found and not self._session:  # nothing to wait for, nor anything in a session
            lacking_bytes = 0
        return Look(found, lacking_bytes, left_bytes, left_files, empty)

    def _still_empty(self, wanted: FetchPartition) -> Read | None:
        """What the last look found, if that was nothing and no more is committed; any other change ends the waiting."""
        read, partition = self._empty.get(wanted), wanted.partition
        if read is None or partition is None or partition.high_watermark != read.high_watermark:
            return None
        return read

    def _doubt(self, wanted: FetchPartition) -> None:
        """A replica in its present session knows of a later epoch: what this leader alone takes may be lost (B6)."""
        leadership = None if wanted.partition is None else wanted.partition.leadership
        if self._replica is not None and leadership is not None:
            leadership.is_doubted = True

    def _read(
        self, partition: Partition, wanted: FetchPartition, limit: int, *, at_least_one: bool
    ) -> Read | EpochEnd | Redirect:
        if self._replica is None:
            rack = self._request.rack_id
            if rack and partition.leadership is not None:
                image = self._context.cluster.image
                elsewhere = closest_replica(partition, rack, wanted.offset, image)
                if elsewhere is not None:
                    return elsewhere
            isolation = self._request.isolation_level
            return partition.read(wanted.offset, limit, isolation, at_least_one=at_least_one)
        return self._read_for_replica(partition, wanted, limit, self._replica, at_least_one)

    def _read_for_replica(
        self,
        partition: Partition,
        wanted: FetchPartition,
        limit: int,
        replica: tuple[int, int],
        at_least_one: bool,
    ) -> Read | EpochEnd:
        """A replica that is throttled, and not in sync, gets nothing while the rate is used up.

        It may have been away since it asked, and have lost what it said that it has.
        """
        _check_session(*replica, self._context)
        throttles, topic = self._context.replicas.throttles, partition.topic
        if throttles is None or replica[0] in partition.isr:
            throttles = None
        elif not throttles.may_send(topic, wanted.index):
            self._held.add(wanted)
            limit, at_least_one = 0, False
        read = partition.read_as_replica(
            replica, wanted.offset, wanted.last_fetched_epoch, limit, at_least_one=at_least_one
        )
        if throttles is not None and isinstance(read, Read):
            throttles.sent(topic, wanted.index, read.size_bytes)
        return read

    def _is_urgent(self, wanted: FetchPartition, read: Read) -> bool:
        """There is more than fits into this answer, or something other than data to be told."""
        has_more = read.next_offset < read.end_offset and wanted not in self._held
        return has_more or (not self._is_full and wanted.told_log_start != read.log_start_offset)

    # Waiting -----------------------------------------------------------------------------------

    def wait(self, lacking_bytes: int) -> Promise[FetchResponse]:
        """The answer, once there is enough, something changed, or the time is up."""
        loop, session = self._context.services.replicas.loop, self._session
        promise: Promise[FetchResponse] = Promise()
        watched = [w.partition for w in self._partitions if w.partition] if session is None else []
        waiter = DelayedFetch(
            watched,
            lacking_bytes,
            self._request.max_wait_ms / 1000,
            lambda: self._fulfil(promise),
            loop,
            recount=self._look_again,
            recheck_always=self._request.isolation_level != 0,
            as_replica=self._replica is not None,
        )
        if session is not None:
            session.parked = waiter
        promise.add_done_callback(lambda _: self._waited(waiter))
        return promise

    def _look_again(self) -> int:
        if self.is_large:
            return 0
        look = self.look(self.wanted(), again=True)
        self._enough = look if look.lacking_bytes <= 0 else None
        return look.lacking_bytes

    def _waited(self, waiter: DelayedFetch) -> None:
        """Answered, or nobody waits any more."""
        waiter.cancel()
        if self._session is not None and self._session.parked is waiter:
            self._session.parked = None

    def _fulfil(self, promise: Promise[FetchResponse]) -> None:
        if promise.done():
            return
        if self.is_large and self._enough is None:
            steps = self.run_in_steps(may_wait=False)
            self._context.services.spawn(_relay(steps, promise), "fetch")
            return
        try:
            answer = self.answer(self._enough or self.look(self.wanted()))
        except Exception as error:  # noqa: BLE001 - it reaches the connection through the promise
            promise.set_exception(error)
            return
        if isinstance(answer, FetchResponse):
            promise.set_result(answer)
        else:
            self._context.services.spawn(_relay(answer, promise), "fetch")

    # Answering ---------------------------------------------------------------------------------

    def answer(self, look: Look) -> FetchResponse | Awaitable[FetchResponse]:
        response = FetchResponse()
        cold: list[FileSlice] = []
        self._answer_some(look.found, response, cold)
        return self._answered(response, cold)

    def _answer_some(
        self,
        found: list[tuple[FetchPartition, Outcome]],
        response: FetchResponse,
        cold: list[FileSlice],
    ) -> None:
        """Add to the response, and to the slices that must be brought into memory before it is sent."""
        for wanted, looked_up in found:
            outcome = self._as_it_is_now(wanted, looked_up)
            if outcome is None:
                continue
            if isinstance(outcome, BrokerError):
                data = self._refused(wanted, outcome)
                self._is_any_refused = True
            elif isinstance(outcome, EpochEnd):
                data = self._diverging(wanted, outcome)
            elif isinstance(outcome, Redirect):
                data = self._redirected(wanted, outcome)
            else:
                data = self._read_data(wanted, outcome)
                for piece in outcome.slices:
                    if len(piece) > COPIED_SLICE_BYTES:
                        piece.queue()
                    if not is_resident(piece):
                        cold.append(piece)
            if self._is_full or self._is_worth_telling(wanted, data, outcome):
                _add(response, wanted, data)
                wanted.told_high_watermark = data.high_watermark
                wanted.told_log_start = data.log_start_offset
            if self._session is not None:
                self._note_answer(wanted, outcome)

    def _as_it_is_now(self, wanted: FetchPartition, outcome: Outcome) -> Outcome | None:
        """Other work may run between the look and the response of a large fetch.

        None: another request of the session has forgotten the partition, or it is to be looked for again.
        """
        partition = wanted.partition
        if isinstance(outcome, BrokerError):
            return outcome
        if partition is None:
            return None
        return partition.failure or outcome

    def _answered(
        self, response: FetchResponse, cold: list[FileSlice]
    ) -> FetchResponse | Awaitable[FetchResponse]:
        if self._session is not None:
            response.session_id = self._session.id
        if self._is_any_refused:
            self._tell_places(response)
        return self._warmed(response, cold) if cold else response

    # Many partitions ---------------------------------------------------------------------------

    async def run_in_steps(self, *, may_wait: bool) -> FetchResponse:
        """The whole request, in steps. What grows meanwhile counts for the waiting."""
        turns = self._context.replicas.turns
        if may_wait and self._request.max_wait_ms > 0:
            look = await self._await_data(turns)
        else:
            look = None
        response = FetchResponse()
        cold: list[FileSlice] = []
        with turns.without_full_collection():
            if look is None:
                look = await turns.run(self._look_in_steps(None))
            await turns.run(self._answer_in_steps(look, response, cold))
        answer = self._answered(response, cold)
        return answer if isinstance(answer, FetchResponse) else await answer

    async def _await_data(self, turns: Turns) -> Look | None:
        """What is there, or None if that was too little until just now."""
        loop, session = self._context.services.replicas.loop, self._session
        grown: asyncio.Future[None] = loop.create_future()
        waiter = DelayedFetch(
            (),
            self._request.min_bytes,
            self._request.max_wait_ms / 1000,
            lambda: None if grown.done() else grown.set_result(None),
            loop,
            recheck_always=self._request.isolation_level != 0,
            as_replica=self._replica is not None,
        )
        if session is not None:
            session.parked = waiter
        try:
            with turns.without_full_collection():
                steps = self._look_in_steps(None if session is not None else waiter)
                look = await turns.run(steps)
            grown_bytes = self._request.min_bytes - waiter.lacking_bytes
            if look.lacking_bytes <= grown_bytes or grown.done():
                return look
            waiter.bytes_arrived(waiter.lacking_bytes - look.lacking_bytes + grown_bytes)
            del look
            await grown
        finally:
            if session is not None and session.parked is waiter:
                session.parked = None
            await turns.run(_unwatch_in_steps(waiter))
            waiter.cancel()
        return None

    def _look_in_steps(self, waiter: DelayedFetch | None) -> Steps[Look]:
        """`waiter`: watches the partitions from then on when they were looked at."""
        partitions = self.wanted()
        look = self.look(partitions[:0])
        for first in range(0, len(partitions), _STEP):
            some = partitions[first : first + _STEP]
            look = self.look(some, None if not first else look)
            if self._session is not None:
                self._stirs.update((wanted, wanted.stirs) for wanted in some)
            if waiter is not None:
                waiter.watch(wanted.partition for wanted in some if wanted.partition is not None)
            yield
        return look

    def _answer_in_steps(
        self, look: Look, response: FetchResponse, cold: list[FileSlice]
    ) -> Steps[None]:
        for first in range(0, len(look.found), _STEP):
            self._answer_some(look.found[first : first + _STEP], response, cold)
            yield

    def _tell_places(self, response: FetchResponse) -> None:
        leaders = {
            data.current_leader.leader_id
            for topic in response.responses
            for data in topic.partitions
            if data.error_code
        }
        response.node_endpoints = [
            NodeEndpoint(node_id=it.broker_id, host=it.host, port=it.port, rack=it.rack)
            for it in leader_hints.places_of(leaders - {-1}, self._context)
        ]

    def _read_data(self, wanted: FetchPartition, read: Read) -> PartitionData:
        assert wanted.partition is not None
        metrics = wanted.partition.topic.metrics
        if self._replica is None:
            metrics.fetch_requests.value += 1
            metrics.bytes_out.value += read.size_bytes
        else:
            metrics.replication_bytes_out.value += read.size_bytes
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=_aborted(read),
            records=list(read.slices) or b"",
        )

    def _diverging(self, wanted: FetchPartition, end: EpochEnd) -> PartitionData:
        """Where a follower's log and this one part."""
        assert wanted.partition is not None
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=wanted.partition.high_watermark,
            log_start_offset=wanted.partition.log.start_offset,
            diverging_epoch=EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset),
            aborted_transactions=None,
            records=b"",
        )

    def _redirected(self, wanted: FetchPartition, elsewhere: Redirect) -> PartitionData:
        assert wanted.partition is not None
        return PartitionData(
            partition_index=wanted.index,
            high_watermark=wanted.partition.high_watermark,
            last_stable_offset=wanted.partition.last_stable_offset,
            log_start_offset=wanted.partition.log.start_offset,
            aborted_transactions=None,
            preferred_read_replica=elsewhere.broker_id,
            records=b"",
        )

    def _refused(self, wanted: FetchPartition, error: BrokerError) -> PartitionData:
        """With who leads, where this broker knows it (KIP-951); to a follower, with where the log begins."""
        data = PartitionData(
            partition_index=wanted.index,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        partition = wanted.partition
        if error.code in leader_hints.MOVED:
            self._tell_leader(wanted, data)
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self._replica and partition:
            data.log_start_offset = partition.log.start_offset
        return data

    def _tell_leader(self, wanted: FetchPartition, data: PartitionData) -> None:
        context = self._context
        if context.version < _HINTS_SINCE_VERSION or self._replica is not None:
            return
        known = context.cluster.image.topics_by_id.get(wanted.topic_id)
        leader = leader_hints.leader_of(
            known.name if known else wanted.topic, wanted.index, context
        )
        if leader is not None:
            data.current_leader = LeaderIdAndEpoch(
                leader_id=leader.broker_id, leader_epoch=leader.epoch
            )

    def _note_answer(self, wanted: FetchPartition, outcome: Outcome) -> None:
        assert self._session is not None
        if not isinstance(outcome, Read):  # it is told again until it is gone
            self._session.answered(wanted, got_data=False, has_more=True)
            return
        has_more = wanted.offset < outcome.end_offset
        has_more |= self._stirs.get(wanted, wanted.stirs) != wanted.stirs
        if self._replica is not None:  # who has all must still hear when it is committed
            has_more |= outcome.high_watermark < outcome.end_offset
        self._session.answered(wanted, got_data=outcome.size_bytes > 0, has_more=has_more)

    def _is_worth_telling(
        self, wanted: FetchPartition, data: PartitionData, outcome: Outcome
    ) -> bool:
        return (
            not isinstance(outcome, Read)
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


def _unwatch_in_steps(waiter: DelayedFetch) -> Steps[None]:
    while waiter.unwatch_some(_STEP):
        yield


async def _relay(answer: Awaitable[FetchResponse], promise: Promise[FetchResponse]) -> None:
    try:
        response = await answer
    except Exception as error:  # noqa: BLE001 - it reaches the connection through the promise
        promise.set_exception(error)
    else:
        promise.set_result(response)


def _warm_all(cold: list[FileSlice]) -> None:
    for piece in cold:
        warm(piece)
