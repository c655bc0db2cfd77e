"""Faults in the moment in which something is decided: chance alone hardly ever hits those few milliseconds.

A fault of this kind waits for an event of replication, and strikes those whom it concerns: the broker that acts, its
followers and the controller.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import Final, Protocol

from penstock.metadata.store import Change, Compare
from penstock.metadata.values import PartitionImage
from tests.simulation.machine import Machine
from tests.simulation.mirror import Place
from tests.simulation.simulation import Simulation
from tests.simulation.store_faults import StoreFaults

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None
Inject = Callable[[str, Callable[[], Begun]], None]

_WAITS_S: Final = (1.0, 8.0)
_LASTS_S: Final = (0.3, 4.0)
_LIVE: Final = "live/"


class Event(Enum):
    ISR_PROPOSED = "a leader proposes other in-sync replicas"
    ISR_CHANGED = "the controller has changed the in-sync replicas"
    ELECTED = "the controller has elected a leader"
    MOVED = "a reassignment has begun or ended"
    SESSION_OPENED = "a broker has a session"
    LOG_CUT = "a follower has cut its log"
    COMMITTED = "a leader has moved the high watermark"


class Strikes(Protocol):
    """Faults that one machine meets."""

    def crash(self, machine: Machine | None = None) -> Begun: ...
    def lose_power(self, machine: Machine | None = None) -> Begun: ...
    def pause(self, machine: Machine | None = None) -> Begun: ...
    def lose_power_everywhere(self) -> Begun: ...


class EventFaults:
    def __init__(
        self,
        sim: Simulation,
        strikes: Strikes,
        store: StoreFaults,
        inject: Inject,
        *,
        is_synced: bool,
    ) -> None:
        """`is_synced`: what is acknowledged survives a loss of power of all machines."""
        self._sim = sim
        self._rng: Random = sim.world.rng
        self._strikes = strikes
        self._store = store
        self._inject = inject
        self._is_synced = is_synced
        self._awaited: Event | None = None
        self._observe = sim.core.observe
        sim.core.observe = self._changed
        sim.invariants.mirrors.proposed = partial(self._happened, Event.ISR_PROPOSED)
        sim.invariants.mirrors.was_cut = self._was_cut
        sim.invariants.moved = lambda leader: self._happened(Event.COMMITTED, leader, ())

    def at_event(self) -> Begun:
        """Strike when the next event of a kind happens, if it does soon."""
        if self._awaited is not None:
            return None
        self._awaited = self._rng.choice(list(Event))
        return self._rng.uniform(*_WAITS_S), self._give_up

    def _give_up(self) -> None:
        self._awaited = None

    # Events ----------------------------------------------------------------------------------------

    def _changed(self, compares: Sequence[Compare], changes: Sequence[Change]) -> None:
        if self._awaited is None:
            self._observe(compares, changes)
            return
        before = dict(self._sim.invariants.states)
        self._observe(compares, changes)
        for change in changes:
            if change.key.startswith(_LIVE) and change.entry is not None:
                self._happened(Event.SESSION_OPENED, int(change.key[len(_LIVE) :]), ())
        for place, state in list(self._sim.invariants.states.items()):
            self._compare(place, before, state)

    def _compare(
        self, place: Place, states: dict[Place, PartitionImage], after: PartitionImage
    ) -> None:
        before = states.get(place)
        if before is None or before == after:
            return
        if before.leader != after.leader and after.leader >= 0:
            self._happened(Event.ELECTED, after.leader, (before.leader, *after.isr))
        if before.isr != after.isr:
            changed = sorted({*before.isr} ^ {*after.isr})
            self._happened(Event.ISR_CHANGED, after.leader, changed)
        if (before.adding, before.removing) != (after.adding, after.removing):
            concerned = sorted({*before.adding, *before.removing, *after.adding, *after.removing})
            self._happened(Event.MOVED, after.leader, concerned)

    def _was_cut(self, path: str) -> None:
        for machine in self._sim.machines.values():
            if path.startswith(f"{machine.directory}/"):
                self._happened(Event.LOG_CUT, machine.broker_id, ())

    def _happened(self, event: Event, actor: int, concerned: Sequence[int]) -> None:
        if event is not self._awaited or (event is Event.COMMITTED and self._rng.random() < 0.9):
            return
        self._awaited = None
        rng, machines = self._rng, self._sim.machines
        involved = [it for it in dict.fromkeys((actor, *concerned)) if it in machines]
        after_s = rng.choice((0.0, rng.uniform(0, 0.004), rng.uniform(0, 0.05), rng.uniform(0, 1)))
        self._sim.world.note(f"{event.name}: {involved} after {after_s:.4f}")
        self._sim.world.call_later(after_s, lambda: self._strike([machines[it] for it in involved]))

    # Strikes ---------------------------------------------------------------------------------------

    def _strike(self, involved: list[Machine]) -> None:
        controller = self._sim.controller
        everyone = [*involved, *([controller] if controller is not None else [])]
        if not everyone:
            return
        for _ in range(self._rng.choice((1, 2, 2))):
            name, fault = self._rng.choice(self._faults(everyone))
            self._inject(f"at_event.{name}", fault)

    def _faults(self, involved: list[Machine]) -> list[tuple[str, Callable[[], Begun]]]:
        rng, strikes = self._rng, self._strikes
        machine, other = rng.choice(involved), rng.choice(involved)
        found: list[tuple[str, Callable[[], Begun]]] = [
            ("crash", partial(strikes.crash, machine)),
            ("lose_power", partial(strikes.lose_power, machine)),
            ("lose_power", partial(strikes.lose_power, machine)),
            ("pause", partial(strikes.pause, machine)),
            ("trouble_commits", self._store.trouble_commits),
            ("trouble_commits", self._store.trouble_commits),
            ("delay_watch", partial(self._store.delay_watch, machine)),
        ]
        if self._is_synced:
            found += [("lose_power_everywhere", strikes.lose_power_everywhere)] * 4
        if other is not machine:
            found += [("cut", partial(self._cut, machine, other))] * 2
            found += [("slow", partial(self._slow, machine, other))]
        return found

    def _cut(self, one: Machine, other: Machine) -> Begun:
        pairs = [(one.host, other.host)]
        if self._rng.random() < 0.6:
            pairs.append((other.host, one.host))
        return self._rng.uniform(*_LASTS_S), self._sim.network.cut(pairs)

    def _slow(self, one: Machine, other: Machine) -> Begun:
        slow_s, pair = self._sim.network.slow_s, (one.host, other.host)
        slow_s[pair] = self._rng.choice((0.05, 0.3, 1.0))
        return self._rng.uniform(*_LASTS_S), lambda: _drop(slow_s, pair)


def _drop(slow_s: dict[tuple[str, str], float], pair: tuple[str, str]) -> None:
    slow_s.pop(pair, None)
