"""What holds for every test: examples of properties have no deadline, since machines are busy, and are the same in
every run unless SEED is set (tests/support/seed.py), since a lucky find must not stop somebody else's change."""

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


@pytest.fixture
def rng() -> Random:
    """The choices of a test; `SEED=…` replays those of a failed run."""
    return Random(chosen_seed())
