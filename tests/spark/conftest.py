"""One Spark session and one broker for all tests of a run: a JVM takes seconds to start."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import SOURCE
from tests.support.server import Server

ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`, UTC; what it writes to disk goes with the run's other temporary files."""
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, ROOT])  # of Spark's workers
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={home}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real broker in a process of its own."""
    with Server(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="session")
def topic(broker: Server) -> Callable[..., str]:
    """`topic(partitions=3)` creates a topic that no other test uses, and gives its name."""
    numbers = itertools.count(1)

    def create(prefix: str = "t", *, partitions: int = 1, **config: object) -> str:
        return broker.create_topic(f"{prefix}-{next(numbers)}", partitions=partitions, **config)

    return create
