"""Ends of a process within a callback or a thread: at the system call that would change its files next but n."""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.loop import World
from tests.simulation.machine import Machine

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None

_CALLS: Final = (3, 30, 200)  # at most
_CALLS_OF_A_CUT: Final = 14  # and of what follows at once


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
        if machine.loop is None or machine.calls_left is not None or machine.cut_calls is not None:
            return None
        return self._arm(machine, machine.crash)

    def lose_power_at_call(self) -> Begun:
        machine = self._someone()
        is_armed = machine.calls_left is not None or machine.cut_calls is not None
        if machine.loop is None or is_armed or not self._may_fail(machine):
            return None
        return self._arm(machine, machine.lose_power)

    def crash_in_cut(self) -> Begun:
        """A process ends while it cuts a log the next time, or soon after. Nothing it had written may look damaged."""
        machine = self._someone()
        if machine.loop is None or machine.cut_calls is not None or machine.calls_left is not None:
            return None
        machine.cut_calls = self._rng.randint(0, _CALLS_OF_A_CUT)
        machine.end_at_call = machine.crash

        def heal() -> None:
            machine.cut_calls = machine.calls_left = None
            machine.boot()

        return self._rng.uniform(6, 12), heal

    def _arm(self, machine: Machine, end: Callable[[], None]) -> Begun:
        machine.calls_left = self._rng.randint(0, self._rng.choice(_CALLS))
        machine.end_at_call = end

        def heal() -> None:
            machine.calls_left = None
            machine.boot()

        return self._rng.uniform(0.5, 5), heal
