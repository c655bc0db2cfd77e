"""Ends of a process within a callback or a thread: at the system call that would change its files next but n."""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.loop import World
from tests.simulation.machine import Machine

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None

_CALLS: Final = (3, 30, 200)  # at most


class CallFaults:
    """`someone` chooses a machine. `may_fail` tells whether another machine may lose what it has now, and notes it."""

    def __init__(
        self, world: World, someone: Callable[[], Machine], may_fail: Callable[[Machine], bool]
    ) -> None:
        self._world = world
        self._rng: Random = world.rng
        self._someone = someone
        self._may_fail = may_fail

    def crash_at_call(self) -> Begun:
        machine = self._someone()
        if machine.loop is None or machine.calls_left is not None:
            return None
        return self._arm(machine, machine.crash)

    def lose_power_at_call(self) -> Begun:
        machine = self._someone()
        if machine.loop is None or machine.calls_left is not None or not self._may_fail(machine):
            return None
        return self._arm(machine, machine.lose_power)

    def _arm(self, machine: Machine, end: Callable[[], None]) -> Begun:
        machine.calls_left = self._rng.randint(0, self._rng.choice(_CALLS))
        machine.end_at_call = end

        def heal() -> None:
            machine.calls_left = None
            machine.boot()

        return self._rng.uniform(0.5, 5), heal
