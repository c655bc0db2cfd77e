"""Whatever goes wrong, what was acknowledged is kept, once and in order. Many more seeds: `make sim SEEDS=1000`."""

from collections.abc import Callable

import pytest

from tests.simulation.histories import run_history
from tests.simulation.schedules import SCHEDULES
from tests.simulation.simulation import Result, Shape, Simulation, simulation
from tests.support.seed import chosen_seed

_HISTORIES = 10


def test_the_same_seed_gives_the_same_history() -> None:
    seed = chosen_seed()
    first, again = (run_history(seed, faulty_s=6) for _ in range(2))
    assert first == again
    assert first.acked, "something was written"
    assert run_history(seed + 1, faulty_s=6).trace != first.trace


@pytest.mark.slow
@pytest.mark.parametrize("number", range(_HISTORIES))
def test_nothing_that_was_acknowledged_is_lost_doubled_or_reordered(number: int) -> None:
    result = run_history(chosen_seed() + number)
    assert result.acked
    assert result.written
    assert result.read >= result.written


@pytest.mark.parametrize(
    ("scenario", "shape"),
    SCHEDULES,
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_a_directed_schedule_breaks_nothing(
    scenario: Callable[[Simulation], Result], shape: Shape
) -> None:
    with simulation(chosen_seed(), shape) as sim:
        assert scenario(sim).acked
