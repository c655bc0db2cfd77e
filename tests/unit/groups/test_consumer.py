"""The consumer protocol (KIP-848), by scenario: epochs, targets, and partitions that change hands one by one."""

import pytest

from penstock.groups import patterns
from penstock.groups.consumer import ConsumerGroup, GroupState
from penstock.groups.state import Rules
from penstock.groups.subscriptions import recognise
from penstock.model.errors import ErrorCode
from penstock.model.group_configs import ConsumerTimes
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tests.unit.groups.stage import GROUP, Stage, topic_id


def group_of(stage: Stage) -> ConsumerGroup:
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def told(stage: Stage, response: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    """The assignment in an answer, by topic name."""
    if response.assignment is None:
        return None
    return {
        stage.topics.name_of(topic.topic_id) or "?": topic.partitions
        for topic in response.assignment.topic_partitions
    }


def code(response: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(response.error_code)


class Consumer:
    """A member that does as it is told: works on what it is given, and gives up what it is not."""

    def __init__(
        self, stage: Stage, name: str, instance: str | None = None, **options: object
    ) -> None:
        self.stage, self.name, self.instance = stage, name, instance
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.beat(**options)

    def beat(self, **options: object) -> ConsumerGroupHeartbeatResponse:
        response = self.stage.beat(
            self.name,
            self.epoch,
            owned=self.owned,
            instance=self.instance,
            **options,  # type: ignore[arg-type] # the options of Stage.beat
        )
        if not response.error_code:
            self.epoch = response.member_epoch
            given = told(self.stage, response)
            self.owned = self.owned if given is None else given
        return response


def settle(*consumers: Consumer) -> None:
    for _ in range(4):
        for consumer in consumers:
            consumer.beat()


def test_the_first_member_gets_every_partition_at_once() -> None:
    stage = Stage(t=3)
    response = stage.beat("ann", 0)

    assert told(stage, response) == {"t": [0, 1, 2]}
    assert response.member_epoch == 1
    assert group_of(stage).state is GroupState.STABLE


def test_a_heartbeat_that_changes_nothing_writes_nothing_and_says_nothing_new() -> None:
    stage = Stage(t=3)
    ann = Consumer(stage, "ann")
    written = len(stage.log)

    response = stage.beat("ann", ann.epoch)

    assert response.assignment is None
    assert len(stage.log) == written
    assert len(stage.effects) == 2  # its session goes on, and the answer


def test_while_something_moves_members_are_asked_to_be_heard_more_often() -> None:
    stage = Stage(t=4)
    ann = Consumer(stage, "ann")
    assert ann.beat().heartbeat_interval_ms == 1000
    stage.pass_time(30_000)
    assert ann.beat().heartbeat_interval_ms == 5000
    bob = Consumer(stage, "bob")
    assert bob.beat().heartbeat_interval_ms == 1000
    settle(ann, bob)
    stage.pass_time(30_000)

    assert [c.beat().heartbeat_interval_ms for c in (ann, bob)] == [5000, 5000]


def test_a_partition_goes_to_a_newcomer_only_after_its_owner_let_go_of_it() -> None:
    stage = Stage(t=4)
    ann = Consumer(stage, "ann")
    bob = Consumer(stage, "bob")
    assert bob.owned == {}
    assert group_of(stage).state is GroupState.RECONCILING

    revoked = stage.beat("ann", ann.epoch, owned=ann.owned)
    assert told(stage, revoked) == {"t": [0, 1]}
    assert revoked.member_epoch == 1  # until it has given the others up
    assert told(stage, bob.beat()) in (None, {})

    released = stage.beat("ann", 1, owned={"t": [0, 1]})
    assert released.member_epoch == 2
    bob.beat()

    assert bob.owned == {"t": [2, 3]}
    assert group_of(stage).state is GroupState.STABLE


def test_members_that_keep_their_partitions_are_not_disturbed() -> None:
    stage = Stage(t=6)
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    settle(ann, bob)
    kept = {name: set(c.owned["t"]) for name, c in (("ann", ann), ("bob", bob))}

    cat = Consumer(stage, "cat")
    settle(ann, bob, cat)

    assert set(ann.owned["t"]) < kept["ann"]
    assert set(bob.owned["t"]) < kept["bob"]
    assert len(cat.owned["t"]) == 2


def test_a_member_that_leaves_leaves_its_partitions_to_the_others() -> None:
    stage = Stage(t=4)
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    settle(ann, bob)

    left = stage.beat("bob", -1)
    settle(ann)

    assert left.member_epoch == -1
    assert ann.owned == {"t": [0, 1, 2, 3]}


def test_a_silent_member_is_removed_after_the_session_timeout_of_the_broker() -> None:
    stage = Stage(Rules(consumer_session_timeout_ms=45_000), t=2)
    Consumer(stage, "ann")
    stage.pass_time(44_999)
    assert group_of(stage).members

    stage.pass_time(1)

    assert not group_of(stage).members
    assert code(stage.beat("ann", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_with_a_session_timeout_of_its_own_waits_for_as_long() -> None:
    stage = Stage(Rules(consumer_session_timeout_ms=45_000), t=2)
    stage.own_times[GROUP] = ConsumerTimes(60_000, 5000)
    ann = Consumer(stage, "ann")
    stage.pass_time(59_999)
    assert group_of(stage).members

    stage.own_times.clear()
    ann.beat()
    stage.pass_time(45_000)

    assert not group_of(stage).members, "the broker's own timeout rules from the next heartbeat on"


def test_a_member_that_does_not_give_up_its_partitions_in_time_is_removed() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann", rebalance_ms=20_000)
    bob = Consumer(stage, "bob")
    for _ in range(4):
        stage.beat("ann", ann.epoch, owned={"t": [0, 1]})  # it never lets go
        stage.beat("bob", bob.epoch, owned={})
        stage.pass_time(5000)

    assert set(group_of(stage).members) == {"bob"}
    bob.beat()
    assert bob.owned == {"t": [0, 1]}


# Epochs ------------------------------------------------------------------------------------------


def test_an_epoch_that_is_ahead_or_long_past_is_fenced() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")
    for topics in (["t", "u"], ["t"], ["t", "u"]):
        ann.beat(topics=topics)

    assert code(stage.beat("ann", ann.epoch + 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code(stage.beat("ann", 1, owned=ann.owned)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_whose_answer_was_lost_may_repeat_its_last_epoch() -> None:
    stage = Stage(t=2, u=1)
    ann = Consumer(stage, "ann")
    before = ann.epoch
    stage.beat("ann", before, topics=["t", "u"], owned={"t": [0, 1]})

    again = stage.beat("ann", before, topics=["t", "u"], owned={"t": [0, 1]}, rebalance_ms=30_000)

    assert code(again) is ErrorCode.NONE
    assert told(stage, again) == {"t": [0, 1], "u": [0]}


def test_the_last_epoch_is_not_good_for_one_who_works_on_what_is_no_longer_its_own() -> None:
    stage = Stage(t=2, u=1)
    ann = Consumer(stage, "ann", topics=["t", "u"])
    before, owned = ann.epoch, ann.owned
    ann.beat(topics=["t"])
    ann.beat()
    assert ann.epoch > before

    assert code(stage.beat("ann", before, owned=owned)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code(stage.beat("ann", before)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code(stage.beat("ann", before, owned=ann.owned)) is ErrorCode.NONE


def test_a_member_that_lost_everything_joins_again_under_its_own_id() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")
    ann.beat(topics=["t", "u"])
    ann.beat(topics=["t"])

    again = stage.beat("ann", 0)

    assert code(again) is ErrorCode.NONE
    assert told(stage, again) == {"t": [0, 1]}


@pytest.mark.parametrize(
    ("member", "epoch", "options"),
    [
        ("", 0, {}),
        ("ann", -3, {}),
        ("ann", -2, {}),
        ("", 1, {}),
        ("ann", 0, {"instance": " "}),
        ("ann", 0, {"owned": {"t": [1]}}),
        ("ann", 0, {"rebalance_ms": -1}),
        ("ann", 0, {"rebalance_ms": 0}),
        ("ann", 0, {"rebalance_ms": -2}),
        ("ann", 0, {"rebalance_ms": -(1 << 31)}),
    ],
)
def test_a_request_that_makes_no_sense_is_invalid_and_makes_no_group(
    member: str, epoch: int, options: dict[str, object]
) -> None:
    stage = Stage(t=2)
    response = stage.beat(member, epoch, **options)  # type: ignore[arg-type] # the options of Stage.beat

    assert code(response) is ErrorCode.INVALID_REQUEST
    assert response.error_message
    assert not stage.shard.groups


@pytest.mark.parametrize("rebalance_ms", [0, -2, -(1 << 31)])
def test_a_member_cannot_change_its_rebalance_timeout_to_nonsense(rebalance_ms: int) -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")
    written = len(stage.log)
    assert code(ann.beat(rebalance_ms=rebalance_ms)) is ErrorCode.INVALID_REQUEST
    assert len(stage.log) == written
    Consumer(stage, "bob")
    assert code(ann.beat()) is ErrorCode.NONE
    assert "ann" in group_of(stage).members, "it has its old time to give up what bob gets"


def test_the_longest_rebalance_timeout_holds_up_nobody_who_does_not_wait_for_it() -> None:
    """Java's max.poll.interval.ms may be as large as that."""
    stage = Stage(t=2)
    ann = Consumer(stage, "ann", rebalance_ms=(1 << 31) - 1)
    bob = Consumer(stage, "bob")
    settle(ann, bob)
    assert [len(it.owned["t"]) for it in (ann, bob)] == [1, 1]


def test_a_member_that_does_not_know_its_topics_yet_is_let_in() -> None:
    """As Java joins with a pattern of its own, before it has seen any topics."""
    stage = Stage(t=2)
    ann = Consumer(stage, "ann", topics=[])
    assert (ann.epoch, ann.owned) == (1, {})
    ann.beat(topics=["t"])

    assert ann.owned == {"t": [0, 1]}


def test_a_member_without_an_id_is_given_one_in_the_first_version() -> None:
    stage = Stage(t=1)

    assert stage.beat("", 0, version=0).member_id == "fresh0"


def test_what_is_not_there_is_not_found() -> None:
    stage = Stage(t=1)
    assert code(stage.beat("ann", 3)) is ErrorCode.GROUP_ID_NOT_FOUND
    Consumer(stage, "ann")
    assert code(stage.beat("bob", 3)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(stage.beat("bob", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(stage.beat("ann", 1, assignor="best")) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert code(stage.beat("ann", 1, pattern="(")) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_full_group_takes_nobody_in() -> None:
    stage = Stage(Rules(consumer_max_size=1), t=1)
    Consumer(stage, "ann")

    assert code(stage.beat("bob", 0)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(stage.beat("ann", 1)) is ErrorCode.NONE


# What the cluster does ---------------------------------------------------------------------------


def test_added_partitions_a_deleted_topic_and_a_new_one_are_seen_at_the_next_heartbeat() -> None:
    stage = Stage(t=2, u=1)
    ann = Consumer(stage, "ann", topics=["t", "u", "later"])

    stage.topics.put("t", topic_id("t"), 3)
    ann.beat()
    assert ann.owned == {"t": [0, 1, 2], "u": [0]}

    stage.topics.drop("u")
    ann.beat()
    ann.beat()
    assert ann.owned == {"t": [0, 1, 2]}

    stage.topics.put("later", topic_id("later"), 1)
    ann.beat()
    assert ann.owned == {"t": [0, 1, 2], "later": [0]}


def test_a_pattern_follows_the_topics_that_it_matches() -> None:
    stage = Stage(other=1)
    stage.topics.put("logs-a", topic_id("logs-a"), 1)
    ann = Consumer(stage, "ann", pattern="logs-.*")
    assert ann.owned == {"logs-a": [0]}

    stage.topics.put("logs-b", topic_id("logs-b"), 2)
    ann.beat()
    assert ann.owned == {"logs-a": [0], "logs-b": [0, 1]}

    ann.beat(pattern="other")
    ann.beat()
    assert ann.owned == {"other": [0]}
    assert set(group_of(stage).matches) == {"other"}


def test_a_pattern_that_is_stored_and_not_taken_any_more_matches_what_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older broker, or Kafka, took it; its group goes on, and so do all others of the shard."""
    stage = Stage(other=1)
    stage.topics.put("logs-a", topic_id("logs-a"), 1)
    ann = Consumer(stage, "ann", pattern="logs-.*")
    group_of(stage).patterns.clear()  # as after a replay
    monkeypatch.setattr(patterns, "MAX_STEPS", 1)
    recognise(group_of(stage))
    stage.topics.put("logs-b", topic_id("logs-b"), 2)
    ann.beat()
    assert ann.owned == {"logs-a": [0]}


def test_a_change_in_the_cluster_that_concerns_nobody_opens_no_epoch() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann")
    stage.topics.put("unrelated", topic_id("unrelated"), 5)
    ann.beat()

    assert group_of(stage).epoch == 1


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    stage = Stage(t=4, u=4)
    consumers = [
        Consumer(stage, name, topics=["t", "u"], assignor="range") for name in ("ann", "bob")
    ]
    settle(*consumers)

    assert [c.owned for c in consumers] == [{"t": [0, 1], "u": [0, 1]}, {"t": [2, 3], "u": [2, 3]}]


# Static members ----------------------------------------------------------------------------------


def test_a_static_member_that_leaves_for_a_while_finds_its_partitions_when_it_is_back() -> None:
    stage = Stage(t=4)
    ann = Consumer(stage, "ann", instance="i-1")
    bob = Consumer(stage, "bob", instance="i-2")
    settle(ann, bob)
    epoch, owned = group_of(stage).epoch, bob.owned

    stage.beat("bob", -2, instance="i-2")
    ann.beat()
    assert ann.owned == {"t": [0, 1]}
    back = Consumer(stage, "bob2", instance="i-2")

    assert back.owned == owned
    assert group_of(stage).epoch == epoch  # nobody else noticed


def test_an_instance_id_in_use_is_not_given_away_and_the_old_self_is_fenced() -> None:
    stage = Stage(t=2)
    Consumer(stage, "ann", instance="i-1")
    assert code(stage.beat("eve", 0, instance="i-1")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert code(stage.beat("eve", 5, instance="i-1")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(stage.beat("eve", 5, instance="i-2")) is ErrorCode.UNKNOWN_MEMBER_ID

    stage.beat("ann", -2, instance="i-1")
    Consumer(stage, "ann2", instance="i-1")

    assert code(stage.beat("ann", 1, instance="i-1")) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_does_not_come_back_is_removed_after_its_session() -> None:
    stage = Stage(t=2)
    Consumer(stage, "ann", instance="i-1")
    stage.beat("ann", -2, instance="i-1")
    stage.pass_time(45_000)

    assert not group_of(stage).members
    assert not group_of(stage).owners


# After a crash -----------------------------------------------------------------------------------


def test_members_go_on_where_they_were_after_the_coordinator_was_lost() -> None:
    stage = Stage(t=4)
    ann, bob = Consumer(stage, "ann"), Consumer(stage, "bob")
    stage.crash()
    settle(ann, bob)

    assert (ann.owned, bob.owned) == ({"t": [0, 1]}, {"t": [2, 3]})
    assert group_of(stage).state is GroupState.STABLE


def test_the_deadline_for_giving_up_partitions_survives_a_crash() -> None:
    stage = Stage(t=2)
    ann = Consumer(stage, "ann", rebalance_ms=20_000)
    Consumer(stage, "bob")
    stage.beat("ann", ann.epoch, owned={"t": [0, 1]})
    stage.crash()
    stage.pass_time(20_000)

    assert set(group_of(stage).members) == {"bob"}
