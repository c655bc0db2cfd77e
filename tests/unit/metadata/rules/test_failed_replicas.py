"""What becomes of a partition when a broker says that its own log of it is damaged."""

from collections.abc import Mapping

import pytest

from penstock.metadata.rules.failed_replicas import fail_replicas
from penstock.metadata.rules.registration import begin_shutdown
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import World, come_back, lose, partition, world_with

AT = TopicPartition("t", 0)
FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))
ALONE = PartitionImage(1, 5, 7, (1, 2, 3), (1,))


def fail(
    world: World, broker_id: int, *places: TopicPartition, is_lost: bool = True
) -> Mapping[TopicPartition, BrokerError | None]:
    epoch = world.image.brokers[broker_id].epoch
    answers = fail_replicas(
        world.image, world.rules, broker_id, epoch, dict.fromkeys(places or (AT,), is_lost)
    )
    world.carry_out_all(answers.decisions)
    return answers.errors


def test_a_leader_leaves_the_isr_and_the_next_in_sync_leads_in_a_new_epoch() -> None:
    world = world_with(FULL)
    assert fail(world, 1) == {AT: None}
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))


def test_a_follower_leaves_the_isr_and_the_leader_stays_and_forgets_what_it_had() -> None:
    world = world_with(FULL)
    fail(world, 3)
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2, 3), (1, 2))


def test_who_is_damaged_is_not_eligible_where_too_few_are_left_in_sync() -> None:
    """Anyone else who leaves would be."""
    world = world_with(FULL._replace(isr=(1, 2)))
    fail(world, 2)
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2, 3), (1,))


def test_a_leader_does_not_yield_where_too_few_others_are_in_sync() -> None:
    """Its log is whole. Another member may have gone since it looked, and that one would have all by itself."""
    world = world_with(FULL._replace(isr=(1, 2)))
    (error,) = fail(world, 1, is_lost=False).values()
    assert isinstance(error, BrokerError)
    assert partition(world) == FULL._replace(isr=(1, 2))


def test_a_leader_yields_where_enough_others_are_in_sync() -> None:
    world = world_with(FULL)
    assert fail(world, 1, is_lost=False) == {AT: None}
    assert (partition(world).leader, partition(world).isr) == (2, (2, 3))


def test_one_that_is_only_eligible_is_so_no_longer() -> None:
    world = world_with(ALONE._replace(elr=(2, 3)))
    fail(world, 2)
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2, 3), (1,), (3,))


def test_the_last_in_sync_gives_way_to_one_that_is_eligible() -> None:
    world = world_with(ALONE._replace(elr=(3,)))
    assert fail(world, 1) == {AT: None}
    assert partition(world) == PartitionImage(3, 6, 8, (1, 2, 3), (3,))


def test_the_last_in_sync_gives_way_to_an_eligible_one_that_is_yet_to_come_back() -> None:
    world = world_with(FULL._replace(isr=(1, 3)))
    lose(world, 3)
    assert partition(world).elr == (3,)
    fail(world, 1)
    assert (partition(world).leader, partition(world).isr, partition(world).elr) == (-1, (), (3,))
    come_back(world, 3, "process-crash")
    assert (partition(world).leader, partition(world).isr) == (3, (3,))


def test_the_last_that_has_everything_stays_and_is_told_why() -> None:
    """There is nobody to build it anew from; an operator shall see it."""
    world = world_with(ALONE)
    (error,) = fail(world, 1).values()
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "no other replica of [1, 2, 3] has all that is committed" in str(error)
    assert partition(world) == ALONE


def test_a_single_replica_stays() -> None:
    only = PartitionImage(1, 5, 7, (1,), (1,))
    world = world_with(only)
    (error,) = fail(world, 1).values()
    assert error is not None
    assert partition(world) == only


def test_it_stays_so_also_where_unclean_elections_are_allowed() -> None:
    """Who lacks messages is no better than who has damaged ones."""
    world = world_with(ALONE, config={"unclean.leader.election.enable": "true"})
    (error,) = fail(world, 1).values()
    assert error is not None
    assert partition(world) == ALONE


def test_the_leader_forgets_also_one_that_is_out_of_sync_already() -> None:
    """It may have asked to take it in, by what it had."""
    world = world_with(FULL._replace(isr=(1, 2)))
    assert fail(world, 3) == {AT: None}
    assert partition(world) == PartitionImage(1, 6, 8, (1, 2, 3), (1, 2))


def test_of_a_log_that_is_kept_nothing_is_forgotten() -> None:
    world = world_with(FULL)
    fail(world, 3, is_lost=False)
    assert partition(world) == PartitionImage(1, 5, 8, (1, 2, 3), (1, 2))
    before = world.revision
    fail(world, 3, is_lost=False)
    assert world.revision == before, "nothing is written"


def test_said_twice_it_changes_nobody_else() -> None:
    world = world_with(FULL)
    fail(world, 1)
    after = partition(world)
    assert fail(world, 1) == {AT: None}
    assert partition(world)._replace(leader_epoch=6, partition_epoch=8) == after


def test_one_that_is_about_to_stop_does_not_take_over() -> None:
    world = world_with(FULL)
    world.carry_out_all(begin_shutdown(world.image, 2, world.rules))
    fail(world, 1)
    assert partition(world).leader == 3


def test_of_many_partitions_each_is_decided_by_itself() -> None:
    world = world_with(FULL, ALONE, FULL._replace(leader=2))
    places = [TopicPartition("t", index) for index in range(4)]
    errors = fail(world, 1, *places)
    codes = [None if error is None else error.code for error in errors.values()]
    assert codes == [
        None,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [partition(world, index).leader for index in range(3)] == [2, 1, 2]
    assert [partition(world, index).isr for index in range(3)] == [(2, 3), (1,), (2, 3)]


@pytest.mark.parametrize(("broker_id", "epoch"), [(1, -1), (9, 1)])
def test_only_a_broker_in_its_present_session_is_heard(broker_id: int, epoch: int) -> None:
    world = world_with(FULL)
    with pytest.raises(BrokerError) as refused:
        fail_replicas(world.image, world.rules, broker_id, epoch, {AT: True})
    assert refused.value.code in (
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    )
