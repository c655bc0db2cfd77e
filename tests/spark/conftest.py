"""One Spark session and one broker for all tests of a run: a JVM takes seconds to start."""

import itertools
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.session import SessionSettings, open_session
from tests.spark.topics import KEEPS_ALL
from tests.support.command import SOURCE
from tests.support.server import Server

collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`, UTC; what it writes to disk goes with the run's other temporary files."""
    home = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, ROOT])  # of Spark's workers
    confs = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    settings = SessionSettings(name="penstock tests", master="local[2]", confs=confs)
    with open_session(settings) as session:
        yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real broker in a process of its own."""
    with Server(tmp_path_factory.mktemp("broker"), KEEPS_ALL) as server:
        yield server


@pytest.fixture(scope="session")
def topic(broker: Server) -> Callable[..., str]:
    """`topic(partitions=3)` creates a topic that no other test uses, and gives its name."""
    numbers = itertools.count(1)

    def create(prefix: str = "t", *, partitions: int = 1, **config: object) -> str:
        return broker.create_topic(f"{prefix}-{next(numbers)}", partitions=partitions, **config)

    return create
