"""A source that was restored from a backup is not copied behind a mirror of what it had before."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from tests.spark.mirrors import stored, two_clusters
from tests.spark.topics import numbered, produce
from tests.support.command import SOURCE, environment
from tests.support.failures import DataError
from tests.support.server import PATIENCE_S, Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Both = tuple[Server, Server]
WITHOUT_SPARK = [sys.executable, "-m", "tests.spark.mirror_without_spark"]
LOST = "the source has lost records that the"
KEPT = ("orders",)
TRANSLATED = ("orders", "--translate", "--rename", "copy-of-{topic}")
SMALL_BATCHES = {"linger_ms": 0, "batch_num_messages": 10}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with two_clusters(tmp_path) as servers:
        yield servers


def _mirror(both: Both, *what: str) -> "subprocess.CompletedProcess[str]":
    east, west = both
    words = ["pipeline", "mirror", *what, "--bootstrap", east.bootstrap, "--target", west.bootstrap]
    return subprocess.run(
        [*WITHOUT_SPARK, *words],
        env=environment(PYTHONPATH=os.pathsep.join([SOURCE, ROOT])),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )


def _assert_copied(both: Both, *what: str) -> None:
    done = _mirror(both, *what)
    assert done.returncode == 0, done.stderr


def _assert_stopped(both: Both, *what: str) -> str:
    """Return what the job says."""
    done = _mirror(both, *what)
    if done.returncode == 0:
        raise DataError(f"mirror {what} goes on beside another log: {done.stdout}{done.stderr}")
    assert done.returncode == 1
    assert LOST in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_restored_source_stops_the_mirror(both: Both, tmp_path: Path) -> None:
    """It ends where the mirror ends at first, and later behind it."""
    east, west = both
    east.create_topic("orders", retention_ms=-1)
    produce(east, "orders", numbered(50), **SMALL_BATCHES)
    assert east.stop() == 0
    shutil.copytree(east.data_dir, tmp_path / "backup")
    east.start()
    produce(east, "orders", numbered(50, start=50), **SMALL_BATCHES)
    for what in (KEPT, TRANSLATED):
        _assert_copied(both, *what)
    before = stored(west, "orders"), stored(west, "copy-of-orders")

    assert east.stop() == 0
    shutil.rmtree(east.data_dir)
    shutil.copytree(tmp_path / "backup", east.data_dir)
    east.start()
    for written in (50, 30):
        produce(east, "orders", numbered(written, start=1000), **SMALL_BATCHES)
        assert "at offset 50, and the mirror ends at 100" in _assert_stopped(both, *KEPT)
        _assert_stopped(both, *TRANSLATED)
    assert before == (stored(west, "orders"), stored(west, "copy-of-orders"))
