"""What holds for every test: examples of properties have no deadline, since machines are busy, and are the same in
every run unless SEED is set (tests/support/seed.py), since a lucky find must not stop somebody else's change."""

import gc
import os
import signal
from random import Random

import pytest
from hypothesis import HealthCheck, settings

from tests.support.seed import chosen_seed

settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="SEED" not in os.environ,
)
settings.load_profile("house")

pytest_plugins = ("tests.support.watch", "tests.support.lanes", "tests.support.second_run")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # so a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what we start must hear it


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection.

    Tests that call `gc.collect()` to find leaks took seconds each in a worker that had collected
    thousands of tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> Random:
    """The choices of a test; `SEED=…` replays those of a failed run."""
    return Random(chosen_seed())
