"""Three brokers in one loop, for all tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.several import Several, several_brokers
from tests.unit.broker.coordinators.across.sessions import (
    SPREAD,
    numbers,
)
from tests.unit.storage.logs import scratch


@pytest.fixture(scope="module")
def brokers() -> Iterator[Several]:
    with scratch() as path, several_brokers(Path(path)) as started:
        yield started


@pytest.fixture
def topic(brokers: Several) -> str:
    """Partition n is led by broker n + 1; all have it."""
    name = f"t{next(numbers)}"
    brokers.create_topic(name, SPREAD)
    return name
