"""Faults of disks: a full one, one that fails, one that is slow, and a process that lacks descriptors.

A shortage passes, and must not take a data directory offline. A disk that fails counts as a machine that loses power:
what it has is not known.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.disk import Faults
from tests.simulation.loop import Broken, World
from tests.simulation.machine import Machine

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None

_MANY: Final = 1 << 30
_NOTICED_S: Final = 1.0  # an error of a write or a sync, by the broker


class DiskFaults:
    """`someone` chooses a machine. `may_fail` tells whether another machine may lose what it has now, and notes it."""

    def __init__(
        self, world: World, someone: Callable[[], Machine], may_fail: Callable[[Machine], bool]
    ) -> None:
        self._world = world
        self._rng: Random = world.rng
        self._someone = someone
        self._may_fail = may_fail

    # Shortages -------------------------------------------------------------------------------------

    def fill_disk(self) -> Begun:
        """Others take the room of a machine's disk, and give it back later."""
        machine = self._someone()
        faults = machine.disk.faults
        if faults.free_bytes is not None:
            return None
        faults.free_bytes = self._rng.choice((0, 100, 4096, self._rng.randint(0, 400_000)))

        def heal() -> None:
            self._check_online(machine)
            faults.free_bytes = None

        return self._rng.uniform(0.3, 6), heal

    def lack_descriptors(self) -> Begun:
        machine = self._someone()
        faults = machine.disk.faults
        if faults.free_descriptors is not None:
            return None
        faults.free_descriptors = self._rng.randint(0, 8)
        ends_s = self._world.now_s + self._rng.uniform(0.3, 5)

        def take() -> None:
            """Connections take the descriptors that the broker gives back."""
            if faults.free_descriptors is not None:
                faults.free_descriptors = min(faults.free_descriptors, self._rng.randint(0, 4))
                self._world.call_later(self._rng.uniform(0.01, 0.2), take)

        def heal() -> None:
            self._check_online(machine)
            faults.free_descriptors = None

        take()
        return ends_s - self._world.now_s, heal

    @staticmethod
    def _check_online(machine: Machine) -> None:
        if machine.is_offline and not machine.disk.faults.has_failed:
            raise Broken(f"{machine.host} is offline, and its disk has not failed")

    # A disk that fails -------------------------------------------------------------------------------

    def fail_disk(self) -> Begun:
        """Calls fail: once, a few times, or all of them, until the operator mends the disk and starts again."""
        machine = self._someone()
        faults = machine.disk.faults
        if not faults.is_sound or not machine.is_up or not self._may_fail(machine):
            return None
        count = self._rng.choice((1, 1, 3, _MANY))
        kind = self._rng.choice(("bad_syncs", "bad_syncs", "bad_writes", "bad_reads", "read_only"))
        self._world.note(f"{machine.host}: {kind} {count}")
        if kind == "read_only":
            faults.is_read_only = True
        else:
            setattr(faults, kind, count)
        faults.sync_error = self._rng.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT))
        faults.on_failure = lambda: self._failed(machine)
        return self._rng.uniform(1, 8), lambda: self._mend(machine)

    def _failed(self, machine: Machine) -> None:
        """The broker must find out, and stop. While it opens a log, it gives up only that one."""
        self._world.note(f"{machine.host}: its disk has failed")
        run = machine.runs
        if not machine.is_up:
            return

        def check() -> None:
            has_noticed = machine.is_offline or any(it.failure for it in machine.partitions)
            if machine.runs == run and machine.is_up and not has_noticed:
                self._world.failures.append(f"{machine.host} goes on with a disk that has failed")

        self._world.call_later(_NOTICED_S, check)

    def _mend(self, machine: Machine) -> None:
        failed = machine.disk.faults.has_failed
        machine.disk.faults = Faults()
        if failed:
            machine.crash()
            machine.on_power_loss()
            machine.disk.evict()
            self._world.call_later(self._rng.uniform(0.1, 2), machine.boot)

    # A disk that is slow -----------------------------------------------------------------------------

    def slow_disk(self) -> Begun:
        machine = self._someone()
        if machine.thread_delay_s:
            return None
        machine.slow_down(self._rng.choice((0.05, 0.3, 1.5)))
        return self._rng.uniform(0.5, 6), lambda: machine.slow_down(0.0)

    def hang_disk(self) -> Begun:
        """Syncs do not return for longer than `penstock.disk.hang.max.ms`: the disk has failed."""
        machine = self._someone()
        if machine.thread_delay_s or not machine.is_up or not self._may_fail(machine):
            return None
        machine.slow_down(20.0)
        machine.disk.faults.has_failed = True

        def heal() -> None:
            machine.slow_down(0.0)
            self._mend(machine)

        return self._rng.uniform(2, 8), heal
