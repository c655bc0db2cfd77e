"""Elections by hand and for balance."""

from collections import Counter

import pytest

from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource, alter_configs
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.elections import (
    ElectionKind,
    balance_leaders,
    elect_leaders,
)
from penstock.metadata.rules.partition_edits import Answers
from penstock.metadata.values import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import THREE, World, come_back, lose, partition, world_with

AT = TopicPartition("t", 0)


def elect(world: World, kind: ElectionKind, *at: TopicPartition) -> Answers:
    answers = elect_leaders(world.image, world.rules, kind, at or None)
    world.carry_out_all(answers.decisions)
    return answers


def codes(answers: Answers) -> list[ErrorCode | None]:
    return [error.code if error else None for error in answers.errors.values()]


@pytest.mark.parametrize("kind", ElectionKind)
def test_a_partition_that_does_not_exist_is_not_elected_for(kind: ElectionKind) -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    unknown = TopicPartition("x", 0), TopicPartition("t", 1), TopicPartition("t", -1)
    answers = elect(world, kind, *unknown)
    assert codes(answers) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert not answers.decisions


def test_the_preferred_leader_takes_over_when_it_is_in_sync() -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    assert codes(elect(world, ElectionKind.PREFERRED, AT)) == [None]
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2, 3), (1, 2))
    assert codes(elect(world, ElectionKind.PREFERRED, AT)) == [ErrorCode.ELECTION_NOT_NEEDED]
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (2, 3)))
    refused = [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert codes(elect(world, ElectionKind.PREFERRED, AT)) == refused
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2, 3)))
    world.stop(1)
    assert codes(elect(world, ElectionKind.PREFERRED, AT)) == refused


def test_asked_for_all_only_those_are_answered_where_there_was_something_to_elect() -> None:
    rows = PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)), PartitionImage(1, 5, 7, (1, 2, 3), (1, 2))
    world = world_with(*rows)
    answers = elect(world, ElectionKind.PREFERRED)
    assert answers.errors == {AT: None}
    assert len(answers.decisions) == 1


def test_an_unclean_election_is_for_partitions_that_nobody_else_can_lead() -> None:
    world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1,)))
    assert codes(elect(world, ElectionKind.UNCLEAN, AT)) == [ErrorCode.ELECTION_NOT_NEEDED]
    lose(world, 1, 2, 3)
    refused = [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert codes(elect(world, ElectionKind.UNCLEAN, AT)) == refused
    come_back(world, 3)
    assert partition(world).leader == -1
    assert codes(elect(world, ElectionKind.UNCLEAN, AT)) == [None]
    now = partition(world)
    assert (now.leader, now.isr, now.elr, now.recovering) == (3, (3,), (), True)


def test_leaders_are_balanced_after_a_broker_came_back_a_few_at_a_time() -> None:
    world = World(THREE)
    (topic,) = world.create(TopicSpec("t", 30, 3))
    assert balance_leaders(world.image, world.rules, max_moves=100) == []
    lose(world, 1)
    assert balance_leaders(world.image, world.rules, max_moves=100) == []
    come_back(world, 1)
    assert balance_leaders(world.image, world.rules, max_moves=100) == [], "not in sync yet"
    world = world_with(*[PartitionImage(2, 5, 7, (1, 2, 3), (1, 2, 3))] * 30)
    world.carry_out_all(balance_leaders(world.image, world.rules, max_moves=7))
    leaders = Counter(row.leader for row in world.image.topics["t"].partitions)
    assert leaders == {2: 23, 1: 7}
    while moves := balance_leaders(world.image, world.rules, max_moves=7):
        world.carry_out_all(moves)
    leaders = Counter(row.leader for row in world.image.topics["t"].partitions)
    assert leaders == {1: 28, 2: 2}, "up to a tenth is tolerated, to spare clients the change"
    assert topic.replication_factor == 3


def test_who_may_lack_data_since_the_law_became_milder_is_no_longer_eligible() -> None:
    eligible = PartitionImage(1, 5, 7, (1, 2, 3), (1,), (2,))
    for resource, name in ((Resource.TOPIC, "t"), (Resource.BROKER, "")):
        world = world_with(eligible)
        for min_isr, after in (("2", eligible), ("1", PartitionImage(1, 5, 8, (1, 2, 3), (1,)))):
            ops = [ConfigOp("min.insync.replicas", Op.SET, min_isr)]
            world.carry_out(alter_configs(world.image, resource, name, ops, world.layers))
            assert partition(world) == after
