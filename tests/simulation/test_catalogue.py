"""The catalogue of planted bugs is sound: each bug runs, and leaves a cluster that works in calm weather."""

import pytest

from tests.simulation.catalogue import BY_NAME, CATALOGUE, FOLDERS, Planted
from tests.simulation.planted.probe import Probe, replaced
from tests.simulation.simulation import Shape, simulation
from tests.support.seed import EVERY_RUN

_CALM = Shape(partitions=1)


class _Unheard(list[str]):
    """Complaints that stop no history."""

    def append(self, complaint: str) -> None:
        """Drop it."""


def test_no_name_is_given_twice() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert {planted.area for planted in CATALOGUE} == FOLDERS.keys()


def test_a_patch_of_something_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError), replaced(Probe(), Planted, "gone", lambda *_: None):
        pass


@pytest.mark.parametrize("planted", CATALOGUE, ids=lambda it: it.name)
def test_every_bug_can_be_planted_and_taken_out(planted: Planted) -> None:
    with planted.plant() as first:
        pass
    with planted.plant() as again:
        assert (first.calls, again.calls) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("planted", CATALOGUE, ids=lambda it: it.name)
def test_a_cluster_with_the_bug_works_in_calm_weather(planted: Planted) -> None:
    """Checks may notice the bug at once; records must come and go all the same."""
    with planted.plant(), simulation(EVERY_RUN, _CALM) as sim:
        sim.world.failures = _Unheard()
        sim.begin()
        sim.begin_clients()
        sim.world.run_for(2)
        assert sum(producer.acked for producer in sim.producers)
        assert sim.history.seen
