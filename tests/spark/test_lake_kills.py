"""`lake` is killed with SIGKILL at every step of its protocol, and started again with the same command: nothing is lost or doubled."""

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from penstock.spark.jobs.lake_batches import STEPS
from penstock.spark.steps import VARIABLE
from tests.spark.lakes import Place, places, read
from tests.spark.topics import Create, Sent, produce
from tests.support.command import command, environment
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

RUN_S = 10 * PATIENCE_S
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds only


class Command:
    """The same command, again and again, with other steps to be killed at."""

    def __init__(self, broker: Server, table: Path, *words: str, master: str = "local[2]") -> None:
        self.table = table
        self._words = [
            *("pipeline", "lake", *words, "--table", str(table), "--bootstrap", broker.bootstrap),
            *("--batch-records", "60", "--json", "--master", master),
            *("--conf", "spark.driver.memory=512m"),
        ]

    def run(self, stop_at: str | None = None) -> int:
        return self.start(stop_at).wait(RUN_S)

    def start(self, stop_at: str | None = None) -> "subprocess.Popen[bytes]":
        variables = {"JAVA_TOOL_OPTIONS": QUICK_JVM} | ({VARIABLE: stop_at} if stop_at else {})
        return subprocess.Popen(
            command(*self._words),
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def found(self) -> Counter[Place]:
        dead = self.table.with_name(self.table.name + "_dead_letters")
        return places(read(self.table), read(dead))


def _check(lake: Command, topic: str, counts: list[int]) -> None:
    """Each record once, and nothing left over."""
    assert lake.found() == {
        (topic, p, o): 1 for p, count in enumerate(counts) for o in range(count)
    }
    left = [path for path in lake.table.parent.glob("*/_penstock/*/staging/*") if path.is_dir()]
    assert left == []


def test_killed_at_every_step_with_bad_records_among_the_json(
    broker: Server, topic: Create, tmp_path: Path
) -> None:
    """Each step twice: in the batch that comes first, and in the one after it."""
    name = topic("kill", partitions=2)
    values = [b'{"n": %d}' % n if n % 3 else b"bad %d" % n for n in range(400)]
    produce(broker, name, [Sent(b"k", value, n % 2) for n, value in enumerate(values)])
    lake = Command(broker, tmp_path / "table", name, "--decode", "json", "--schema", "n BIGINT")
    for number, step in enumerate(STEPS):
        assert lake.run(f"{step}#{1 + number % 2}") == -signal.SIGKILL, step
        assert max(lake.found().values(), default=1) == 1, step
    assert lake.run() == 0
    _check(lake, name, [200, 200])
    rows = read(lake.table)
    assert sorted(row["value"]["n"] for row in rows) == [n for n in range(400) if n % 3]
