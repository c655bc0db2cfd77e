"""The records of __consumer_offsets, byte for byte as Kafka's own coordinator writes and reads them.

A key begins with the number of its type, a value with its version. What is not known here stops the
shard that holds it: to skip a record in silence would be to forget something that a client was promised.
"""

from __future__ import annotations

from struct import Struct as Packing
from typing import Final, NamedTuple

from penstock.model.errors import UnknownRecord as UnknownRecord
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.fields import array, binary, int8, int32, int64, nested, string, uuid
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message, Struct, decode_for

_VERSION: Final = Packing(">h")


# Keys: the version is the type ------------------------------------------------------------------


class OffsetCommitKey(Message, versions="0-1"):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class GroupMetadataKey(Message, versions="2"):
    group: str = string()


class ConsumerGroupMetadataKey(Message, versions="3"):
    group_id: str = string()


class ConsumerGroupPartitionMetadataKey(Message, versions="4"):
    group_id: str = string()


class ConsumerGroupMemberMetadataKey(Message, versions="5"):
    group_id: str = string()
    member_id: str = string()


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="6"):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7"):
    group_id: str = string()
    member_id: str = string()


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8"):
    group_id: str = string()
    member_id: str = string()


class ConsumerGroupRegularExpressionKey(Message, versions="16"):
    group_id: str = string()
    regular_expression: str = string()


# Values -----------------------------------------------------------------------------------------


class OffsetCommitValue(Message, versions="0-4", flexible_from=4):
    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


class GroupMetadataValue(Message, versions="0-4", flexible_from=4):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataValue(Message, versions="0", flexible_from=0):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class PartitionMetadata(Struct):
    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible_from=0):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = binary()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible_from=0):
    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible_from=0):
    assignment_epoch: int = int32()


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible_from=0):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible_from=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible_from=0):
    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


_KEYS: Final[dict[int, type[Message]]] = {
    0: OffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    3: ConsumerGroupMetadataKey,
    4: ConsumerGroupPartitionMetadataKey,
    5: ConsumerGroupMemberMetadataKey,
    6: ConsumerGroupTargetAssignmentMetadataKey,
    7: ConsumerGroupTargetAssignmentMemberKey,
    8: ConsumerGroupCurrentMemberAssignmentKey,
    16: ConsumerGroupRegularExpressionKey,
}
_VALUES: Final[dict[type[Message], tuple[type[Message], int]]] = {  # and the version we write
    OffsetCommitKey: (OffsetCommitValue, 3),
    GroupMetadataKey: (GroupMetadataValue, 3),
    ConsumerGroupMetadataKey: (ConsumerGroupMetadataValue, 0),
    ConsumerGroupPartitionMetadataKey: (ConsumerGroupPartitionMetadataValue, 0),
    ConsumerGroupMemberMetadataKey: (ConsumerGroupMemberMetadataValue, 0),
    ConsumerGroupTargetAssignmentMetadataKey: (ConsumerGroupTargetAssignmentMetadataValue, 0),
    ConsumerGroupTargetAssignmentMemberKey: (ConsumerGroupTargetAssignmentMemberValue, 0),
    ConsumerGroupCurrentMemberAssignmentKey: (ConsumerGroupCurrentMemberAssignmentValue, 0),
    ConsumerGroupRegularExpressionKey: (ConsumerGroupRegularExpressionValue, 0),
}
_WRITTEN_OFFSET_KEY: Final = 1


class Entry(NamedTuple):
    """One record, still as messages. A value of None is a tombstone: the key is forgotten."""

    key: Message
    value: Message | None


def encode_key(key: Message) -> bytes:
    kind = _WRITTEN_OFFSET_KEY if type(key) is OffsetCommitKey else type(key).versions[-1]
    return _VERSION.pack(kind) + key.encode(kind)


def encode_value(key: Message, value: Message) -> bytes:
    kind, version = _VALUES[type(key)]
    assert type(value) is kind, f"a {type(key).__name__} has no {type(value).__name__}"
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        version = 1  # the only one that carries it
    elif isinstance(value, OffsetCommitValue) and value.topic_id != NO_TOPIC_ID:
        version = 4
    return _VERSION.pack(version) + value.encode(version)


def decode_entry(key: bytes, value: bytes | None) -> Entry:
    """Read a record back; raises UnknownRecord for a type or version that is not known here."""
    found = decode_key(key)
    return Entry(found, None if value is None else decode_value(found, value))


def decode_key(key: bytes) -> Message:
    kind = type_of(key)
    known = _KEYS.get(kind)
    if known is None:
        raise UnknownRecord(f"a record of type {kind}, which this version does not know")
    return _decode(known, key, kind)


def decode_value(key: Message, value: bytes) -> Message:
    kind, _ = _VALUES[type(key)]
    if len(value) < _VERSION.size:
        raise UnknownRecord(f"a {kind.__name__} of {len(value)} bytes")
    version = _VERSION.unpack_from(value)[0]
    if version not in kind.versions:
        raise UnknownRecord(
            f"a {kind.__name__} of version {version}; this version knows up to {kind.versions[-1]}"
        )
    return _decode(kind, value, version)


def type_of(key: bytes) -> int:
    if len(key) < _VERSION.size:
        raise UnknownRecord(f"a record whose key has {len(key)} bytes")
    number: int = _VERSION.unpack_from(key)[0]
    return number


def _decode(kind: type[Message], data: bytes, version: int) -> Message:
    try:
        message, _ = decode_for(kind, version)(memoryview(data), _VERSION.size)
    except MalformedMessage as error:
        raise UnknownRecord(f"a {kind.__name__} v{version} that cannot be read: {error}") from error
    return message
