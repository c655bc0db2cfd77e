import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock.broker.controller.broker_lifecycle import BrokerLifecycle, Report
from penstock.metadata.image import ClusterImage, Delta
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.store import Put
from penstock.metadata.values import CONTROLLER, PartitionImage, encode
from penstock.model.configs import BrokerConfig
from tests.unit.metadata.worlds import World, partition, register, unfence, world_with


class Office:
    """The controller's view and its commits, on a cluster on paper; `meanwhile` happens during a commit."""

    broker_id = 1
    is_active_controller = True

    def __init__(self, world: World, meanwhile: Callable[[], None]) -> None:
        self._world = world
        self._meanwhile = meanwhile

    @property
    def image(self) -> ClusterImage:
        return self._world.image

    @property
    def rules(self) -> Rules:
        return self._world.rules

    @property
    def config(self) -> BrokerConfig:
        return self._world.rules.config

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
    lifecycle = BrokerLifecycle(office, office, office, wake=lambda: None, patience_ms=0)
    asyncio.run(lifecycle.attend())
    assert set(world.image.registrations) == {1, 2}
    asyncio.run(lifecycle.attend())
    assert set(world.image.registrations) == {1, 2, 3}


async def heard(
    lifecycle: BrokerLifecycle,
    epoch: int,
    applied: int,
    *,
    wants_to_leave: bool = False,
    has_failed: bool = False,
) -> Report | None:
    """A heartbeat of broker 2, and what is known of that broker then."""
    lifecycle.heartbeat(2, epoch, applied, wants_to_leave=wants_to_leave, has_failed=has_failed)
    return lifecycle.last_report(2)


def test_a_broker_is_caught_up_as_of_its_last_report_of_everything() -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    office = cast(Any, Office(world, lambda: None))
    lifecycle = BrokerLifecycle(office, office, office, wake=lambda: None, patience_ms=0)
    epoch, revision = world.image.brokers[2].epoch, world.image.revision

    async def reports() -> list[Report | None]:
        return [await heard(lifecycle, epoch, applied) for applied in (0, revision, revision - 1)]

    assert lifecycle.last_report(2) is None
    first, second, third = asyncio.run(reports())
    assert first is not None
    assert second is not None
    assert third is not None
    assert [it.applied for it in (first, second, third)] == [0, revision, revision - 1]
    assert first.caught_up_s is None
    assert second.caught_up_s == third.caught_up_s == second.heard_s
    assert third.heard_s >= second.heard_s
    world.start(2)
    assert lifecycle.last_report(2) is None, "its next session has said nothing yet"


def test_a_broker_whose_disk_fails_while_it_leaves_is_not_kept_as_eligible() -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    office = cast(Any, Office(world, lambda: None))
    lifecycle = BrokerLifecycle(office, office, office, wake=lambda: None, patience_ms=0)
    epoch = world.image.brokers[2].epoch
    asyncio.run(heard(lifecycle, epoch, world.revision, wants_to_leave=True))
    asyncio.run(lifecycle.attend())
    assert partition(world).elr == (2,)
    asyncio.run(heard(lifecycle, epoch, world.revision, wants_to_leave=True, has_failed=True))
    asyncio.run(lifecycle.attend())
    assert (partition(world).isr, partition(world).elr) == ((1,), ())
    assert world.image.registrations[2].disk_failed


def test_a_broker_that_comes_back_with_a_failed_disk_is_not_admitted() -> None:
    world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1, 3)))
    world.start(2)
    office = cast(Any, Office(world, lambda: None))
    lifecycle = BrokerLifecycle(office, office, office, wake=lambda: None, patience_ms=0)
    asyncio.run(lifecycle.attend())
    epoch = world.image.brokers[2].epoch
    asyncio.run(heard(lifecycle, epoch, world.revision, has_failed=True))
    asyncio.run(lifecycle.attend())
    assert world.image.brokers[2].fenced
    assert world.image.registrations[2].disk_failed


class Patient(Office):
    """One that has just started."""

    def __init__(self, world: World) -> None:
        super().__init__(world, lambda: None)
        self.listeners: list[Callable[[Delta], None]] = []
        self.is_balance_due = False

    def on_change(self, listener: Any) -> None:
        self.listeners.append(listener)

    def balance_soon(self) -> None:
        self.is_balance_due = True


def elected_at_its_start(world: World) -> tuple[BrokerLifecycle, Patient]:
    office = Patient(world)
    its: Any = office
    return BrokerLifecycle(its, its, its, wake=lambda: None, patience_ms=60_000), office


def test_who_is_not_back_after_a_cold_start_is_waited_for() -> None:
    world = world_with(PartitionImage(2, 5, 7, (2, 3, 1), (1, 2, 3)))
    lifecycle, office = elected_at_its_start(world)

    async def scenario() -> None:
        await lifecycle.begin(is_cold=True)
        world.stop(2)
        await lifecycle.attend()
        assert partition(world).leader == 2
        assert office.is_balance_due

    asyncio.run(scenario())


def test_nobody_is_waited_for_once_a_broker_is_heard_that_took_part_before() -> None:
    world = world_with(PartitionImage(2, 5, 7, (2, 3, 1), (1, 2, 3)))
    lifecycle, _ = elected_at_its_start(world)

    async def scenario() -> None:
        await lifecycle.begin(is_cold=True)
        world.stop(2)
        lifecycle.heartbeat(3, world.image.brokers[3].epoch, world.revision, wants_to_leave=False)
        await lifecycle.attend()
        assert partition(world).leader == 3

    asyncio.run(scenario())


def test_a_broker_that_starts_with_the_controller_ends_no_patience() -> None:
    world = world_with(PartitionImage(2, 5, 7, (2, 3, 1), (1, 2, 3)))
    world.stop(3)
    lifecycle, _ = elected_at_its_start(world)

    async def scenario() -> None:
        await lifecycle.begin(is_cold=True)
        world.stop(2)
        world.start(3)
        await lifecycle.attend()
        lifecycle.heartbeat(3, world.image.brokers[3].epoch, world.revision, wants_to_leave=False)
        await lifecycle.attend()
        assert partition(world).leader == 2

    asyncio.run(scenario())


def test_the_controller_that_dealt_with_our_session_was_alive_and_is_not_waited_for() -> None:
    """Of two brokers: the other led the cluster while this one started."""
    world = world_with(PartitionImage(2, 5, 7, (2, 1), (1, 2)), config={"min.insync.replicas": "1"})
    world.write([Put(CONTROLLER, encode(broker=2, epoch=0))])
    lifecycle, office = elected_at_its_start(world)
    world.start(1)
    for listener in office.listeners:
        listener(Delta(world.revision, brokers=[1]))
    register(world, 1)
    for listener in office.listeners:
        listener(Delta(world.revision, brokers=[1]))
    unfence(world, 1)

    async def scenario() -> None:
        world.stop(2)
        world.write([Put(CONTROLLER, encode(broker=1, epoch=0))])
        await lifecycle.begin(is_cold=True)
        await lifecycle.attend()
        assert partition(world).leader == 1

    asyncio.run(scenario())
