"""What goes wrong, and when: chosen by the seed, now and then two things at once, healed in the end.

Crashes of processes may come as they like: what was written is still there. Power is lost by one machine at a
time, and again only when all replicas are in sync: that is what the design promises to survive.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tests.simulation.call_faults import CallFaults
from tests.simulation.clients.client import HOST as CLIENT
from tests.simulation.clocks import jump_ms
from tests.simulation.coordinator_faults import strand_markers
from tests.simulation.disk_faults import DiskFaults
from tests.simulation.event_faults import EventFaults
from tests.simulation.machine import Machine
from tests.simulation.operations import Operations
from tests.simulation.simulation import Shape, Simulation
from tests.simulation.store import HOST as STORE
from tests.simulation.store_faults import StoreFaults

_TWO_AT_ONCE: Final = 0.35
_MOST: Final = 3  # at a time
_STORM_S: Final = (4.0, 14.0)
_LULL_S: Final = (12.0, 60.0)
_CALM_BEFORE_LULL_S: Final = 3.0  # clients still do much while the last faults end
_ENTIRELY: Final = 0.4  # of the losses of power: nothing is left of what was not synced
_AT_ONCE: Final = 0.12  # of the faults: another begins in the moment in which they end
_SLOW_S: Final = (0.02, 0.1, 0.4)  # longer than most, and than some time limits of the brokers

Heal = Callable[[], None]


class Nemesis:
    def __init__(self, sim: Simulation, only: Sequence[str] = ()) -> None:
        """`only`: the names of those faults, as often as they are named."""
        self._sim = sim
        self._rng = sim.world.rng
        self._healing: dict[int, Heal] = {}
        self._number = 0
        self._dark: Machine | None = None  # lost power, and not everything is in sync since
        self._ends_s = 0.0
        self._storm_ends_s = float("inf")
        disks = DiskFaults(sim.world, self._someone, self._may_fail)
        calls = CallFaults(sim.world, self._someone, self._may_fail)
        store = StoreFaults(
            sim.core, list(sim.machines.values()), self._someone, lambda: sim.controller
        )
        operations = Operations(sim)
        events = EventFaults(sim, self, store, self._inject, is_synced=_is_synced(sim.shape))
        self.kinds: list[Callable[[], tuple[float, Heal] | None]] = [
            self.crash,
            self.crash,
            self.lose_power,
            self.lose_power,
            self.lose_power_and_store,
            self.pause,
            self.isolate,
            self.one_way,
            self.part,
            self.cut_from_store,
            self.stop_store,
            self.crash_controller,
            self.reset_connections,
            self.restart,
            self.crash_all,
            self.clock_jump,
            self.slow_network,
            self.slow_network,
            store.trouble_store,
            store.trouble_store,
            store.delay_watch,
            store.forget_changes,
            *(events.at_event,) * 6,
            operations.move,
            operations.move,
            operations.move_all,
            operations.move_and_cancel,
            operations.elect_preferred,
            operations.change_min_isr,
            disks.fill_disk,
            disks.lack_descriptors,
            disks.fail_disk,
            disks.slow_disk,
            disks.hang_disk,
            calls.crash_at_call,
            calls.crash_at_call,
            calls.crash_in_cut,
            calls.crash_in_cut,
            calls.lose_power_at_call,
        ]
        if sim.lossy_topics:
            self.kinds += [operations.elect_unclean, self.lose_leader_of_lossy_topic]
        if _is_synced(sim.shape):
            self.kinds += [self.lose_power_everywhere] * 4
        if only:
            owners = (self, disks, calls, store, operations, events)
            self.kinds = [
                next(getattr(it, name) for it in owners if hasattr(it, name)) for name in only
            ]

    def unleash(self, seconds: float, *, lulls: bool = False) -> None:
        """Inject faults for so long, then heal all. With `lulls`, faults and load come in storms:
        a few seconds of both, then a longer time with no fault and little load."""
        self._ends_s = self._sim.world.now_s + seconds
        if lulls:
            self._begin_storm()
        else:
            self._plan()

    def _begin_storm(self) -> None:
        world = self._sim.world
        world.is_lull = False
        self._storm_ends_s = world.now_s + self._rng.uniform(*_STORM_S)
        self._plan()

    def _begin_lull(self) -> None:
        world = self._sim.world
        lasts_s = min(self._rng.uniform(*_LULL_S), max(self._ends_s - world.now_s, 0))
        world.note(f"lull for {lasts_s:.3f}")
        world.call_later(min(_CALM_BEFORE_LULL_S, lasts_s), self._calm_down)
        world.call_later(lasts_s, self._begin_storm)

    def _calm_down(self) -> None:
        self._sim.world.is_lull = True

    def _plan(self) -> None:
        if self._sim.world.now_s > self._storm_ends_s:
            self._begin_lull()
        else:
            self._sim.world.call_later(self._rng.uniform(0.2, 3), self._strike)

    def _strike(self) -> None:
        if self._sim.world.now_s >= self._ends_s:
            self.heal_all()
            return
        if len(self._healing) < _MOST:
            self._begin()
            if self._rng.random() < _TWO_AT_ONCE:
                self._begin()
        self._plan()

    def _begin(self) -> None:
        kind = self._rng.choice(self.kinds)
        self._inject(kind.__name__, kind)

    def _inject(self, name: str, fault: Callable[[], tuple[float, Heal] | None]) -> None:
        begun = fault()
        if begun is None:
            return
        lasts_s, heal = begun
        self._number += 1
        number = self._number
        self._healing[number] = heal
        self._sim.world.note(f"{name} for {lasts_s:.3f}")
        self._sim.world.faults[name] += 1
        self._sim.world.call_later(lasts_s, lambda: self._heal(number))

    def _heal(self, number: int) -> None:
        heal = self._healing.pop(number, None)
        if heal is None:
            return
        heal()
        if self._rng.random() < _AT_ONCE and self._sim.world.now_s < self._ends_s:
            self._begin()

    def heal_all(self) -> None:
        healing, self._healing = self._healing, {}
        for heal in healing.values():
            heal()

    # Who is hit ----------------------------------------------------------------------------------

    def _someone(self) -> Machine:
        """A leader or the controller rather than anybody."""
        machines, rng = self._sim.machines, self._rng
        chosen = rng.random()
        if chosen < 0.4:
            leaders = sorted({it.leader for it in self._sim.invariants.states.values()} - {-1})
            if leaders:
                return machines[rng.choice(leaders)]
        return machines[rng.choice(list(machines))]

    # What hits -----------------------------------------------------------------------------------

    def crash(self, machine: Machine | None = None) -> tuple[float, Heal] | None:
        machine = machine or self._someone()
        if machine.loop is None:
            return None
        machine.crash()
        quickly = self._rng.random() < 0.4
        return self._rng.uniform(0.02, 0.4) if quickly else self._rng.uniform(0.5, 6), machine.boot

    def crash_controller(self) -> tuple[float, Heal] | None:
        machine = self._sim.controller
        return None if machine is None else self.crash(machine)

    def crash_all(self) -> tuple[float, Heal] | None:
        """One of them may lose power, and come back before the others."""
        machines = [it for it in self._sim.machines.values() if it.loop is not None]
        if self._rng.random() < 0.5 or not machines:
            return None
        unlucky = self._rng.choice(machines) if self._rng.random() < 0.6 else None
        for machine in machines:
            if machine is unlucky and self._may_fail(machine):
                machine.lose_power(entirely=self._rng.random() < _ENTIRELY)
            else:
                machine.crash()
        return self._rng.uniform(0.1, 3), lambda: self._boot_all(machines)

    def lose_power(self, machine: Machine | None = None) -> tuple[float, Heal] | None:
        machine = machine or self._someone()
        if machine.loop is None or not self._may_lose_power():
            return None
        self._dark = machine
        machine.lose_power(entirely=self._rng.random() < _ENTIRELY)
        return self._rng.choice((0.05, 0.3, self._rng.uniform(0.3, 6))), machine.boot

    def lose_power_and_store(self) -> tuple[float, Heal] | None:
        """The first starts after a loss of power fail: the store is out of reach."""
        machine, sim = self._someone(), self._sim
        begun = self.lose_power(machine)
        if begun is None:
            return None
        pairs = [(machine.host, STORE), (STORE, machine.host)]
        heal_cut = sim.network.cut(pairs)
        sim.world.call_later(self._rng.uniform(0.1, 1), machine.boot)
        return self._rng.uniform(1.5, 6), heal_cut

    def lose_power_everywhere(self) -> tuple[float, Heal] | None:
        """Of all machines that run: nothing is acknowledged there before it is on the disks."""
        machines = [it for it in self._sim.machines.values() if it.loop is not None]
        if not self._may_lose_power():
            return None
        for machine in machines:
            machine.lose_power(entirely=self._rng.random() < _ENTIRELY)
        return self._rng.uniform(0.3, 3), lambda: self._boot_all(machines)

    def _boot_all(self, machines: list[Machine]) -> None:
        for machine in machines:
            self._sim.world.call_later(self._rng.uniform(0, 2), machine.boot)

    def _may_fail(self, machine: Machine) -> bool:
        """Whether this one may lose what it has: one machine at a time, until all replicas are in sync again."""
        if not self._may_lose_power():
            return False
        self._dark = machine
        return True

    def _may_lose_power(self) -> bool:
        if self._sim.invariants.has_lone_replica():
            return False
        if self._dark is None:
            return True
        dark = self._dark
        is_well = dark.is_up and dark.disk.faults.is_sound and not dark.is_about_to_lose_power
        if is_well and self._sim.invariants.all_in_sync():
            self._dark = None
        return self._dark is None

    def lose_leader_of_lossy_topic(self) -> tuple[float, Heal] | None:
        """The replicas of a partition whose records may be lost crash, the leader last, and come back before it does."""
        sim, rng = self._sim, self._rng
        lossy = [it for it in sim.invariants.places if it[0] in sim.lossy_topics]
        if not lossy:
            return None
        state = sim.invariants.state(*rng.choice(lossy))
        if state.leader < 0:
            return None
        leader = sim.machines[state.leader]
        others = [sim.machines[it] for it in state.replicas if it != state.leader]
        alone_s, away_s = rng.uniform(0.1, 3), rng.uniform(0.05, 1.5)
        pending = [(alone_s, leader.crash)]
        pending += [(alone_s + away_s + rng.uniform(0, 2), it.boot) for it in others]
        is_over = False

        def unless_over(event: Callable[[], None]) -> None:
            if not is_over:
                event()

        def heal() -> None:
            nonlocal is_over
            is_over = True
            self._boot_all([*others, leader])

        for machine in others:
            machine.crash()
        for after_s, event in pending:
            sim.world.call_later(after_s, partial(unless_over, event))
        return alone_s + away_s + rng.uniform(1, 6), heal

    def pause(self, machine: Machine | None = None) -> tuple[float, Heal] | None:
        loop = (machine or self._someone()).loop
        if loop is None:
            return None
        loop.pause()
        return self._rng.uniform(0.1, 6), loop.resume

    def restart(self) -> tuple[float, Heal] | None:
        machine = self._someone()
        if not machine.is_up or (machine.loop is not None and machine.loop.is_paused):
            return None
        machine.stop()
        return self._rng.uniform(1, 6), machine.boot

    def isolate(self) -> tuple[float, Heal] | None:
        """From all brokers, and from the store and clients or not."""
        host = self._someone().host
        others = [it.host for it in self._sim.machines.values() if it.host != host]
        others += [it for it in (STORE, CLIENT) if self._rng.random() < 0.6]
        return self._cut([(host, it) for it in others] + [(it, host) for it in others])

    def part(self) -> tuple[float, Heal] | None:
        one, other = self._rng.sample([it.host for it in self._sim.machines.values()], 2)
        return self._cut([(one, other), (other, one)])

    def one_way(self) -> tuple[float, Heal] | None:
        hosts = [it.host for it in self._sim.machines.values()]
        one = self._rng.choice(hosts)
        other = self._rng.choice([*(it for it in hosts if it != one), STORE, CLIENT])
        return self._cut([(one, other)] if self._rng.random() < 0.5 else [(other, one)])

    def cut_from_store(self) -> tuple[float, Heal] | None:
        """Sometimes for so long that others lead in its place, and nobody can tell it."""
        host, rng = self._someone().host, self._rng
        lasts_s = rng.uniform(7, 14) if rng.random() < 0.25 else rng.uniform(0.2, 7)
        return lasts_s, self._sim.network.cut([(host, STORE), (STORE, host)])

    def _cut(self, pairs: list[tuple[str, str]]) -> tuple[float, Heal]:
        return self._rng.uniform(0.2, 7), self._sim.network.cut(pairs)

    def strand_markers(self) -> tuple[float, Heal] | None:
        return strand_markers(self._sim)

    def stop_store(self) -> tuple[float, Heal] | None:
        core = self._sim.core
        if core.is_down:
            return None
        core.is_down = True

        def heal() -> None:
            core.is_down = False
            core.extend_all()

        return self._rng.uniform(0.3, 5), heal

    def reset_connections(self) -> tuple[float, Heal] | None:
        for link in list(self._sim.network.links):
            if self._rng.random() < 0.4:
                link.reset()
        return 0.0, lambda: None

    def clock_jump(self) -> tuple[float, Heal] | None:
        """Somebody sets a machine's clock wrong, and half of the time right again."""
        clock = self._someone().clock
        by_ms = jump_ms(self._rng)
        clock.jump(by_ms)
        if self._rng.random() < 0.5:
            return 0.0, lambda: None
        return self._rng.uniform(0.2, 20), lambda: clock.jump(-by_ms)

    def slow_network(self) -> tuple[float, Heal] | None:
        """What one machine sends to some others takes longer; the way back does not."""
        sim, rng = self._sim, self._rng
        if sim.network.slow_s:
            return None
        hosts = [CLIENT, *(it.host for it in sim.machines.values())]
        source = rng.choice((CLIENT, self._someone().host))
        slow_s = rng.choice(_SLOW_S)
        for target in hosts:
            if target != source and rng.random() < 0.7:
                sim.network.slow_s[source, target] = slow_s
        return rng.uniform(0.3, 6), sim.network.slow_s.clear


def _is_synced(shape: Shape) -> bool:
    """Whether every record of every topic is on the disks before it is acknowledged."""
    return ("flush.messages", "1") in shape.configs and not shape.workloads
