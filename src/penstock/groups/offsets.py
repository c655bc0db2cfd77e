"""Committed offsets. What is kept for each is the very value that is in the log: small, and ready to be read back.

An offset belongs to the topic with the id that is in its value. A topic that was deleted and created anew
under the same name has another id, so the offset is not its, also where nobody could delete it in time.

An offset that a transaction has committed but not yet ended is unstable: it is not the group's position
yet, and who insists on a stable one must wait.

Memory is ahead of what is committed in the log. Each append in flight has `Changes`, what its positions
were before it, so that readers are told what is committed and need not wait.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from penstock.groups.records import OffsetCommitKey, OffsetCommitValue, UnknownRecord, decode_value
from penstock.groups.topics import Topics
from penstock.model.ids import NO_TOPIC_ID, TopicId
from penstock.wire.primitives import encode_uvarint, read_uvarint

_VERSION: Final = Struct(">h")
_KEY_HEAD: Final = Struct(">hh")  # type, length of the group's name
_KEY_TAIL: Final = Struct(">i")
_V3_HEAD: Final = Struct(">hqih")  # version, offset, leader epoch, length of the text
_V4_HEAD: Final = Struct(">hqi")  # and the length of the text as a varint, plus one
_V4_ID: Final = b"\x01\x00\x10"  # one tagged field: number 0, of 16 bytes
_V1_HEAD: Final = Struct(">hqh")
_TIME: Final = Struct(">q")
_TWO_TIMES: Final = Struct(">qq")
_KEY_TYPE: Final = 1
_NO_KEY: Final = OffsetCommitKey()
_KNOWN_HEADS: Final = frozenset(_VERSION.pack(version) for version in OffsetCommitValue.versions)


class Committed(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1  # wall time
    expire_ms: int = -1  # asked for by the client itself (OffsetCommit v2 to v4)
    topic_id: bytes = NO_TOPIC_ID  # no version has room for both of these

    def is_of(self, known: Topics, topic: str) -> bool:
        """Whether it is an offset in the topic that has this name now."""
        return belongs(self.topic_id, known.id_of(topic))


def belongs(topic_id: bytes, current: TopicId | None) -> bool:
    """Whether an offset with that topic id is one of the topic whose id is `current` (None: there is no topic).

    An offset without an id, as earlier versions wrote it, is one of whatever topic has its name.
    """
    return current is not None and topic_id in (NO_TOPIC_ID, current)


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    name, title = group.encode(), topic.encode()
    return b"".join(
        (
            _KEY_HEAD.pack(_KEY_TYPE, len(name)),
            name,
            _VERSION.pack(len(title)),
            title,
            _KEY_TAIL.pack(partition),
        )
    )


def encode_offset(committed: Committed) -> bytes:
    offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id = committed
    text = metadata.encode()
    if expire_ms != -1:
        head = _V1_HEAD.pack(1, offset, len(text))
        return head + text + _TWO_TIMES.pack(commit_ms, expire_ms)
    if topic_id != NO_TOPIC_ID:
        head = _V4_HEAD.pack(4, offset, leader_epoch) + encode_uvarint(len(text) + 1)
        return b"".join((head, text, _TIME.pack(commit_ms), _V4_ID, topic_id))
    return _V3_HEAD.pack(3, offset, leader_epoch, len(text)) + text + _TIME.pack(commit_ms)


def decode_offset(value: bytes) -> Committed:
    if value[:2] == b"\x00\x03":
        _, offset, leader_epoch, size = _V3_HEAD.unpack_from(value)
        end = _V3_HEAD.size + size
        text = value[_V3_HEAD.size : end].decode()
        return Committed(offset, leader_epoch, text, _TIME.unpack_from(value, end)[0])
    if value[:2] == b"\x00\x04" and value[-19:-16] == _V4_ID:
        size, start = read_uvarint(memoryview(value), _V4_HEAD.size)
        end = start + size - 1
        if end + _TIME.size == len(value) - 19:  # the id is its only tagged field
            _, offset, leader_epoch = _V4_HEAD.unpack_from(value)
            text = value[start:end].decode()
            commit_ms = _TIME.unpack_from(value, end)[0]
            return Committed(offset, leader_epoch, text, commit_ms, topic_id=value[-16:])
    found = decode_value(_NO_KEY, value)
    assert isinstance(found, OffsetCommitValue)
    return Committed(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        found.topic_id,
    )


class Times(NamedTuple):
    """What decides how long an offset is kept."""

    topic_id: bytes
    commit_ms: int
    expire_ms: int


def times_of(value: bytes) -> Times:
    """Read as `decode_offset` does, without the rest: expiry looks at every offset."""
    version = value[:2]
    if version == b"\x00\x04":
        end = _V4_HEAD.size + value[_V4_HEAD.size]  # the length takes one byte, and counts itself
        if end + _TIME.size == len(value) - 19 and value[-19:-16] == _V4_ID:
            return Times(value[-16:], _TIME.unpack_from(value, end)[0], -1)
    elif version == b"\x00\x03":
        end = _V3_HEAD.size + int.from_bytes(value[14:16], "big")
        return Times(NO_TOPIC_ID, _TIME.unpack_from(value, end)[0], -1)
    found = decode_offset(value)
    return Times(found.topic_id, found.commit_ms, found.expire_ms)


def check_version(value: bytes) -> None:
    """Raise for a value that could not be read back later."""
    if value[:2] not in _KNOWN_HEADS:
        version = _VERSION.unpack_from(value)[0] if len(value) >= _VERSION.size else -1
        raise UnknownRecord(
            f"an OffsetCommitValue of version {version}; "
            f"this version knows up to {OffsetCommitValue.versions[-1]}"
        )


Position = tuple[str, str, int]  # group, topic, partition
Partitions = dict[int, bytes]


class Before(NamedTuple):
    """What a position was before an append."""

    value: bytes | None
    was_unstable: bool


Changes = dict[Position, Before]


class _Pending(NamedTuple):
    order: int
    value: bytes


class Offsets:
    """The offsets of one shard's groups."""

    __slots__ = (
        "_changes",
        "_groups",
        "_held",
        "_in_flight",
        "_pended",
        "_pending",
        "_unstable",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        self._groups: dict[str, dict[str, Partitions]] = {}
        self._pending: dict[int, dict[Position, _Pending | None]] = {}  # by producer
        self._pended = 0  # how many offsets ever were: the order in which the log has them
        self._unstable: dict[Position, int] = {}  # in how many transactions
        self._changes: Changes = {}  # since the last append
        self._held: dict[
            str, dict[tuple[str, int], deque[Before]]
        ] = {}  # by group: those in flight, oldest first
        self._in_flight: deque[Changes] = deque()  # of each append that is not committed yet

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    @property
    def has_unstable(self) -> bool:
        return bool(self._unstable)

    def has_group(self, group: str) -> bool:
        return group in self._groups or any(position[0] == group for position in self._unstable)

    def of_group(self, group: str) -> Mapping[str, Mapping[int, bytes]]:
        return self._groups.get(group, {})

    def get(self, group: str, topic: str, partition: int) -> bytes | None:
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def partitions(self, group: str, topic: str) -> Partitions:
        """The values by partition, to be filled by whoever reads the log; ends with `recount`."""
        return self._groups.setdefault(group, {}).setdefault(topic, {})

    def recount(self) -> None:
        """Drop what is empty and count the rest, after `partitions` was used."""
        self.count = 0
        for group, topics in list(self._groups.items()):
            for topic, partitions in list(topics.items()):
                self.count += len(partitions)
                if not partitions:
                    del topics[topic]
            if not topics:
                del self._groups[group]

    def put(self, group: str, topic: str, partition: int, value: bytes) -> None:
        self._place(group, topic, partition, value)
        if self._unstable:
            self.supersede((group, topic, partition))

    def _place(self, group: str, topic: str, partition: int, value: bytes) -> None:
        self._note((group, topic, partition))
        partitions = self._groups.setdefault(group, {}).setdefault(topic, {})
        self.count += partition not in partitions
        partitions[partition] = value

    def drop(self, group: str, topic: str, partition: int) -> None:
        topics = self._groups.get(group, {})
        partitions = topics.get(topic, {})
        if partition not in partitions:
            return
        self._note((group, topic, partition))
        del partitions[partition]
        self.count -= 1
        if not partitions:
            del topics[topic]
            if not topics:
                del self._groups[group]

    def of_topic(self, topic: str) -> set[Position]:
        """Everyone's positions in a topic, also those that wait for the end of a transaction."""
        positions = {position for position in self._unstable if position[1] == topic}
        for group, topics in self._groups.items():
            positions.update((group, topic, partition) for partition in topics.get(topic, ()))
        return positions

    # What is committed in the log --------------------------------------------------------------

    def _note(self, position: Position) -> None:
        if position not in self._changes:
            self._changes[position] = Before(self.get(*position), position in self._unstable)

    def forget_changes(self) -> None:
        """All that is known was read from the log."""
        self._changes = {}

    def begin_append(self) -> Changes:
        """What has changed since the last one is about to be written, or was."""
        changes, self._changes = self._changes, {}
        self._in_flight.append(changes)
        for (group, topic, index), before in changes.items():
            held = self._held.setdefault(group, {})
            held.setdefault((topic, index), deque()).append(before)
        return changes

    def end_append(self, changes: Changes) -> None:
        """The oldest append in flight is committed."""
        oldest = self._in_flight.popleft()
        assert oldest is changes, "appends are committed in their order"
        for group, topic, index in changes:
            held = self._held[group]
            befores = held[topic, index]
            befores.popleft()
            if not befores:
                del held[topic, index]
                if not held:
                    del self._held[group]

    def committed(self, position: Position) -> Before:
        """The position without what is in flight; unstable if it is so with or without that."""
        value, is_unstable = self.get(*position), position in self._unstable
        group, topic, index = position
        befores = [*self._held.get(group, {}).get((topic, index), ())]
        if position in self._changes:
            befores.append(self._changes[position])
        if befores:
            value = befores[0].value
        return Before(value, is_unstable or any(it.was_unstable for it in befores))

    def committed_of_group(self, group: str) -> dict[str, dict[int, bytes]]:
        """The values of a group by topic and partition, likewise."""
        positions = {
            (group, topic, index)
            for topic, known in self.of_group(group).items()
            for index in known
        }
        positions.update((group, topic, index) for topic, index in self._held.get(group, ()))
        positions.update(position for position in self._changes if position[0] == group)
        found: dict[str, dict[int, bytes]] = {}
        for position in sorted(positions):
            value = self.committed(position).value
            if value is not None:
                found.setdefault(position[1], {})[position[2]] = value
        return found

    # Transactions ------------------------------------------------------------------------------

    def put_pending(self, producer_id: int, position: Position, value: bytes) -> None:
        """Committed within a transaction: it counts only when that is committed itself."""
        pending = self._pending.setdefault(producer_id, {})
        if position not in pending:
            self._unstable[position] = self._unstable.get(position, 0) + 1
        self._pended += 1
        pending[position] = _Pending(self._pended, value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> set[str]:
        """The groups that have offsets by it."""
        committed_for: set[str] = set()
        for position, found in self._pending.pop(producer_id, {}).items():
            self._note(position)
            self._unstable[position] -= 1
            if not self._unstable[position]:
                del self._unstable[position]
            if committed and found is not None:
                self._place(*position, found.value)
                self.supersede(position, found.order)
                committed_for.add(position[0])
        return committed_for

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        return bool(self._unstable) and (group, topic, partition) in self._unstable

    def unstable_of(self, group: str) -> set[tuple[str, int]]:
        return {(topic, index) for name, topic, index in self._unstable if name == group}

    def drop_pending(self, position: Position) -> None:
        for producer_id in list(self._pending):
            pending = self._pending[producer_id]
            if position in pending:
                self._note(position)
                del pending[position]
                self._unstable[position] -= 1
                if not self._unstable[position]:
                    del self._unstable[position]

    def supersede(self, position: Position, order: int | None = None) -> None:
        """What was committed later stands, however the transactions end; `order`: of what stands now."""
        for pending in self._pending.values():
            found = pending.get(position)
            if found is not None and (order is None or found.order < order):
                pending[position] = None
