"""Who leads after a loss of power everywhere: the replica with the most, when all that were in sync are back."""

import pytest

from penstock.metadata.rules.unclean_recovery import (
    LogEnd,
    ReplicaLogEnds,
    partitions_to_recover,
    recover_leaders,
)
from penstock.metadata.values import PartitionImage
from penstock.model.ids import TopicPartition
from tests.unit.metadata.worlds import (
    THREE,
    World,
    come_back,
    partition,
    register,
    unfence,
    world_with,
)

AT = TopicPartition("t", 0)
IN_SYNC = PartitionImage(2, 5, 7, (1, 2, 3), (2, 3))


def blackout(*back: int, state: PartitionImage = IN_SYNC) -> World:
    """All lose power; those given come back."""
    world = world_with(state)
    for broker_id in THREE:
        world.stop(broker_id)
    for broker_id in back:
        come_back(world, broker_id, "power-loss")
    return world


def log_ends(world: World, ends: dict[int, LogEnd]) -> ReplicaLogEnds:
    sessions = {broker_id: world.image.brokers[broker_id].epoch for broker_id in ends}
    return ReplicaLogEnds(sessions, {AT: ends})


def lead(world: World, ends: dict[int, LogEnd]) -> PartitionImage:
    world.carry_out_all(recover_leaders(world.image, world.rules, log_ends(world, ends)))
    return partition(world)


@pytest.mark.parametrize(
    ("ends", "best"),
    [
        ({2: LogEnd(5, 100), 3: LogEnd(5, 101)}, 3),
        ({2: LogEnd(5, 101), 3: LogEnd(5, 100)}, 2),
        (
            {2: LogEnd(4, 900), 3: LogEnd(5, 100)},
            3,
        ),  # what an older epoch wrote further on was never committed
        ({2: LogEnd(5, 100), 3: LogEnd(5, 100)}, 2),  # alike: the first of the replicas
    ],
)
def test_the_log_with_the_latest_epoch_then_the_longest_leads(
    ends: dict[int, LogEnd], best: int
) -> None:
    world = blackout(1, 2, 3)
    assert partitions_to_recover(world.image, world.rules) == {AT: (2, 3)}
    before = partition(world)
    now = lead(world, ends)
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (best, (best,), (), ())
    assert now.recovering
    assert now.leader_epoch == before.leader_epoch + 1
    assert partitions_to_recover(world.image, world.rules) == {}


def test_nobody_is_asked_before_all_who_were_in_sync_are_back() -> None:
    world = blackout(1, 2)
    assert partitions_to_recover(world.image, world.rules) == {}
    come_back(world, 3, "power-loss")
    assert partitions_to_recover(world.image, world.rules) == {AT: (2, 3)}
    assert lead(world, {2: LogEnd(5, 9)}).leader == -1, "one of them could not say"


def test_where_one_is_known_to_have_everything_there_is_nothing_to_ask() -> None:
    world = blackout(1, 2)
    come_back(world, 3, "clean")
    assert partition(world).leader == 3
    assert partitions_to_recover(world.image, world.rules) == {}


def test_a_replica_that_lost_its_disk_is_not_waited_for() -> None:
    world = blackout(1, 2)
    world.start(3, directory="other")
    register(world, 3)
    unfence(world, 3)
    assert partitions_to_recover(world.image, world.rules) == {AT: (2,)}


def test_an_operator_may_reserve_the_decision() -> None:
    world = blackout(1, 2, 3)
    world.static = {"unclean.recovery.strategy": "none"}
    assert partitions_to_recover(world.image, world.rules) == {}


def test_what_a_broker_said_before_it_restarted_counts_no_more() -> None:
    world = blackout(1, 2, 3)
    said = log_ends(world, {2: LogEnd(5, 100), 3: LogEnd(5, 1)})
    come_back(world, 2, "power-loss")
    (decision,) = recover_leaders(world.image, world.rules, said)
    with pytest.raises(AssertionError):
        world.carry_out(decision)
