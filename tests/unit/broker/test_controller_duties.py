import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock.broker.controller_duties import Duties
from penstock.metadata.decisions import Decision, Rules
from penstock.metadata.image import ClusterImage
from penstock.metadata.values import PartitionImage
from tests.unit.metadata.worlds import World, partition, world_with


class Office:
    """The controller's view and its commits, on a cluster on paper; `meanwhile` happens during a commit."""

    broker_id = 1
    holds_office = True

    def __init__(self, world: World, meanwhile: Callable[[], None]) -> None:
        self._world = world
        self._meanwhile = meanwhile

    @property
    def image(self) -> ClusterImage:
        return self._world.image

    @property
    def rules(self) -> Rules:
        return self._world.rules

    def on_change(self, listener: object) -> None:
        """Nobody is told: the test says when to attend."""

    async def attend(self) -> None:
        """No upkeep."""

    async def commit_all(
        self, decide: Callable[[], Sequence[Decision[None]]]
    ) -> Sequence[Decision[None]]:
        decisions = decide()
        self._world.carry_out_all(decisions)
        self._meanwhile()
        return decisions

    commit_fast = commit_all


def test_a_broker_that_comes_while_another_is_registered_is_registered_next() -> None:
    world = World({1: None})
    world.start(2)
    coming = [3]

    def meanwhile() -> None:
        if coming:
            world.start(coming.pop())

    office = cast(Any, Office(world, meanwhile))
    duties = Duties(office, office, office, wake=lambda: None, patience_ms=0)
    asyncio.run(duties.attend())
    assert set(world.image.registrations) == {1, 2}
    asyncio.run(duties.attend())
    assert set(world.image.registrations) == {1, 2, 3}


def test_a_broker_whose_disk_fails_while_it_leaves_is_not_kept_as_eligible() -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    office = cast(Any, Office(world, lambda: None))
    duties = Duties(office, office, office, wake=lambda: None, patience_ms=0)
    epoch = world.image.brokers[2].epoch
    duties.heartbeat(2, epoch, world.revision, wants_to_leave=True)
    asyncio.run(duties.attend())
    assert partition(world).elr == (2,)
    duties.heartbeat(2, epoch, world.revision, wants_to_leave=True, has_failed=True)
    asyncio.run(duties.attend())
    assert (partition(world).isr, partition(world).elr) == ((1,), ())
    assert world.image.registrations[2].disk_failed


def test_a_broker_that_comes_back_with_a_failed_disk_is_not_admitted() -> None:
    world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1, 3)))
    world.start(2)
    office = cast(Any, Office(world, lambda: None))
    duties = Duties(office, office, office, wake=lambda: None, patience_ms=0)
    asyncio.run(duties.attend())
    epoch = world.image.brokers[2].epoch
    duties.heartbeat(2, epoch, world.revision, wants_to_leave=False, has_failed=True)
    asyncio.run(duties.attend())
    assert world.image.brokers[2].fenced
    assert world.image.registrations[2].disk_failed
