"""Histories by the seed: a cluster, clients, faults for a while, and the judgement."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.simulation.faults import Nemesis
from tests.simulation.loop import Broken, Stuck
from tests.simulation.simulation import Result, Shape, Simulation, describe, simulation
from tests.simulation.workloads.groups import SETTINGS as GROUP_SETTINGS
from tests.simulation.workloads.transactions import SETTINGS as TRANSACTION_SETTINGS

FAULTY_S: Final = 25.0
LONG_S: Final = 300.0  # of a history with storms of faults and lulls between them
_CALM_S: Final = 4.0  # after the faults, before anybody asks whether all is well
CLEANING: Final = (  # logs are looked at often
    ("log.retention.check.interval.ms", "700"),
    ("log.cleaner.backoff.ms", "700"),
    ("transaction.state.log.num.partitions", "1"),
)
_GROUPS: Final = Shape(partitions=1, workloads=("groups",), settings=GROUP_SETTINGS)
GROUPS: Final = (_GROUPS, replace(_GROUPS, brokers=4))
_TRANSACTIONS: Final = Shape(
    partitions=1, workloads=("transactions", "in_flight"), settings=TRANSACTION_SETTINGS
)
TRANSACTIONS: Final = (_TRANSACTIONS, replace(_TRANSACTIONS, brokers=4))
SHAPES: Final = (
    Shape(),
    Shape(brokers=4, partitions=3, configs=(("segment.bytes", "4096"), ("flush.ms", "600"))),
    Shape(partitions=1, configs=(("segment.bytes", "4096"), ("flush.messages", "1"))),
    Shape(partitions=1, workloads=("keyed", "retained"), settings=CLEANING),
    *GROUPS,
    *TRANSACTIONS,
    Shape(partitions=1, workloads=("lossy", "topics")),
)
SHAPES_OF: Final = {
    "transactions": TRANSACTIONS,
    "groups": GROUPS,
}  # an area of the catalogue has its own


def shape_of(seed: int, area: str = "") -> Shape:
    """SHAPE=3 takes that one for every seed."""
    if number := os.environ.get("SHAPE"):
        return SHAPES[int(number)]
    shapes = SHAPES_OF.get(area, SHAPES)
    return shapes[seed % len(shapes)]


def run_history(
    seed: int,
    *,
    shape: Shape | None = None,
    faulty_s: float = FAULTY_S,
    faults: Sequence[str] = (),
    lulls: bool = False,
) -> Result:
    """Raises Broken or Stuck, with where everybody stood."""
    with simulation(seed, shape or shape_of(seed)) as sim:
        try:
            return _run(sim, faulty_s, faults, lulls=lulls)
        except (Broken, Stuck) as error:
            raise type(error)(f"{error}\n{describe(sim)}") from None


def run_long_history(seed: int) -> Result:
    """Run a history as `make sim` does."""
    return run_history(seed, faulty_s=LONG_S, lulls=True)


def _run(sim: Simulation, faulty_s: float, faults: Sequence[str], *, lulls: bool) -> Result:
    sim.begin()
    sim.begin_clients()
    sim.world.run_for(0.5)
    Nemesis(sim, faults).unleash(faulty_s, lulls=lulls)
    sim.world.run_for(faulty_s + _CALM_S)
    sim.settle()
    return sim.judge()
