"""`transform` is killed at every step of its transactions, and started again with the same command: each result is there once, in order."""

import signal
from pathlib import Path

import pytest

from penstock.spark.transactional import DRIVER_STEPS, WORKER_STEPS
from tests.spark.topics import Create, Sent, produce
from tests.spark.transforms import Command, assert_placed_as_java_does, by_key, read_committed
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

KEYS = 7
EACH = 36
SQL = "SELECT key, concat('<', value_text, '>') AS value FROM records"
WHOLE: dict[bytes | None, list[bytes | None]] = {
    b"k%d" % key: [b"<%d>" % n for n in range(EACH)] for key in range(KEYS)
}


class Killed:
    """One job, and what readers find of it."""

    def __init__(self, broker: Server, topic: Create, home: Path) -> None:
        """A key has one partition, and counts."""
        self._broker = broker
        forever = {"retention_ms": -1}  # the records are old, and this may take long
        self._source = topic("in", partitions=2, **forever)
        self._target = topic("out", partitions=3)
        sent = [
            Sent(b"k%d" % (n % KEYS), b"%d" % (n // KEYS), n % KEYS % 2) for n in range(EACH * KEYS)
        ]
        produce(broker, self._source, sent)
        words = ("--to", self._target, "--checkpoint", home / "state", "--sql", SQL)
        self._job = Command(
            broker, "transform", self._source, *words, "--batch-records", f"{len(sent) // 4}"
        )

    def run(self, stop_at: str | None = None) -> int:
        """The exit code; what is there by now is the beginning of each key's results."""
        status = self._job.run(stop_at)
        for key, values in by_key(read_committed(self._broker, self._target)).items():
            assert values == WHOLE[key][: len(values)], stop_at
        return status

    @property
    def said(self) -> str:
        return self._job.said

    def check(self) -> None:
        rows = read_committed(self._broker, self._target)
        assert by_key(rows) == WHOLE
        assert_placed_as_java_does(rows, 3)


@pytest.mark.long
def test_the_driver_is_killed_at_every_step(broker: Server, topic: Create, tmp_path: Path) -> None:
    """Twice in the first batch of a run, which may have been committed by the run before, and in the one after it."""
    job = Killed(broker, topic, tmp_path)
    for number, step in enumerate(DRIVER_STEPS):
        # before its first batch a run ends what an earlier one left, with the first two steps
        which = 1 + number % 2 + (step in DRIVER_STEPS[:2])
        assert job.run(f"{step}#{which}") == -signal.SIGKILL, (step, job.said)
    assert job.run() == 0, job.said
    job.check()


@pytest.mark.parametrize(
    "steps", [WORKER_STEPS[2:3], pytest.param(WORKER_STEPS, marks=pytest.mark.long)], ids=len
)
def test_a_worker_is_killed_at_every_step(
    broker: Server, topic: Create, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    """The run fails, and says so; the next one does what was left."""
    job = Killed(broker, topic, tmp_path)
    for step in steps:
        assert job.run(step) == 1, (step, job.said)
    assert job.run() == 0, job.said
    job.check()
