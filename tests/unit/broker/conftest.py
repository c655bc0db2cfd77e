"""Partitions and metadata for the tests of brokers, in memory where there is a file system for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine import Engine, running_engine
from tests.unit.broker.places import Place
from tests.unit.storage.logs import FaultyDisk, scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch() as path:
        yield Path(path)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def engine(tmp_path: Path, disk: FaultyDisk) -> Iterator[Engine]:
    with running_engine(tmp_path, disk) as started:
        yield started


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "metadata.db")
