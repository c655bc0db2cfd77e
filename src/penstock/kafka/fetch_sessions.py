"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session is found by id and epoch. A wrong one is refused with its own code, and the client begins
anew with a full fetch: losing a session costs one larger request, nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from penstock.broker.partition import Partition
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.fetch import FetchRequest

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = (1 << 31) - 1
_EVICTABLE_AFTER_MS: Final = 120_000  # idle for this long, a session may give way to a new one

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
        self.partition: Partition | None = None  # found at first use
        self.told_high_watermark = -1
        self.told_log_start = -1

    @property
    def key(self) -> Key:
        return (self.topic or self.topic_id, self.index)


class FetchSession:
    """The partitions of one reader, in the order in which they are served next."""

    __slots__ = ("by_id", "epoch", "id", "partitions", "used_ms")

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_id = by_id
        self.used_ms = now_ms
        self.partitions: dict[Key, FetchPartition] = {}

    def update(self, request: FetchRequest) -> None:
        for forgotten in request.forgotten_topics_data:
            topic = forgotten.topic or forgotten.topic_id
            for index in forgotten.partitions:
                self.partitions.pop((topic, index), None)
        for wanted in wanted_partitions(request):
            known = self.partitions.get(wanted.key)
            if known is None:
                self.partitions[wanted.key] = wanted
            else:
                known.offset = wanted.offset
                known.max_bytes = wanted.max_bytes
                known.leader_epoch = wanted.leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch

    def served(self, wanted: FetchPartition) -> None:
        """It got data: next time the others come first."""
        key = wanted.key
        self.partitions[key] = self.partitions.pop(key, wanted)


class FetchSessions:
    """The sessions of all readers, at most `limit` of them."""

    def __init__(self, limit: int, new_id: Callable[[], int]) -> None:
        self._limit = limit
        self._new_id = new_id  # unguessable: it must not be possible to take over another's session
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, version: int, now_ms: int
    ) -> tuple[FetchSession | None, list[FetchPartition], bool]:
        """The session, the partitions to read, and whether the reply may leave unchanged ones out."""
        if version < 7 or request.session_epoch in (_FIRST_EPOCH, _FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            wanted = list(wanted_partitions(request))
            if version < 7 or request.session_epoch == _FINAL_EPOCH or not wanted:
                return None, wanted, False
            return self._begin(wanted, version >= 13, now_ms), wanted, False
        session = self._continue(request, version >= 13)
        session.used_ms = now_ms
        session.update(request)
        return session, list(session.partitions.values()), True

    def _begin(self, wanted: list[FetchPartition], by_id: bool, now_ms: int) -> FetchSession | None:
        if len(self._sessions) >= self._limit and not self._evict(now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == _NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, by_id, now_ms)
        for partition in wanted:
            session.partitions[partition.key] = partition
        self._sessions[session_id] = session
        return session

    def _continue(self, request: FetchRequest, by_id: bool) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise BrokerError(
                f"there is no fetch session {request.session_id}",
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            )
        if session.by_id != by_id:
            raise BrokerError(
                f"fetch session {session.id} mixes topic names and topic ids",
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
        if request.session_epoch != session.epoch:
            raise BrokerError(
                f"fetch session {session.id} is at epoch {session.epoch}, "
                f"the request at {request.session_epoch}",
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session.id)
        return session

    def _evict(self, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.used_ms < _EVICTABLE_AFTER_MS:
            return False
        del self._sessions[oldest.id]
        return True


def wanted_partitions(request: FetchRequest) -> Iterator[FetchPartition]:
    for topic in request.topics:
        for asked in topic.partitions:
            wanted = FetchPartition(topic.topic, topic.topic_id, asked.partition)
            wanted.offset = asked.fetch_offset
            wanted.max_bytes = asked.partition_max_bytes
            wanted.leader_epoch = asked.current_leader_epoch
            wanted.last_fetched_epoch = asked.last_fetched_epoch
            yield wanted
