"""`mirror --translate` is killed with SIGKILL at every step, and started again with the same command: each record is there once, in order."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from penstock.spark.jobs.mirror.translate.actions import PROMOTE_STEPS
from penstock.spark.jobs.mirror.translate.rounds import TRANSLATE_STEPS
from penstock.spark.steps import VARIABLE
from penstock.spark.transactional import DRIVER_STEPS, WORKER_STEPS
from tests.spark.conftest import ROOT
from tests.spark.mirrors import two_clusters
from tests.spark.topics import Sent, numbered, produce
from tests.spark.translated import (
    assert_exact,
    assert_groups_go_on,
    groups_at,
    kept,
    rows_at,
    set_groups,
)
from tests.support.command import SOURCE, command, environment
from tests.support.mirrors import write_transactions
from tests.support.server import PATIENCE_S, Server, until, until_data

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

Both = tuple[Server, Server]
RUN_S = 10 * PATIENCE_S
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds only
WITHOUT_SPARK = [sys.executable, "-m", "tests.spark.mirror_without_spark"]
KILLED = -signal.SIGKILL
ONCE = ("mirror:log", "mirror:claimed", "mirror:topic-created")  # only the first time


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with two_clusters(tmp_path) as servers:
        yield servers


class Job:
    """The same command, again and again, and what readers find of it."""

    def __init__(self, both: Both, *what: str) -> None:
        self.said = ""
        self._source, self._target = both
        self._home = both[0].data_dir.parent
        self._words = ["pipeline", "mirror", *what, "--translate"]
        self._words += ["--bootstrap", both[0].bootstrap, "--target", both[1].bootstrap]

    def start(self) -> "subprocess.Popen[bytes]":
        """Without Spark, and without a word."""
        return subprocess.Popen(
            [*WITHOUT_SPARK, *self._words],
            env=environment(PYTHONPATH=os.pathsep.join([SOURCE, ROOT])),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, stop_at: str | None = None, *, spark: bool = False) -> int:
        """By the real command, or with the tasks' work done by the driver."""
        variables = {"JAVA_TOOL_OPTIONS": QUICK_JVM, "PYTHONPATH": os.pathsep.join([SOURCE, ROOT])}
        variables |= {VARIABLE: stop_at} if stop_at else {}
        words = (
            command(*self._words, "--master", "local[2]")
            if spark
            else [*WITHOUT_SPARK, *self._words]
        )
        with (self._home / "said").open("w+") as said:  # no pipe: workers may outlive a driver
            status = subprocess.run(
                words,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=RUN_S,
                check=False,
            ).returncode
            said.seek(0)
            self.said = said.read()
        return status

    def check_beginning(self, topic: str, groups: dict[str, dict[int, int]]) -> None:
        """Whatever was reached: what the copy has is the source's beginning, and no group is ahead of it."""
        if topic not in self._target.topics():
            return
        wanted, found = kept(rows_at(self._source, topic)), rows_at(self._target, topic)
        moved = groups_at(self._target, topic, groups)
        for index in range(self._target.topics()[topic]):
            has = [row for row in found if row.partition == index]
            all_of_it = [row for row in wanted if row.partition == index]
            assert kept(has) == all_of_it[: len(has)]
            for name in groups:
                at = moved[name].get(index, -1)
                assert at <= (has[-1].offset + 1 if has else 0)


def test_killed_at_every_step_again_and_again(both: Both) -> None:
    """More is written after each kill, in plain batches and in transactions. First in order, then in any."""
    east, _ = both
    rng = Random(4)
    east.create_topic("orders", partitions=2, retention_ms=-1)
    job = Job(both, "orders", "--batch-records", "50")
    steps = [*TRANSLATE_STEPS, *DRIVER_STEPS, *WORKER_STEPS]
    again = [step for step in steps if step not in ONCE]
    rng.shuffle(again)
    groups = {"readers": {0: 0, 1: 0}}
    for number, step in enumerate([*steps, *again]):
        produce(east, "orders", numbered(40, 2, start=40 * number))
        if number % 4 == 0:
            last = write_transactions(east, "orders", rng, 3)
            last.end(committed=number % 8 == 0)
            last.disconnect()
        groups["readers"] = {0: 21 * number, 1: 20 * number}
        set_groups(east, "orders", groups)
        which = step if number < len(steps) else f"{step}#{rng.choice((1, 1, 2))}"
        assert job.run(which) in ((KILLED,) if which == step else (KILLED, 0)), (which, job.said)
        job.check_beginning("orders", groups)
    assert job.run() == 0, job.said
    assert len(assert_exact(*both, "orders")) >= 40 * len(steps)
    assert_groups_go_on(*both, "orders", groups)


def test_killed_while_it_is_promoted_and_fails_back(both: Both) -> None:
    east, west = both
    east.create_topic("orders", retention_ms=-1)
    produce(east, "orders", numbered(20))
    copy, promote = Job(both, "orders"), Job(both, "promote")
    assert copy.run() == 0, copy.said
    set_groups(east, "orders", {"readers": {0: 11}})
    for step in PROMOTE_STEPS:
        assert promote.run(step) == KILLED, (step, promote.said)
    assert promote.run() == 0, promote.said
    assert copy.run() == 1
    assert "was promoted" in copy.said
    assert groups_at(west, "orders", ["readers"]) == {"readers": {0: 11}}
    produce(west, "orders", numbered(5, start=100))
    failback = Job((west, east), "failback", "orders")
    for step in ("mirror:claimed", "mirror:mapped", "transaction:committed"):
        assert failback.run(step) == KILLED, (step, failback.said)
        assert len(rows_at(east, "orders")) in (20, 25)
    assert failback.run() == 0, failback.said
    assert [row.value for row in rows_at(east, "orders")][20:] == [
        b"value %d" % n for n in range(100, 105)
    ]


def test_a_job_that_follows_ends_when_its_copy_is_promoted(both: Both) -> None:
    """And what comes later is not copied."""
    east, west = both
    east.create_topic("orders", retention_ms=-1)
    produce(east, "orders", numbered(20))
    follow = Job(both, "orders", "--follow", "--every", "50ms").start()
    until_data(
        lambda: "orders" in west.topics() and len(rows_at(west, "orders")) == 20, "it copies"
    )
    promote = Job(both, "promote", "orders")
    assert promote.run() == 0, promote.said
    produce(east, "orders", numbered(20, start=20))
    assert follow.wait(RUN_S) == 1
    assert len(rows_at(west, "orders")) == 20


def test_two_jobs_on_one_link_shut_each_other_out_and_copy_nothing_twice(both: Both) -> None:
    """One that was shut out in a transaction ends, and is started again."""
    east, west = both
    east.create_topic("orders", partitions=2, retention_ms=-1)
    job = Job(both, "orders", "--batch-records", "20")
    assert job.run() == 0, job.said
    follow = Job(both, "orders", "--batch-records", "20", "--follow", "--every", "1ms")
    jobs = [follow.start() for _ in range(2)]

    def is_copied(count: int) -> bool:
        for n, each in enumerate(jobs):
            if each.poll() is not None:
                assert each.returncode == 1, "it was shut out"
                jobs[n] = follow.start()
        return len(rows_at(west, "orders")) >= count

    for number in range(30):
        produce(east, "orders", numbered(40, 2, start=40 * number))
        until(partial(is_copied, 40 * number), "they copy", RUN_S)
    until(partial(is_copied, 1200), "they copy", RUN_S)
    for each in jobs:
        each.kill()
        assert each.wait() in (1, KILLED)
    assert job.run() == 0, job.said
    assert len(assert_exact(*both, "orders")) == 1200


def test_sparks_driver_and_tasks_are_killed_while_they_copy(both: Both) -> None:
    """A task that dies ends the job, and what was written is aborted. A driver that dies leaves tasks that write on."""
    east, _ = both
    east.create_topic("bulk", partitions=2, retention_ms=-1)
    value = Random(5).randbytes(20_000)
    produce(east, "bulk", [Sent(b"k%d" % n, value, n % 2) for n in range(400)])
    job = Job(both, "bulk")
    assert job.run("transaction:first-sent#2", spark=True) == 1, job.said
    job.check_beginning("bulk", {})
    assert job.run("transaction:written", spark=True) == KILLED, job.said
    job.check_beginning("bulk", {})
    produce(east, "bulk", numbered(10, 2))
    assert job.run(spark=True) == 0, job.said
    assert_exact(*both, "bulk")
