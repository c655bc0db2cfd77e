"""`mirror` is killed with SIGKILL at every step, and started again with the same command: the mirror is the source, offset by offset."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.client.errors import ClientError
from penstock.client.mirroring import MIRROR_SOURCE
from penstock.spark.jobs.mirror.job import CHANGE_STEPS, STEPS, TASK_STEPS
from penstock.spark.steps import VARIABLE
from tests.spark.conftest import ROOT
from tests.spark.mirrors import (
    change_settings,
    commit,
    committed,
    grow,
    settings,
    stored,
    two_clusters,
)
from tests.spark.topics import Sent, numbered, produce
from tests.support.command import SOURCE, command, environment
from tests.support.mirrors import committed_rows, write_transactions
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Both = tuple[Server, Server]
RUN_S = 10 * PATIENCE_S
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds only
WITHOUT_SPARK = [sys.executable, "-m", "tests.spark.mirror_without_spark"]
KILLED = -signal.SIGKILL


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with two_clusters(tmp_path) as servers:
        yield servers


def _start(
    source: Server, target: Server, *what: str, stop_at: str | None = None, spark: bool = False
) -> "subprocess.Popen[bytes]":
    """The real command, or the same with the tasks' work done by the driver."""
    variables = {"JAVA_TOOL_OPTIONS": QUICK_JVM, "PYTHONPATH": os.pathsep.join([SOURCE, ROOT])}
    variables |= {VARIABLE: stop_at} if stop_at else {}
    words = ["pipeline", "mirror", *what]
    words += ["--bootstrap", source.bootstrap, "--target", target.bootstrap]
    return subprocess.Popen(
        command(*words, "--master", "local[1]") if spark else [*WITHOUT_SPARK, *words],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _run(source: Server, target: Server, *what: str, stop_at: str | None = None) -> int:
    return _start(source, target, *what, stop_at=stop_at).wait(RUN_S)


@pytest.mark.long
def test_killed_at_every_step_again_and_again(both: Both) -> None:
    """More is written after each kill. First in order, then in any."""
    east, west = both
    rng = Random(3)
    east.create_topic("orders", partitions=2)
    east.create_topic("money")
    last = write_transactions(east, "money", rng, 10)
    last.end(committed=True)  # or brokers do, at some moment of this
    last.disconnect()
    steps = [*STEPS, *TASK_STEPS]
    again = [step for step in steps if step != "mirror:topic-created"]  # by then they are there
    rng.shuffle(again)
    for number, step in enumerate([*steps, *again]):
        produce(east, "orders", numbered(40, 2, start=40 * number))
        commit(east, "readers", "orders", number, 2 * number)
        assert _run(east, west, "orders", "money", stop_at=step) == KILLED, step
        _check_beginning(east, west)
    assert _run(east, west, "orders", "money") == 0
    for topic, index in (("orders", 0), ("orders", 1), ("money", 0)):
        assert stored(west, topic, index) == stored(east, topic, index) != []
    rows = committed_rows(west.bootstrap, "money")
    assert rows == committed_rows(east.bootstrap, "money")
    assert committed(west, "readers", "orders", 2) == committed(east, "readers", "orders", 2)

    for step in ("mirror:promoting", "mirror:promoted"):
        assert _run(east, west, "promote", stop_at=step) == KILLED, step
    assert _run(east, west, "promote") == 0
    assert committed_rows(west.bootstrap, "money") == rows
    produce(west, "orders", numbered(2, 2, start=5000))


def _check_beginning(east: Server, west: Server) -> None:
    """Whatever was reached: what the mirror has is the source's beginning, and no group is ahead of it."""
    if "orders" not in west.topics():
        return
    positions = committed(west, "readers", "orders", 2)
    for index in range(2):
        has = stored(west, "orders", index)
        assert has == stored(east, "orders", index)[: len(has)]
        assert has or positions[index][0] <= 0


@pytest.mark.long
def test_killed_while_topics_change(both: Both) -> None:
    east, west = both
    grown, changed, deleted = CHANGE_STEPS
    east.create_topic("orders", retention_ms=10**12)  # the records are of 2023
    produce(east, "orders", numbered(20))
    assert _run(east, west, "orders") == 0
    grow(east, "orders", 2)
    produce(east, "orders", numbered(20, 2))
    assert _run(east, west, "orders", stop_at=grown) == KILLED
    change_settings(east, "orders", {"retention.ms": "2000000000000"})
    assert _run(east, west, "orders", stop_at=changed) == KILLED
    assert _run(east, west, "orders") == 0
    assert settings(west, "orders")["retention.ms"] == "2000000000000"
    assert _run(east, west, "promote") == 0
    assert _run(west, east, "failback", "orders", stop_at=deleted) == KILLED
    assert "orders" not in east.topics()
    assert _run(west, east, "failback", "orders") == 0
    for index in range(2):
        assert stored(east, "orders", index) == stored(west, "orders", index) != []


@pytest.mark.long
def test_failback_that_follows_leaves_alone_what_is_promoted_later(both: Both) -> None:
    """It may make topics anew when it begins, and never again."""
    east, west = both
    east.create_topic("orders")
    produce(east, "orders", numbered(20))
    assert _run(east, west, "orders") == 0
    assert _run(east, west, "promote") == 0
    follow = ("--follow", "--every", "50ms")
    job = _start(west, east, "failback", "orders", "--discard", *follow)
    until(lambda: _is_mirror(east, "orders"), "it is made anew", RUN_S)
    until(lambda: stored(east, "orders") == stored(west, "orders"), "it is copied", RUN_S)
    assert _run(west, east, "promote") == 0
    produce(east, "orders", numbered(5, start=100))
    assert job.wait(RUN_S) == 1, "it says that the mirror was promoted"
    assert len(committed_rows(east.bootstrap, "orders")) == 25


def _is_mirror(server: Server, topic: str) -> bool:
    try:
        return MIRROR_SOURCE in settings(server, topic)
    except ClientError:  # it is not there just now
        return False


def test_sparks_driver_and_tasks_are_killed_while_they_copy(both: Both) -> None:
    """A task that dies ends the job. Tasks of a driver that died may still write when the next one begins."""
    east, west = both
    east.create_topic("bulk")
    value = Random(5).randbytes(20_000)
    produce(east, "bulk", [Sent(b"k%d" % n, value) for n in range(1_000)])
    assert _start(east, west, "bulk", spark=True, stop_at=f"{TASK_STEPS[1]}#2").wait(RUN_S) == 1
    assert 0 < len(stored(west, "bulk")) < len(stored(east, "bulk"))
    job = _start(east, west, "bulk", spark=True)
    until(_grows(west, "bulk", job), "it copies", RUN_S)
    job.kill()
    assert job.wait() in (KILLED, 0)
    produce(east, "bulk", numbered(10))
    assert _start(east, west, "bulk", spark=True).wait(RUN_S) == 0
    assert stored(west, "bulk") == stored(east, "bulk")


def _grows(server: Server, topic: str, job: "subprocess.Popen[bytes]") -> Callable[[], bool]:
    def written_bytes() -> int:
        return sum(path.stat().st_size for path in server.segments(topic))

    before = written_bytes()
    return lambda: written_bytes() > before or job.poll() is not None
