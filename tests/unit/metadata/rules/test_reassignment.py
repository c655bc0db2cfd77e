"""Replicas on the move: from the request to the end, and back."""

from collections import Counter
from collections.abc import Sequence

import pytest

from penstock.metadata.rules.controller import TopicSpec, automatic_topic
from penstock.metadata.rules.internal_topics import raise_internal_replication
from penstock.metadata.rules.isr_changes import IsrChange, Member, alter_partition
from penstock.metadata.rules.partition_rules import effective_min_isr
from penstock.metadata.rules.reassignment import (
    alter_reassignments,
    complete_reassignments,
    reassignments,
)
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import World, lose, partition, world_with

AT = TopicPartition("t", 0)
FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))


def six(row: PartitionImage = FULL) -> World:
    world = world_with(row)
    for broker_id in (4, 5, 6):
        world.add_broker(broker_id)
    return world


def move(world: World, *replicas: int) -> BrokerError | None:
    return ask(world, replicas)


def call_off(world: World) -> BrokerError | None:
    return ask(world, None)


def ask(world: World, replicas: Sequence[int] | None, *, factor: bool = True) -> BrokerError | None:
    answers = alter_reassignments(
        world.image, world.rules, {AT: replicas}, allow_factor_change=factor
    )
    world.carry_out_all(answers.decisions)
    return answers.errors[AT]


def in_sync(world: World, *isr: int, name: str = "t", number: int = 0) -> None:
    topic = world.image.topics[name]
    now = topic.partitions[number]
    members = tuple(Member(broker_id) for broker_id in isr)
    asked = IsrChange(topic.id, number, now.leader_epoch, now.partition_epoch, members)
    epoch = world.image.brokers[now.leader].epoch
    (outcome,) = alter_partition(world.image, world.rules, now.leader, epoch, [asked])
    assert not isinstance(outcome, BrokerError), outcome
    world.carry_out(outcome)


def test_replicas_are_added_first_and_taken_away_when_the_new_ones_are_in_sync() -> None:
    world = six()
    assert move(world, 4, 5, 6) is None
    moving = PartitionImage(
        1, 5, 8, (4, 5, 6, 1, 2, 3), (1, 2, 3), adding=(4, 5, 6), removing=(1, 2, 3)
    )
    assert partition(world) == moving
    assert reassignments(world.image) == {AT: moving}
    assert reassignments(world.image, [TopicPartition("t", 1), AT]) == {AT: moving}
    assert reassignments(world.image, [TopicPartition("t", 1)]) == {}
    in_sync(world, 1, 2, 3, 4, 5)
    assert partition(world).removing == (1, 2, 3)
    assert complete_reassignments(world.image, world.rules) == []
    in_sync(world, 1, 4, 5, 6)
    assert partition(world) == PartitionImage(4, 6, 10, (4, 5, 6), (4, 5, 6))
    assert reassignments(world.image) == {}


def test_a_leader_that_stays_begins_a_new_reign_when_replicas_were_taken_away() -> None:
    world = six()
    move(world, 2, 1, 4)
    in_sync(world, 1, 2, 3, 4)
    assert partition(world) == PartitionImage(1, 6, 9, (2, 1, 4), (2, 1, 4))


def test_more_replicas_need_no_new_reign() -> None:
    world = six()
    move(world, 1, 2, 3, 4)
    in_sync(world, 1, 2, 3, 4)
    assert partition(world) == PartitionImage(1, 5, 9, (1, 2, 3, 4), (1, 2, 3, 4))


def test_what_needs_no_copy_is_done_at_once() -> None:
    world = six()
    move(world, 3, 2, 1)
    assert partition(world) == PartitionImage(1, 5, 8, (3, 2, 1), (1, 2, 3))
    move(world, 3, 2)
    assert partition(world) == PartitionImage(3, 6, 9, (3, 2), (2, 3))
    before = partition(world)
    assert move(world, 3, 2) is None
    assert partition(world) == before


def test_the_last_replicas_in_sync_are_kept_until_others_are() -> None:
    world = six(FULL._replace(isr=(1, 2)))
    move(world, 1, 3)
    assert partition(world).removing == (2,), "one alone could not commit"
    in_sync(world, 1, 2, 3)
    assert partition(world) == PartitionImage(1, 6, 9, (1, 3), (1, 3))
    world = six(FULL._replace(isr=(1,)))
    move(world, 2, 3)
    assert partition(world).replicas == (2, 3, 1)
    in_sync(world, 1, 2)
    assert partition(world).leader == 1
    in_sync(world, 1, 2, 3)
    assert partition(world) == PartitionImage(2, 6, 10, (2, 3), (2, 3))


def test_a_move_ends_when_the_replica_that_it_waited_for_is_lost() -> None:
    world = six(FULL._replace(isr=(1, 2)))
    move(world, 1, 3)
    assert complete_reassignments(world.image, world.rules) == []
    lose(world, 2)
    world.carry_out_all(complete_reassignments(world.image, world.rules))
    now = partition(world)
    assert (now.replicas, now.isr, now.elr) == ((1, 3), (1,), ())


def test_a_move_that_is_called_off_leaves_what_was() -> None:
    world = six()
    error = call_off(world)
    assert error is not None
    assert error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(world, 4, 5, 6)
    in_sync(world, 1, 2, 3, 4)
    assert call_off(world) is None
    now = partition(world)
    assert (set(now.replicas), set(now.isr), now.leader) == ({1, 2, 3}, {1, 2, 3}, 1)
    assert (now.adding, now.removing, now.leader_epoch) == ((), (), 6)


def test_a_move_cannot_be_called_off_when_only_the_new_replicas_have_all_data() -> None:
    world = six()
    move(world, 4, 5, 6)
    in_sync(world, 1, 4)
    lose(world, 1)
    assert partition(world).leader == 4
    error = call_off(world)
    assert error is not None
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "only brokers [4] have all data of t-0" in str(error)


def test_a_new_target_takes_the_place_of_the_old_one() -> None:
    world = six()
    move(world, 4, 5, 6)
    in_sync(world, 1, 2, 3, 4)
    move(world, 1, 4, 6)
    now = partition(world)
    assert now.replicas == (1, 4, 6, 2, 3)
    assert (now.adding, now.removing) == ((4, 6), (2, 3))
    assert set(now.isr) == {1, 2, 3, 4}
    in_sync(world, 1, 2, 3, 4, 6)
    assert (partition(world).replicas, set(partition(world).isr)) == ((1, 4, 6), {1, 4, 6})


@pytest.mark.parametrize(
    ("replicas", "code", "says"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is empty"),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "named twice"),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "brokers [9]: registered are [1, 2, 3"),
        ((1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "its replication factor, 3"),
    ],
)
def test_a_target_that_cannot_be_is_refused(
    replicas: tuple[int, ...], code: ErrorCode, says: str
) -> None:
    world = six()
    error = ask(world, replicas, factor=False)
    assert error is not None
    assert error.code is code
    assert says in str(error)
    unknown = TopicPartition("x", 0)
    answers = alter_reassignments(world.image, world.rules, {unknown: [1]})
    refused = answers.errors[unknown]
    assert refused is not None
    assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_replicas_that_are_being_added_do_not_count_for_min_isr() -> None:
    world = six(PartitionImage(1, 5, 7, (1,), (1,)))
    move(world, 1, 2, 3)
    assert effective_min_isr(2, partition(world)) == 1
    in_sync(world, 1, 2, 3)
    assert effective_min_isr(2, partition(world)) == 2


def test_internal_topics_grow_with_the_cluster_and_are_led_by_all() -> None:
    world = World({1: "a"})
    names = "__consumer_offsets", "__transaction_state"
    world.create(*(automatic_topic(world.image, name, world.rules) for name in names))
    world.create(TopicSpec("t", 3))
    assert raise_internal_replication(world.image, world.rules) == []
    world.add_broker(2, "b")
    world.add_broker(3, "b")
    world.add_broker(4, "c")
    world.carry_out_all(raise_internal_replication(world.image, world.rules))
    for name in names:
        topic = world.image.topics[name]
        assert topic.config["min.insync.replicas"] == "2"
        assert topic.config["cleanup.policy"] == "compact"
        for row in topic.partitions:
            assert (row.leader, row.isr, row.leader_epoch) == (1, (1,), 0)
            assert len(row.adding) == 2
            assert {2, 3} - set(row.adding), "racks differ"
    assert raise_internal_replication(world.image, world.rules) == []
    for name in names:
        for number, row in enumerate(world.image.topics[name].partitions):
            in_sync(world, *row.replicas, name=name, number=number)
        rows = world.image.topics[name].partitions
        assert {row.leader_epoch for row in rows} == {0}
        preferred = Counter(row.replicas[0] for row in rows)
        assert max(preferred.values()) - min(preferred.values()) < 10
    assert world.image.topics["t"].replication_factor == 1
    assert raise_internal_replication(world.image, world.rules) == []


def test_internal_topics_grow_as_far_as_there_are_running_brokers() -> None:
    world = World({1: None})
    world.create(automatic_topic(world.image, "__consumer_offsets", world.rules))
    world.add_broker(2)
    world.add_broker(3, running=False)
    world.carry_out_all(raise_internal_replication(world.image, world.rules))
    rows = world.image.topics["__consumer_offsets"].partitions
    assert {frozenset(row.replicas) for row in rows} == {frozenset({1, 2})}


ELIGIBLE = PartitionImage(1, 5, 7, (1, 2, 3), (1,), (2,))


def test_a_topic_that_loses_replicas_loses_who_is_eligible_by_its_old_law_only() -> None:
    world = world_with(FULL, ELIGIBLE)
    answers = alter_reassignments(world.image, world.rules, {AT: (1, 2)})
    world.carry_out_all(answers.decisions)
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2), (1, 2))
    assert partition(world, 1) == PartitionImage(1, 5, 8, (1, 2, 3), (1,)), "one now suffices"


def test_a_change_of_one_isr_does_not_end_a_move_that_changes_the_law_of_others() -> None:
    world = world_with(FULL, ELIGIBLE)
    for broker_id in (4, 5):
        world.add_broker(broker_id)
    answers = alter_reassignments(world.image, world.rules, {AT: (4, 5)})
    world.carry_out_all(answers.decisions)
    in_sync(world, 1, 2, 3, 4, 5)
    assert partition(world).adding == (4, 5)
    world.carry_out_all(complete_reassignments(world.image, world.rules))
    assert (partition(world).leader, partition(world).replicas) == (4, (4, 5))
    assert partition(world, 1).elr == ()
    world = world_with(FULL, FULL)
    world.add_broker(4)
    world.carry_out_all(alter_reassignments(world.image, world.rules, {AT: (4, 1)}).decisions)
    in_sync(world, 1, 2, 3, 4)
    assert partition(world).replicas == (4, 1), "nobody is eligible by the old law"
