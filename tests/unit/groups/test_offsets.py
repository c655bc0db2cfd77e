"""Committed offsets: who may commit, what is told, what ends them."""

import pytest

from penstock.groups import commits
from penstock.groups.commits import fetch
from penstock.groups.offsets import (
    Committed,
    Offsets,
    decode_offset,
    encode_offset,
    encode_offset_key,
)
from penstock.groups.shard import Now
from penstock.groups.state import ClassicGroup
from penstock.groups.topics import Topics
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID, TopicId
from penstock.wire.messages.offset_commit import OffsetCommitResponse
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
)
from tests.unit.groups.stage import GROUP, Stage
from tests.unit.groups.test_classic import stable
from tests.unit.groups.test_consumer import Consumer

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def codes(stage: Stage, number: int) -> list[int]:
    response = stage.reply(number, OffsetCommitResponse)
    return [p.error_code for topic in response.topics for p in topic.partitions]


def refused(stage: Stage, **options: object) -> ErrorCode:
    before = dict(stage.shard.offsets.of_group(GROUP))
    with pytest.raises(BrokerError) as refusal:
        stage.commit(5, **options)  # type: ignore[arg-type] # the options of Stage.commit
    assert stage.shard.offsets.of_group(GROUP) == before
    return refusal.value.code


def all_committed(offsets: Offsets) -> None:
    """The log has all changes so far, and they are committed there."""
    offsets.end_append(offsets.begin_append())


def fetched(stage: Stage, **options: object) -> OffsetFetchResponseGroup:
    all_committed(stage.shard.offsets)
    asked = OffsetFetchRequestGroup(
        group_id=GROUP,
        member_id=options.get("member"),  # type: ignore[arg-type] # a name or nothing
        member_epoch=options.get("epoch", -1),  # type: ignore[arg-type] # a number
        topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])],
    )
    group = stage.shard.groups.get(GROUP)
    return fetch(stage.shard.offsets, stage.topics, group, asked, require_stable=False)


def sweep(stage: Stage, retention_ms: int = WEEK_MS) -> None:
    now = Now(stage.now_ms, stage.wall_ms)
    known = stage.shard.offsets.of_group(GROUP)
    positions = [(topic, index) for topic, values in known.items() for index in values]
    stage.do(GROUP, stage.shard.expire(GROUP, now, retention_ms, positions))


def later(stage: Stage, ms: int) -> None:
    stage.pass_time(ms)
    stage.wall_ms += ms


# Who may commit ----------------------------------------------------------------------------------


def test_anyone_may_commit_for_a_group_without_members_and_makes_it_so() -> None:
    stage = Stage()
    number = stage.commit(5, text="note")

    assert codes(stage, number) == [ErrorCode.NONE]
    assert stage.position() == 5
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.protocol_type is None
    assert stage.replayed().offsets.of_group(GROUP) == stage.shard.offsets.of_group(GROUP)


def test_a_member_of_the_current_generation_may_commit_and_is_alive_by_it() -> None:
    stage = stable("ann")
    stage.pass_time(9000)
    stage.commit(5, member="ann", generation=1)
    stage.pass_time(9000)

    assert stage.position() == 5
    assert "ann" in stage.shard.groups[GROUP].members


def test_while_a_group_has_members_only_they_may_commit() -> None:
    stage = stable("ann")

    assert refused(stage) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(stage, member="eve", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(stage, member="ann", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert refused(stage, member="ann", generation=2) is ErrorCode.ILLEGAL_GENERATION


def test_between_generations_a_commit_must_wait_for_the_assignment() -> None:
    stage = stable("ann", "bob")
    stage.leave("bob")
    assert codes(stage, stage.commit(4, member="ann", generation=1)) == [0]  # what it did before
    stage.join("ann")

    assert refused(stage, member="ann", generation=2) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_a_group_that_does_not_exist_is_told_so(version: int, code: ErrorCode) -> None:
    stage = Stage()

    assert refused(stage, member="ann", generation=3, version=version) is code
    assert not stage.shard.groups


def test_a_member_of_a_consumer_group_commits_with_its_epoch() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")

    assert codes(stage, stage.commit(5, member="ann", generation=ann.epoch)) == [0]
    assert refused(stage, member="ann", generation=7) is ErrorCode.STALE_MEMBER_EPOCH
    assert refused(stage, member="eve", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(stage) is ErrorCode.UNKNOWN_MEMBER_ID
    old = refused(stage, member="ann", generation=1, version=8)
    assert old is ErrorCode.UNSUPPORTED_VERSION


def test_text_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    stage = Stage()
    assert codes(stage, stage.commit(5, text="x" * 4096)) == [ErrorCode.NONE]
    assert codes(stage, stage.commit(6, text="x" * 4097)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert stage.position() == 5


@pytest.mark.parametrize("partition", [-1, 1, 99])
def test_only_a_partition_that_exists_has_a_position(partition: int) -> None:
    stage = Stage(t=1)
    number = stage.commit(5, partition=partition)

    assert codes(stage, number) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not stage.shard.groups
    assert not stage.log


def test_a_commit_that_is_refused_whole_makes_no_group() -> None:
    stage = Stage()
    stage.commit(6, text="x" * 4097)

    assert not stage.shard.groups


# What is told ------------------------------------------------------------------------------------


def test_a_position_is_told_with_its_text_and_epoch_and_nothing_is_minus_one() -> None:
    stage = Stage()
    stage.commit(5, text="note")
    first, second = fetched(stage).topics[0].partitions

    assert (first.committed_offset, first.metadata, first.error_code) == (5, "note", 0)
    assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)


def test_an_unknown_group_has_no_positions_which_is_no_error() -> None:
    response = fetched(Stage())

    assert response.error_code == ErrorCode.NONE
    assert [p.committed_offset for p in response.topics[0].partitions] == [-1, -1]


def test_a_member_of_a_consumer_group_must_say_its_epoch_if_it_says_who_it_is() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")
    stage.commit(5, member="ann", generation=ann.epoch)

    assert fetched(stage).error_code == ErrorCode.NONE
    assert fetched(stage, member="ann", epoch=1).topics[0].partitions[0].committed_offset == 5
    assert fetched(stage, member="ann", epoch=2).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched(stage, member="eve", epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Transactions ------------------------------------------------------------------------------------


def value(offset: int) -> bytes:
    return encode_offset(Committed(offset))


def offset_of(offsets: Offsets) -> int | None:
    raw = offsets.get("g", "t", 0)
    return None if raw is None else decode_offset(raw).offset


@pytest.mark.parametrize(("committed", "after"), [(True, 9), (False, 5)])
def test_an_offset_of_a_transaction_counts_when_that_is_committed(
    committed: bool, after: int
) -> None:
    offsets = Offsets()
    offsets.put("g", "t", 0, value(5))
    offsets.put_pending(1, ("g", "t", 0), value(9))
    assert offset_of(offsets) == 5
    assert offsets.is_unstable("g", "t", 0)

    offsets.end_transaction(1, committed=committed)

    assert offset_of(offsets) == after
    assert not offsets.is_unstable("g", "t", 0)


def test_a_later_commit_outside_of_the_transaction_stands() -> None:
    offsets = Offsets()
    offsets.put_pending(1, ("g", "t", 0), value(9))
    offsets.put("g", "t", 0, value(12))
    assert offsets.is_unstable("g", "t", 0)
    offsets.end_transaction(1, committed=True)

    assert offset_of(offsets) == 12


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_transactions_the_offset_that_was_written_later_stands(first: int) -> None:
    """Whichever ends first: it is also the one that compaction leaves in the log."""
    offsets = Offsets()
    offsets.put_pending(1, ("g", "t", 0), value(9))
    offsets.put_pending(2, ("g", "t", 0), value(12))
    offsets.end_transaction(first, committed=True)
    assert offset_of(offsets) == {1: 9, 2: 12}[first]
    offsets.end_transaction(3 - first, committed=True)

    assert offset_of(offsets) == 12
    assert not offsets.is_unstable("g", "t", 0)


def test_who_insists_on_a_stable_position_must_wait() -> None:
    offsets = Offsets()
    offsets.put_pending(1, ("g", "t", 0), value(9))
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id="g", topics=topics)

    def answered(*, require_stable: bool) -> OffsetFetchResponsePartitions:
        found = fetch(offsets, Topics(), None, asked, require_stable=require_stable)
        return found.topics[0].partitions[0]

    unstable, any_will_do = (answered(require_stable=stable) for stable in (True, False))

    assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert (any_will_do.error_code, any_will_do.committed_offset) == (0, -1)


def test_a_position_that_is_deleted_does_not_come_back_with_a_transaction() -> None:
    offsets = Offsets()
    offsets.put_pending(1, ("g", "t", 0), value(9))
    assert commits.forget(offsets, "g", "t", 0)
    offsets.end_transaction(1, committed=True)

    assert offset_of(offsets) is None
    assert not offsets.has_group("g")


# What ends them ----------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_end_a_retention_time_after_it_became_empty() -> None:
    stage = stable("ann")
    stage.commit(5, member="ann", generation=1)
    stage.wall_ms += 2 * WEEK_MS  # it lives on, and does not commit
    stage.leave("ann")
    later(stage, 6 * DAY_MS)
    sweep(stage)
    assert stage.position() == 5

    later(stage, DAY_MS)
    sweep(stage)

    assert stage.position() is None
    assert GROUP not in stage.shard.groups
    assert GROUP not in stage.replayed().groups


def test_offsets_of_a_group_with_members_do_not_end_while_they_are_subscribed() -> None:
    stage = stable("ann", stage=Stage(t=1, u=1))
    stage.commit(5, member="ann", generation=1)
    stage.commit(7, member="ann", generation=1, topic="u")
    stage.wall_ms += 2 * WEEK_MS
    sweep(stage)

    assert (stage.position("t"), stage.position("u")) == (5, None)


def test_offsets_of_simple_consumers_end_a_retention_time_after_their_last_commit() -> None:
    stage = Stage(t=2)
    stage.commit(5, partition=0)
    later(stage, 6 * DAY_MS)
    stage.commit(6, partition=1)
    later(stage, DAY_MS)
    sweep(stage)
    assert (stage.position(partition=0), stage.position(partition=1)) == (None, 6)

    later(stage, 6 * DAY_MS)
    sweep(stage)
    assert not stage.shard.groups


def test_a_client_may_ask_for_its_own_retention_time() -> None:
    stage = Stage()
    stage.commit(5, retention_ms=DAY_MS, version=4)
    later(stage, DAY_MS - 1)
    sweep(stage)
    assert stage.position() == 5
    later(stage, 1)
    sweep(stage)

    assert stage.position() is None


def test_a_retention_time_beyond_all_time_is_for_ever() -> None:
    stage = Stage()
    stage.commit(5, retention_ms=2**63 - 1, version=4)
    later(stage, 1000 * WEEK_MS)
    sweep(stage)

    assert stage.position() == 5


def test_the_time_at_which_a_group_became_empty_survives_a_crash() -> None:
    stage = stable("ann")
    stage.commit(5, member="ann", generation=1)
    stage.leave("ann")
    later(stage, 5 * DAY_MS)
    stage.crash()
    later(stage, 2 * DAY_MS)
    sweep(stage)

    assert stage.position() is None


def test_a_deleted_topic_takes_its_offsets_with_it() -> None:
    stage = Stage()
    stage.commit(5, topic="t")
    stage.commit(6, topic="u")
    stage.do("", stage.shard.forget_topic("t"))

    assert (stage.position("t"), stage.position("u")) == (None, 6)
    assert stage.replayed().offsets.of_group(GROUP) == stage.shard.offsets.of_group(GROUP)


def test_a_deleted_topic_takes_along_what_waits_for_the_end_of_a_transaction() -> None:
    stage = Stage(t=1)
    stage.shard.pend(7, [((GROUP, "t", 0), value(5))], stage.now_ms)
    stage.do("", stage.shard.forget_topic("t"))
    stage.shard.end_transaction(7, committed=True, now_ms=stage.now_ms)

    assert stage.position() is None
    assert [key for key, raw in stage.log if raw is None] == [encode_offset_key(GROUP, "t", 0)]


def test_a_group_is_deleted_only_without_members_and_with_its_offsets() -> None:
    stage = stable("ann")
    stage.commit(5, member="ann", generation=1)
    assert stage.shard.delete_group(GROUP)[0] is ErrorCode.NON_EMPTY_GROUP
    assert stage.shard.delete_group("other")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    stage.leave("ann")
    code, effects = stage.shard.delete_group(GROUP)
    stage.do(GROUP, effects)

    assert code is ErrorCode.NONE
    assert not stage.replayed().groups
    assert stage.replayed().offsets.count == stage.shard.offsets.count == 0


def delete_offsets(stage: Stage, topic: str) -> tuple[int, list[int]]:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(
        group_id=GROUP, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    )
    stage.asked += 1
    stage.do(GROUP, stage.shard.delete_offsets(stage.asked, request))
    response = stage.replies[stage.asked]
    return response.error_code, [p.error_code for t in response.topics for p in t.partitions]


def test_offsets_of_a_subscribed_topic_are_not_deleted() -> None:
    stage = stable("ann", stage=Stage(t=1, u=1))
    stage.commit(5, member="ann", generation=1)
    stage.commit(6, member="ann", generation=1, topic="u")

    assert delete_offsets(stage, "t") == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert delete_offsets(stage, "u") == (0, [ErrorCode.NONE])
    assert (stage.position("t"), stage.position("u")) == (5, None)


def test_offsets_of_an_unknown_or_foreign_group_are_not_deleted() -> None:
    assert delete_offsets(Stage(), "t") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    stage = Stage()
    stage.join(fresh="ann", protocol_type="connect", protocols={"x": b""})
    stage.settle()

    assert delete_offsets(stage, "t") == (ErrorCode.NON_EMPTY_GROUP, [])


@pytest.mark.parametrize("pending", [False, True], ids=["plain", "in a transaction"])
@pytest.mark.parametrize(
    ("in_value", "of_topic", "counts"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),  # the topic was deleted and created anew
        (b"a", b"", False),  # deleted
        (b"", b"a", True),  # written by an earlier version
        (b"", b"", False),
    ],
)
def test_an_offset_counts_for_the_topic_in_which_it_was_committed(
    in_value: bytes, of_topic: bytes, counts: bool, pending: bool
) -> None:
    offsets, known = Offsets(), Topics()
    if of_topic:
        known.put("t", TopicId(of_topic * 16), 1)
    raw = encode_offset(Committed(5, topic_id=in_value * 16 or NO_TOPIC_ID))
    if pending:
        offsets.put_pending(1, (GROUP, "t", 0), raw)
        offsets.end_transaction(1, committed=True)
    else:
        offsets.put(GROUP, "t", 0, raw)
    all_committed(offsets)

    named = OffsetFetchRequestGroup(
        group_id=GROUP, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    found = fetch(offsets, known, None, named, require_stable=True)
    assert found.topics[0].partitions[0].committed_offset == (5 if counts else -1)
    everything = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    found = fetch(offsets, known, None, everything, require_stable=True)
    assert len(found.topics) == counts


def test_offsets_in_a_topic_that_is_another_now_are_swept_out_while_the_group_works() -> None:
    stage = stable("a")
    stage.commit(5, member="a", generation=1)
    sweep(stage)
    assert stage.shard.offsets.count == 1
    stage.topics.put("t", TopicId(b"n" * 16), 2)
    sweep(stage)
    assert stage.shard.offsets.count == 0
    assert stage.replayed().offsets.count == 0


# What is committed in the log -------------------------------------------------------------------


def told(offsets: Offsets) -> tuple[int | None, bool]:
    raw, is_unstable = offsets.committed(("g", "t", 0))
    return None if raw is None else decode_offset(raw).offset, is_unstable


def test_each_commit_counts_for_readers_once_it_is_committed() -> None:
    offsets = Offsets()
    appends = []
    for number in (1, 2):
        offsets.put("g", "t", 0, value(number))
        offsets.put("g", "t", number, value(number))
        appends.append(offsets.begin_append())
    offsets.drop("g", "t", 0)

    assert told(offsets) == (None, False)
    assert offsets.committed_of_group("g") == {}
    offsets.end_append(appends[0])
    assert told(offsets) == (1, False)
    assert offsets.committed_of_group("g") == {"t": {0: value(1), 1: value(1)}}
    offsets.end_append(appends[1])
    assert told(offsets) == (2, False)
    offsets.end_append(offsets.begin_append())
    assert told(offsets) == (None, False)
    assert offsets.committed_of_group("g") == {"t": {1: value(1), 2: value(2)}}


@pytest.mark.parametrize("committed", [True, False])
def test_a_position_is_unstable_until_the_end_of_its_transaction_is_committed(
    committed: bool,
) -> None:
    offsets = Offsets()
    offsets.put("g", "t", 0, value(5))
    all_committed(offsets)
    offsets.put_pending(1, ("g", "t", 0), value(9))
    assert told(offsets) == (5, True)
    offsets.end_transaction(1, committed=committed)
    assert told(offsets) == (5, True)
    all_committed(offsets)
    assert told(offsets) == (9 if committed else 5, False)


def test_a_pending_offset_that_is_deleted_is_unstable_until_that_is_committed() -> None:
    offsets = Offsets()
    offsets.put_pending(1, ("g", "t", 0), value(9))
    commits.forget(offsets, "g", "t", 0)
    assert told(offsets) == (None, True)
    all_committed(offsets)
    assert told(offsets) == (None, False)
