"""Incremental fetch sessions (KIP-227): a reader names its partitions once, then only what changes.

A session watches its partitions, so that a fetch costs what has changed since the last one, not what
the reader has subscribed to. It is found by id and epoch. A wrong one is refused with its own code, and
the client begins anew with a full fetch: losing a session costs one larger request, nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.waiters import DelayedFetch, Watched, unwatch, watch
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import Steps, finish
from penstock.replication.leader import NEVER_MS
from penstock.wire.messages.fetch import FetchRequest

NO_REPLICA: Final = -1
_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = (1 << 31) - 1
_STEP_PARTITIONS: Final = 1000
_EVICTABLE_AFTER_MS: Final = 120_000  # idle for this long, a session is taken for abandoned

Key = tuple[str | bytes, int]


class FetchPartition:
    """What one reader wants of one partition, and what it was last told of it."""

    __slots__ = (
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "offset",
        "partition",
        "stirs",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, index: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.offset = 0
        self.max_bytes = 0
        self.leader_epoch = -1
        self.last_fetched_epoch = -1
        self.partition: Partition | None = None  # None: not looked for yet, or not there
        self.stirs = 0  # how often there was something new to say, or to read
        self.told_high_watermark = -1
        self.told_log_start = -1

    @property
    def key(self) -> Key:
        return (self.topic or self.topic_id, self.index)

    def forget_told(self) -> None:
        self.told_high_watermark = self.told_log_start = -1

    def ask_again(self, wanted: "FetchPartition") -> None:
        if wanted.leader_epoch != self.leader_epoch:  # it may have dropped what it was told
            self.forget_told()
        self.offset = wanted.offset
        self.max_bytes = wanted.max_bytes
        self.leader_epoch = wanted.leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.stirs += 1


class FetchSession:
    """The partitions of one reader. `active` are those with something to say, in serving order."""

    __slots__ = (
        "_by_partition",
        "_partitions",
        "active",
        "as_replica",
        "by_id",
        "epoch",
        "id",
        "is_closed",
        "parked",
        "replica_id",
        "used_ms",
    )

    def __init__(
        self, session_id: int, by_id: bool, now_ms: int, *, replica_id: int = NO_REPLICA
    ) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.as_replica = replica_id != NO_REPLICA  # a follower sees all that is written
        self.epoch = 1
        self.by_id = by_id  # its reader names topics by id
        self.used_ms = now_ms
        self.parked: DelayedFetch | None = None  # the last of its fetches that wait
        self.is_closed = False
        self.active: dict[FetchPartition, None] = {}
        self._partitions: dict[Key, FetchPartition] = {}
        self._by_partition: dict[Watched, FetchPartition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def take(self, wanted: Iterable[FetchPartition]) -> None:
        """What the reader asks for, new or from another offset."""
        for asked in wanted:
            known = self._partitions.setdefault(asked.key, asked)
            if known is not asked:
                known.ask_again(asked)
            self.active[known] = None

    def drop(self, request: FetchRequest) -> None:
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                gone = self._partitions.pop((topic.topic or topic.topic_id, index), None)
                if gone is not None:
                    self.active.pop(gone, None)
                    self.found(gone, None)

    def found(self, wanted: FetchPartition, partition: Partition | None) -> None:
        """From now on `wanted` is read from there, which may be another topic of the same name."""
        if wanted.partition is not None:
            self._by_partition.pop(wanted.partition, None)
            unwatch(wanted.partition, self)
        wanted.partition = partition
        wanted.forget_told()
        if partition is not None and not self.is_closed:
            self._by_partition[partition] = wanted
            watch(partition, self, as_replica=self.as_replica)

    def followed_ms(self, partition: Partition) -> int:
        """When it last asked, if it asks for that partition as of its present leader epoch."""
        wanted = self._by_partition.get(partition)
        is_current = wanted is not None and wanted.leader_epoch == partition.leader_epoch
        return self.used_ms if is_current else NEVER_MS

    def answered(self, wanted: FetchPartition, *, got_data: bool, has_more: bool) -> None:
        """Who got data comes last next time; who has nothing to say is not asked again."""
        if got_data:
            self.active.pop(wanted, None)
            self.active[wanted] = None
        elif not has_more:
            self.active.pop(wanted, None)

    def grew(self, partition: Watched, size_bytes: int) -> None:
        self._stirred(self._by_partition[partition])
        if self.parked is not None:
            self.parked.bytes_arrived(size_bytes)

    def _stirred(self, wanted: FetchPartition) -> None:
        wanted.stirs += 1
        self.active[wanted] = None

    def try_complete(self) -> None:
        if self.parked is not None:
            self.parked.try_complete()

    def changed(self, partition: Watched) -> None:
        self._stirred(self._by_partition[partition])
        if self.parked is not None:
            self.parked.fire()

    def close(self) -> None:
        """A fetch that still waits is answered: nobody would tell it any more that there is data."""
        self.is_closed = True
        for partition in self._by_partition:
            unwatch(partition, self)
        self._by_partition.clear()
        if self.parked is not None:
            self.parked.fire()


class Wanted(NamedTuple):
    """A fetch request, resolved."""

    session: FetchSession | None
    partitions: list[FetchPartition]  # of a full fetch; an incremental one asks the session
    is_full: bool


class FetchSessions:
    """The sessions of all readers, at most `limit` of them."""

    def __init__(self, limit: int, new_id: Callable[[], int]) -> None:
        self._limit = limit
        self._new_id = new_id  # unguessable: it must not be possible to take over another's session
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Sessions whose fetch waits for data."""
        return sum(session.parked is not None for session in self._sessions.values())

    def resolve(
        self,
        request: FetchRequest,
        version: int,
        now_ms: int,
        wanted: list[FetchPartition] | None = None,
    ) -> Wanted:
        """Raises BrokerError when the request is not of a session's next step.

        `wanted`: what the request names, where the caller has it, and will have the session take it.
        """
        if wanted is None:
            takes, wanted = True, wanted_partitions(request)
        else:
            takes = False
        if version < 7 or request.session_epoch in (_FIRST_EPOCH, _FINAL_EPOCH):
            self._end(request.session_id)
            if version < 7 or request.session_epoch == _FINAL_EPOCH or not wanted:
                return Wanted(None, wanted, True)
            replica_id = replica_of(request, version)
            session_begun = self._begin(version >= 13, now_ms, replica_id=replica_id)
            if takes and session_begun is not None:
                session_begun.take(wanted)
            return Wanted(session_begun, wanted, True)
        session = self._continue(request, version >= 13)
        if session.parked is not None:  # who asks again no longer waits
            session.parked.fire()
        session.used_ms = now_ms
        session.drop(request)
        if takes:
            session.take(wanted)
        return Wanted(session, [], False)

    def _begin(self, by_id: bool, now_ms: int, *, replica_id: int) -> FetchSession | None:
        self._evict(now_ms)
        if len(self._sessions) >= self._limit and replica_id == NO_REPLICA:
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == _NO_SESSION:
            session_id = self._new_id()
        session = self._sessions[session_id] = FetchSession(
            session_id, by_id, now_ms, replica_id=replica_id
        )
        return session

    def _continue(self, request: FetchRequest, by_id: bool) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise BrokerError(
                f"there is no fetch session {request.session_id}",
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            )
        if request.session_epoch != session.epoch:
            raise BrokerError(
                f"fetch session {session.id} is at epoch {session.epoch}, "
                f"the request at {request.session_epoch}",
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )
        if session.by_id != by_id:
            raise BrokerError(
                f"fetch session {session.id} mixes topic names and topic ids",
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session.id)
        return session

    def _evict(self, now_ms: int) -> None:
        """End the sessions whose readers seem to be gone; one that is not begins anew."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < _EVICTABLE_AFTER_MS:
                return
            self._end(oldest.id)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()


def is_without_session(request: FetchRequest) -> bool:
    """Neither part of one nor the end of one."""
    return request.session_epoch == _FINAL_EPOCH and request.session_id == _NO_SESSION


def replica_of(request: FetchRequest, version: int) -> int:
    """The broker that fetches; NO_REPLICA: a consumer does."""
    return request.replica_state.replica_id if version >= 15 else request.replica_id


def wanted_partitions(request: FetchRequest) -> list[FetchPartition]:
    """Each partition once: of one that is named twice, the last word counts."""
    return finish(wanted_in_steps(request))


def wanted_in_steps(request: FetchRequest) -> Steps[list[FetchPartition]]:
    found: dict[Key, FetchPartition] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            wanted = FetchPartition(topic.topic, topic.topic_id, asked.partition)
            wanted.offset = asked.fetch_offset
            wanted.max_bytes = asked.partition_max_bytes
            wanted.leader_epoch = asked.current_leader_epoch
            wanted.last_fetched_epoch = asked.last_fetched_epoch
            found[wanted.key] = wanted
            if len(found) % _STEP_PARTITIONS == 0:
                yield
    if len(found) < _STEP_PARTITIONS:
        return list(found.values())
    some: list[FetchPartition] = []
    while found:  # to free it at once would take long
        some.append(found.popitem()[1])
        if len(some) % _STEP_PARTITIONS == 0:
            yield
    some.reverse()
    return some
