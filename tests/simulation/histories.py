"""Histories by the seed: a cluster, clients, faults for a while, and the judgement."""

from typing import Final

from tests.simulation.faults import Nemesis
from tests.simulation.loop import Broken, Stuck
from tests.simulation.simulation import Result, Shape, describe, simulation

FAULTY_S: Final = 25.0
SHAPES: Final = (
    Shape(),
    Shape(),
    Shape(partitions=1, configs=(("segment.bytes", "4096"), ("flush.messages", "1"))),
)


def shape_of(seed: int) -> Shape:
    return SHAPES[seed % len(SHAPES)]


def run_history(seed: int, shape: Shape | None = None, faulty_s: float = FAULTY_S) -> Result:
    with simulation(seed, shape or shape_of(seed)) as sim:
        try:
            sim.begin()
            sim.begin_clients()
            sim.world.run_for(0.5)
            Nemesis(sim).unleash(faulty_s)
            sim.world.run_for(faulty_s + 4)
            sim.settle()
            return sim.judge()
        except (Broken, Stuck) as error:
            raise type(error)(f"{error}\n{describe(sim)}") from None
