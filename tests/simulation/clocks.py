"""The clocks of a machine: monotonic time at a rate of its own, and a wall clock that is wrong and may jump."""

from random import Random
from typing import Final

from tests.simulation.loop import World

_WALL_MS: Final = 1_700_000_000_000
_OFFSET_MAX_MS: Final = 3_000
_MONOTONIC_PPM: Final = 300  # a time server slews by no more than 500
_WALL_PPM: Final = 1_000
_JUMPS_MS: Final = (2_000, 90_000, 20 * 60_000, 6 * 3_600_000)  # the largest of each size


class SimClock:
    """True time. Clients have it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wall_ms(self) -> int:
        return _WALL_MS + int(self._world.now_s * 1000)

    def monotonic_ms(self) -> int:
        return int(self._world.now_s * 1000)


class MachineClock:
    """What a machine takes for the time. The monotonic clock begins anew with each boot."""

    def __init__(self, world: World) -> None:
        rng = world.rng
        self._world = world
        self._rate = 1 + rng.uniform(-_MONOTONIC_PPM, _MONOTONIC_PPM) / 1e6
        self._wall_rate = 1 + rng.uniform(-_WALL_PPM, _WALL_PPM) / 1e6
        self._offset_ms = rng.randint(-_OFFSET_MAX_MS, _OFFSET_MAX_MS)
        self._booted_s = world.now_s - rng.uniform(0, 500)

    def boot(self) -> None:
        self._booted_s = self._world.now_s

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back."""
        self._offset_ms += milliseconds

    def wall_ms(self) -> int:
        return _WALL_MS + self._offset_ms + int(self._world.now_s * self._wall_rate * 1000)

    def monotonic_ms(self) -> int:
        return int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return (self._world.now_s - self._booted_s) * self._rate

    def world_s(self, monotonic_s: float) -> float:
        """The virtual time at which the monotonic clock shows this."""
        return self._booted_s + monotonic_s / self._rate


def jump_ms(rng: Random) -> int:
    """Choose a jump: seconds, minutes or hours, forward or back."""
    largest = rng.choice(_JUMPS_MS)
    return rng.randint(1, largest) * rng.choice((-1, 1))
