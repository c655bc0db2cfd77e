"""Strands the markers of a transaction coordinator, which dies and is replaced before they arrive."""

from collections.abc import Callable
from typing import Final

from tests.simulation.simulation import Simulation

_STATE: Final = "__transaction_state-"
_CRASH_S: Final = (0.3, 2.0)
_HEAL_S: Final = (3.0, 7.0)


def strand_markers(sim: Simulation) -> tuple[float, Callable[[], None]] | None:
    """Cut a coordinator from a broker that leads partitions, and crash the coordinator meanwhile.

    What it has sent arrives when the cut is healed. The next coordinator has told the partitions by then. If the
    broker has no replica of the coordinator's log, decisions go on to be committed during the cut.
    """
    rng, invariants = sim.world.rng, sim.invariants
    states = [(invariants.name_of(place), state) for place, state in invariants.states.items()]
    coordinators = [state for name, state in states if name.startswith(_STATE) and state.leader > 0]
    if not coordinators:
        return None
    log = rng.choice(coordinators)
    leaders = sorted({state.leader for _, state in states} - {log.leader, -1})
    others = [it for it in leaders if it not in log.replicas] or leaders
    if not others:
        return None
    machine, target = sim.machines[log.leader], sim.machines[rng.choice(others)]
    heal_cut = sim.network.cut([(machine.host, target.host)])
    is_over, has_crashed = False, False

    def crash() -> None:
        nonlocal has_crashed
        if not is_over and machine.loop is not None:
            has_crashed = True
            machine.crash()

    def heal() -> None:
        nonlocal is_over
        is_over = True
        heal_cut()
        if has_crashed:
            machine.boot()

    sim.world.call_later(rng.uniform(*_CRASH_S), crash)
    return rng.uniform(*_HEAL_S), heal
