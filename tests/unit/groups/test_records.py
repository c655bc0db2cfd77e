"""The records of __consumer_offsets, byte by byte, as Kafka's schemas say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.offsets import (
    Committed,
    Times,
    check_version,
    decode_offset,
    encode_offset,
    encode_offset_key,
    times_of,
)
from penstock.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicMetadata,
    TopicPartitions,
    UnknownRecord,
    decode_entry,
    encode_key,
    encode_value,
)
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.schema import Message

ID = bytes(range(16))
text = st.text(st.characters(codec="utf-8"), max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)


def hexed(*parts: str | bytes) -> bytes:
    """Readable bytes: hex digits with spaces, or the bytes themselves."""
    return b"".join(p if isinstance(p, bytes) else bytes.fromhex(p) for p in parts)


MEMBER = MemberMetadata(
    member_id="m",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout=60_000,
    session_timeout=10_000,
    subscription=b"sub",
    assignment=b"assign",
)
PARTITIONS = [TopicPartitions(topic_id=ID, partitions=[0, 2])]
GOLDEN: list[tuple[Message, Message, bytes, bytes]] = [
    (
        OffsetCommitKey(group="grp", topic="top", partition=7),
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="note", commit_timestamp=9),
        hexed("0001 0003", b"grp", "0003", b"top", "00000007"),
        hexed("0003 0000000000000005 00000002 0004", b"note", "0000000000000009"),
    ),
    (
        OffsetCommitKey(group="grp", topic="top", partition=7),
        OffsetCommitValue(
            offset=5, leader_epoch=2, metadata="note", commit_timestamp=9, topic_id=ID
        ),
        hexed("0001 0003", b"grp", "0003", b"top", "00000007"),
        hexed("0004 0000000000000005 00000002 05", b"note", "0000000000000009 010010", ID),
    ),
    (
        OffsetCommitKey(group="g", topic="t", partition=0),
        OffsetCommitValue(offset=5, metadata="", commit_timestamp=9, expire_timestamp=11),
        hexed("0001 0001", b"g", "0001", b"t", "00000000"),
        hexed("0001 0000000000000005 0000 0000000000000009 000000000000000b"),
    ),
    (
        GroupMetadataKey(group="g"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="m",
            current_state_timestamp=8,
            members=[MEMBER],
        ),
        hexed("0002 0001", b"g"),
        hexed("0003 0008", b"consumer", "00000003 0005", b"range", "0001", b"m")
        + hexed("0000000000000008 00000001 0001", b"m", "0001", b"i", "0001", b"c", "0002", b"/h")
        + hexed("0000ea60 00002710 00000003", b"sub", "00000006", b"assign"),
    ),
    (
        ConsumerGroupMetadataKey(group_id="g"),
        ConsumerGroupMetadataValue(epoch=4),
        hexed("0003 0001", b"g"),
        hexed("0000 00000004 00"),
    ),
    (
        ConsumerGroupPartitionMetadataKey(group_id="g"),
        ConsumerGroupPartitionMetadataValue(
            topics=[TopicMetadata(topic_id=ID, topic_name="t", num_partitions=3)]
        ),
        hexed("0004 0001", b"g"),
        hexed("0000 02", ID, "02", b"t", "00000003 01 00 00"),
    ),
    (
        ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id="r",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex="t.*",
            rebalance_timeout_ms=1,
            server_assignor="range",
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=2,
                supported_protocols=[ClassicProtocol(name="p", metadata=b"x")],
            ),
        ),
        hexed("0005 0001", b"g", "0001", b"m"),
        hexed("0000 00 02", b"r", "02", b"c", "03", b"/h", "02 02", b"t", "04", b"t.*", "00000001")
        + hexed("06", b"range", "01 00 0c 01 00000002 02 02", b"p", "02", b"x", "00 00"),
    ),
    (
        ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=6),
        hexed("0006 0001", b"g"),
        hexed("0000 00000006 00"),
    ),
    (
        ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=PARTITIONS),
        hexed("0007 0001", b"g", "0001", b"m"),
        hexed("0000 02", ID, "03 00000000 00000002 00 00"),
    ),
    (
        ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=5, previous_member_epoch=4, state=1, assigned_partitions=PARTITIONS
        ),
        hexed("0008 0001", b"g", "0001", b"m"),
        hexed("0000 00000005 00000004 01 02", ID, "03 00000000 00000002 00 01 00"),
    ),
    (
        ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t.*"),
        ConsumerGroupRegularExpressionValue(topics=["t"], version=1, timestamp=2),
        hexed("0010 0001", b"g", "0003", b"t.*"),
        hexed("0000 02 02", b"t", "0000000000000001 0000000000000002 00"),
    ),
]


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), GOLDEN)
def test_each_record_is_written_as_kafka_writes_it_and_read_back(
    key: Message, value: Message, key_bytes: bytes, value_bytes: bytes
) -> None:
    assert encode_key(key) == key_bytes
    assert encode_value(key, value) == value_bytes
    assert decode_entry(key_bytes, value_bytes) == (key, value)
    assert decode_entry(key_bytes, None) == (key, None)


@given(group=text, topic=text, partition=st.integers(0, 2**31 - 1))
def test_the_quick_way_to_an_offsets_key_is_the_same_as_the_schema(
    group: str, topic: str, partition: int
) -> None:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)

    assert encode_offset_key(group, topic, partition) == encode_key(key)


@given(
    offset=longs,
    epoch=st.integers(-1, 2**31 - 1),
    metadata=text,
    commit_ms=longs,
    expire_ms=st.just(-1) | st.integers(0, 2**63 - 1),
    topic_id=st.just(NO_TOPIC_ID) | st.binary(min_size=16, max_size=16),
)
def test_the_quick_way_to_an_offset_is_the_same_as_the_schema(
    offset: int, epoch: int, metadata: str, commit_ms: int, expire_ms: int, topic_id: bytes
) -> None:
    if expire_ms != -1:
        epoch, topic_id = -1, NO_TOPIC_ID  # that version has no room for them
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp=commit_ms,
        expire_timestamp=expire_ms,
        topic_id=topic_id,
    )
    committed = Committed(offset, epoch, metadata, commit_ms, expire_ms, topic_id)

    assert encode_offset(committed) == encode_value(OffsetCommitKey(), value)
    assert decode_offset(encode_offset(committed)) == committed
    assert times_of(encode_offset(committed)) == Times(topic_id, commit_ms, expire_ms)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_that_kafka_has_written_can_be_read(version: int) -> None:
    value = OffsetCommitValue(offset=42, metadata="note", commit_timestamp=7)
    raw = version.to_bytes(2, "big") + value.encode(version)

    check_version(raw)
    assert decode_offset(raw)[:3] == (42, -1, "note")
    assert times_of(raw) == Times(NO_TOPIC_ID, 7, -1)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_that_kafka_has_written_can_be_read(version: int) -> None:
    value = GroupMetadataValue(protocol_type="consumer", generation=3, members=[MEMBER])
    raw = version.to_bytes(2, "big") + value.encode(version)
    _, found = decode_entry(encode_key(GroupMetadataKey(group="g")), raw)

    assert isinstance(found, GroupMetadataValue)
    assert found.members[0].assignment == b"assign"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x00\x63\x00\x01g", b"\x00\x00"),  # a type of record that is not known
        (b"\x00\x02\x00\x01g", b"\x00\x05"),  # a version of one that is
        (b"\x00\x02\x00\x01g", b""),
        (b"\x00\x02\x00\x09g", b"\x00\x03"),  # and nonsense
        (b"\x00", None),
        (b"", None),
    ],
)
def test_what_is_not_known_is_never_skipped(key: bytes, value: bytes | None) -> None:
    with pytest.raises(UnknownRecord):
        decode_entry(key, value)


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x05", b"\xff\xff"])
def test_an_offset_of_an_unknown_version_is_noticed_when_it_is_read_back(value: bytes) -> None:
    with pytest.raises(UnknownRecord, match="version"):
        check_version(value)
