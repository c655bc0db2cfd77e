"""AlterPartition: what a leader may change, what it is refused, and what the change rests on."""

from typing import Any

import pytest

from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.isr_changes import IsrChange, Member, alter_partition
from penstock.metadata.rules.registration import begin_shutdown
from penstock.metadata.store import Compare, Revision
from penstock.metadata.values import PartitionImage, chunk_key, live_key
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicId
from tests.unit.metadata.worlds import World, come_back, lose, partition, world_with

FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))
TWO = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2))


def change(world: World, isr: tuple[int, ...], number: int = 0, **fields: Any) -> IsrChange:
    """Asked for on the ground of the present state, and of the present sessions."""
    topic = world.image.topics["t"]
    now = topic.partitions[number]
    members = tuple(
        Member(it, world.image.brokers[it].epoch if it in world.image.brokers else -1) for it in isr
    )
    asked = IsrChange(topic.id, number, now.leader_epoch, now.partition_epoch, members)
    return asked._replace(**fields)


def ask(
    world: World, *changes: IsrChange, by: int = 1
) -> list[Decision[PartitionImage] | BrokerError]:
    epoch = world.image.brokers[by].epoch
    return alter_partition(world.image, world.rules, by, epoch, changes)


def alter(world: World, *changes: IsrChange, by: int = 1) -> None:
    for outcome in ask(world, *changes, by=by):
        assert isinstance(outcome, Decision), outcome
        world.carry_out(outcome)


def test_the_isr_shrinks_and_grows_without_a_new_reign() -> None:
    world = world_with(FULL)
    alter(world, change(world, (1, 2)))
    assert partition(world) == PartitionImage(1, 5, 8, (1, 2, 3), (1, 2))
    alter(world, change(world, (1,)))
    assert partition(world) == PartitionImage(1, 5, 9, (1, 2, 3), (1,), (2,))
    alter(world, change(world, (1, 3)))
    assert partition(world) == PartitionImage(1, 5, 10, (1, 2, 3), (1, 3))


def test_all_that_lag_at_once_stay_eligible_when_too_few_are_left() -> None:
    world = world_with(FULL)
    alter(world, change(world, (1,)))
    assert partition(world) == PartitionImage(1, 5, 8, (1, 2, 3), (1,), (2, 3))


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"topic_id": TopicId(bytes(16))}, ErrorCode.UNKNOWN_TOPIC_ID, "no topic has the id"),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "has 1 partitions"),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "has 1 partitions"),
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH, "t-0 is at leader epoch 5"),
        ({"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER, "this controller is behind"),
        ({"partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION, "t-0 is at partition epoch 7"),
        ({"partition_epoch": 8}, ErrorCode.NOT_CONTROLLER, "this controller is behind"),
        ({"new_isr": (Member(1), Member(1))}, ErrorCode.INVALID_REQUEST, "named twice"),
        ({"new_isr": (Member(1), Member(4))}, ErrorCode.INVALID_REQUEST, "replicas are [1, 2, 3]"),
        ({"new_isr": (Member(2), Member(3))}, ErrorCode.INVALID_REQUEST, "the leader 1 must be"),
        ({"new_isr": ()}, ErrorCode.INVALID_REQUEST, "the leader 1 must be"),
        ({"recovering": True}, ErrorCode.INVALID_REQUEST, "does not begin to recover"),
        ({"new_isr": (Member(1), Member(3, 999))}, ErrorCode.INELIGIBLE_REPLICA, "knows 999"),
        ({"new_isr": (Member(1), Member(2, 999))}, ErrorCode.INELIGIBLE_REPLICA, "knows 999"),
        # what is wrong in many ways is refused for the first of them
        (
            {"leader_epoch": 4, "partition_epoch": 6, "new_isr": ()},
            ErrorCode.FENCED_LEADER_EPOCH,
            "",
        ),
        ({"partition_epoch": 6, "new_isr": ()}, ErrorCode.INVALID_UPDATE_VERSION, ""),
    ],
)
def test_what_cannot_be_is_refused_with_kafkas_code(
    fields: dict[str, Any], code: ErrorCode, says: str
) -> None:
    world = world_with(TWO)
    (outcome,) = ask(world, change(world, (1, 2, 3), **fields))
    assert isinstance(outcome, BrokerError)
    assert outcome.code is code
    assert says in str(outcome)


def test_only_the_leader_is_heard_and_only_in_its_present_session() -> None:
    world = world_with(TWO)
    (outcome,) = ask(world, change(world, (1, 2, 3)), by=2)
    assert isinstance(outcome, BrokerError)
    assert outcome.code is ErrorCode.INVALID_REQUEST
    for broker_id, epoch in ((1, 999), (9, 1)):
        with pytest.raises(BrokerError) as refused:
            alter_partition(world.image, world.rules, broker_id, epoch, [])
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_replica_joins_only_while_it_may_lead_and_in_the_session_that_caught_up() -> None:
    world = world_with(TWO)
    asked = change(world, (1, 2, 3))
    (outcome,) = ask(world, asked)
    assert isinstance(outcome, Decision)
    epoch = Revision(world.image.brokers[3].epoch)
    assert Compare(live_key(3), create_revision=epoch) in outcome.compares
    assert all(compare.key != live_key(2) for compare in outcome.compares)
    world.start(3)
    with pytest.raises(AssertionError):
        world.carry_out(outcome)
    (late,) = ask(world, asked)
    assert isinstance(late, BrokerError)
    assert late.code is ErrorCode.INELIGIBLE_REPLICA
    (fenced,) = ask(world, change(world, (1, 2, 3)))
    assert "it is fenced" in str(fenced)
    come_back(world, 3)
    world.carry_out_all(begin_shutdown(world.image, 3, world.rules))
    (leaving,) = ask(world, change(world, (1, 2, 3)))
    assert "it is shutting down" in str(leaving)
    unknown = change(world, (1, 2, 3))._replace(new_isr=(Member(1), Member(2), Member(3)))
    come_back(world, 3)
    (decided,) = ask(world, unknown)
    assert isinstance(decided, Decision)
    assert live_key(3) in [compare.key for compare in decided.compares]


def test_a_lost_answer_is_given_again_and_changes_nothing() -> None:
    world = world_with(FULL)
    asked = change(world, (1, 2))
    alter(world, asked)
    (again,) = ask(world, asked)
    assert isinstance(again, Decision)
    assert not again.writes
    assert again.result == partition(world)
    (other,) = ask(world, asked._replace(new_isr=(Member(1),)))
    assert isinstance(other, BrokerError)
    assert other.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("ending", ["clean", "process-crash", "power-loss"])
def test_so_it_is_if_a_member_has_begun_another_session_meanwhile(ending: str) -> None:
    """The change is committed: a leader that was told otherwise would no longer wait for that member."""
    world = world_with(TWO)
    asked = change(world, (1, 2, 3))
    alter(world, asked)
    world.stop(3)
    world.start(3, ending)
    (again,) = ask(world, asked)
    assert isinstance(again, Decision)
    assert not again.writes
    assert again.result == partition(world)


def test_partitions_of_one_chunk_share_its_write() -> None:
    world = world_with(*[FULL] * 5)
    asked = [change(world, (1, 2), number) for number in range(5)]
    asked[3] = asked[3]._replace(leader_epoch=1)
    outcomes = ask(world, *asked)
    decided = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
    assert [len(decision.writes) for decision in decided] == [1, 0, 0, 0]
    world.carry_out_all(decided)
    assert [len(partition(world, number).isr) for number in range(5)] == [2, 2, 2, 3, 2]
    assert [decision.result for decision in decided] == [partition(world, n) for n in (0, 1, 2, 4)]


def test_a_chunk_is_written_once_whatever_the_order_of_the_request() -> None:
    world = World({1: None, 2: None, 3: None})
    world.create(TopicSpec("t", assignments=dict.fromkeys(range(70), (1, 2, 3))))
    outcomes = ask(world, *(change(world, (1, 2), number) for number in (0, 64, 1, 65)))
    assert [isinstance(outcome, Decision) for outcome in outcomes] == [True, True, False, False]
    assert {it.code for it in outcomes if isinstance(it, BrokerError)} == {
        ErrorCode.REQUEST_TIMED_OUT
    }
    keys = [write for it in outcomes if isinstance(it, Decision) for write in it.writes]
    topic_id = world.image.topics["t"].id
    assert [key[0] for key in keys] == [chunk_key(topic_id, 0), chunk_key(topic_id, 1)]


def test_a_leader_that_was_elected_uncleanly_is_alone_until_it_has_recovered() -> None:
    world = world_with(
        PartitionImage(1, 5, 7, (1, 2, 3), (1,)), config={"unclean.leader.election.enable": "true"}
    )
    lose(world, 1)
    assert partition(world).recovering
    early = change(world, (2, 3), recovering=True)
    (refused,) = ask(world, early, by=2)
    assert isinstance(refused, BrokerError)
    assert "alone" in str(refused)
    alter(world, change(world, (2,)), by=2)
    assert not partition(world).recovering
    alter(world, change(world, (2, 3)), by=2)
    assert partition(world).isr == (2, 3)
