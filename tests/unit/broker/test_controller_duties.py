import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock.broker.controller_duties import Duties
from penstock.metadata.decisions import Decision, Rules
from penstock.metadata.image import ClusterImage
from tests.unit.metadata.worlds import World


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
