"""Reading a shard back: from any log that compaction may leave, and never past what is not understood."""

import pytest

from penstock.groups.consumer import ConsumerGroup
from penstock.groups.offsets import Committed, decode_offset, encode_offset, encode_offset_key
from penstock.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    UnknownRecord,
    encode_key,
    encode_value,
)
from penstock.groups.replay import Replay
from penstock.groups.state import ClassicGroup, GroupContext, Rules
from penstock.groups.topics import Topics
from tests.unit.groups.stage import GROUP, Stage
from tests.unit.groups.test_classic import stable
from tests.unit.groups.test_consumer import Consumer, settle

KEY = encode_offset_key("g", "t", 0)


def new_replay() -> Replay:
    return Replay(GroupContext(Rules(), Topics()), now_ms=1000, wall_ms=5000)


def value(offset: int) -> bytes:
    return encode_offset(Committed(offset))


def offset_of(replay: Replay) -> int | None:
    found = replay.offsets.get("g", "t", 0)
    return None if found is None else decode_offset(found).offset


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (KEY, b"\x00\x09"),
        (encode_key(GroupMetadataKey(group="g")), b"\x00\x09"),
        (b"\x00\x63\x00\x01g", b"\x00\x00"),
        (b"", b"\x00\x00"),
    ],
)
def test_a_record_that_is_not_understood_stops_the_replay(key: bytes, raw: bytes) -> None:
    with pytest.raises(UnknownRecord):
        new_replay().apply(key, raw)


def test_a_member_in_a_state_that_is_not_known_stops_the_replay() -> None:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    raw = encode_value(key, ConsumerGroupCurrentMemberAssignmentValue(member_epoch=1, state=9))

    with pytest.raises(UnknownRecord, match="state 9"):
        new_replay().apply(encode_key(key), raw)


def test_the_last_value_of_a_key_counts_and_a_tombstone_ends_it() -> None:
    replay = new_replay()
    for raw in (value(1), value(2), None, value(3), value(4)):
        replay.apply(KEY, raw)
    replay.finish()
    assert (offset_of(replay), replay.offsets.count) == (4, 1)

    replay = new_replay()
    replay.apply(KEY, value(1))
    replay.apply(KEY, None)
    replay.finish()
    assert (offset_of(replay), replay.offsets.count, replay.groups) == (None, 0, {})


def test_a_partition_before_the_first_is_read_back_as_it_was_written_and_can_be_deleted() -> None:
    """Older versions of this broker took such commits."""
    stage = Stage()
    stage.log.append((encode_offset_key(GROUP, "t", -1), value(7)))
    stage.crash()
    assert stage.position(partition=-1) == 7

    code, effects = stage.shard.delete_group(GROUP)
    stage.do(GROUP, effects)

    assert not code
    assert not stage.replayed().offsets.count


def test_offsets_without_a_group_are_those_of_a_simple_consumer() -> None:
    replay = new_replay()
    replay.apply(KEY, value(1))
    replay.finish()
    group = replay.groups["g"]

    assert isinstance(group, ClassicGroup)
    assert group.protocol_type is None


def test_tombstones_of_what_is_not_there_are_nothing() -> None:
    stage = Stage(t=2)
    Consumer(stage, "ann")
    replay = new_replay()
    for key, _ in stage.log:
        replay.apply(key, None)
    replay.finish()

    assert replay.groups == {}


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_transaction_wait_for_its_marker(committed: bool) -> None:
    replay = new_replay()
    replay.apply(KEY, value(1))
    replay.apply_pending(7, KEY, value(2))
    assert replay.offsets.is_unstable("g", "t", 0)
    replay.end_transaction(7, committed=committed)
    replay.finish()

    assert offset_of(replay) == (2 if committed else 1)


@pytest.mark.parametrize(("later", "after"), [(value(3), 3), (None, None)])
def test_what_comes_after_an_offset_of_a_transaction_outlives_its_marker(
    later: bytes | None, after: int | None
) -> None:
    replay = new_replay()
    replay.apply_pending(7, KEY, value(2))
    replay.apply(KEY, later)
    replay.end_transaction(7, committed=True)
    replay.finish()

    assert offset_of(replay) == after


def test_only_offsets_can_be_in_a_transaction() -> None:
    with pytest.raises(UnknownRecord, match="transaction"):
        new_replay().apply_pending(7, encode_key(ConsumerGroupMetadataKey(group_id="g")), b"")


def test_a_group_that_changed_its_kind_is_what_it_was_last() -> None:
    stage = stable("ann", stage=Stage(t=2))
    stage.leave("ann")
    bob = Consumer(stage, "bob")
    settle(bob)
    assert isinstance(stage.replayed().groups[GROUP], ConsumerGroup)
    assert isinstance(stage.replayed(stage.compacted()).groups[GROUP], ConsumerGroup)

    stage.beat("bob", -1)
    stage.join(fresh="cat")
    stage.settle()
    stage.sync("cat", 1, {"cat": b"x"})
    assert isinstance(stage.replayed().groups[GROUP], ClassicGroup)
    assert isinstance(stage.replayed(stage.compacted()).groups[GROUP], ClassicGroup)
