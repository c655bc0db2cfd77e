"""`lake` is killed with SIGKILL at every step of its protocol, and started again with the same command: nothing is lost or doubled."""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from glob import glob
from pathlib import Path

import psutil
import pytest

from penstock.spark.jobs.lake.compact import STEPS as COMPACTION_STEPS
from penstock.spark.jobs.table.batches import STEPS
from penstock.spark.steps import VARIABLE
from tests.spark.lakes import Place, places, read
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.command import command, environment
from tests.support.server import PATIENCE_S, Server, until, until_data

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

RUN_S = 10 * PATIENCE_S
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds only


class Command:
    """The same command, again and again, with other steps to be killed at."""

    def __init__(self, broker: Server, table: Path, *words: str, master: str = "local[2]") -> None:
        self.table = table
        self._said = table.with_suffix(".said")
        self._words = [
            *("pipeline", "lake", *words, "--table", str(table), "--bootstrap", broker.bootstrap),
            *("--batch-records", "60", "--json", "--master", master),
            *("--conf", "spark.driver.memory=512m"),
        ]

    def run(self, stop_at: str | None = None) -> int:
        return self.start(stop_at).wait(RUN_S)

    def start(self, stop_at: str | None = None) -> "subprocess.Popen[bytes]":
        variables = {"JAVA_TOOL_OPTIONS": QUICK_JVM} | ({VARIABLE: stop_at} if stop_at else {})
        with open(self._said, "wb") as said:
            return subprocess.Popen(
                command(*self._words),
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def said(self) -> str:
        """By its last run, on stderr."""
        return self._said.read_text()

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
    name = topic("kill", partitions=2, retention_ms=-1)
    values = [b'{"n": %d}' % n if n % 3 else b"bad %d" % n for n in range(400)]
    produce(broker, name, [Sent(b"k", value, n % 2) for n, value in enumerate(values)])
    lake = Command(broker, tmp_path / "table", name, "--decode", "json", "--schema", "n BIGINT")
    for number, step in enumerate(STEPS):
        assert lake.run(f"{step}#{1 + number % 2}") == -signal.SIGKILL, f"{step}: {lake.said()}"
        assert max(lake.found().values(), default=1) == 1, step
    assert lake.run() == 0, lake.said()
    _check(lake, name, [200, 200])
    rows = read(lake.table)
    assert sorted(row["value"]["n"] for row in rows) == [n for n in range(400) if n % 3]


def test_raw_records_and_their_compaction_killed_at_every_step(
    broker: Server, topic: Create, tmp_path: Path
) -> None:
    """A compaction that is killed may leave records doubled until the next run, and never fewer."""
    name = topic("kill", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(200, partitions=2))
    lake = Command(broker, tmp_path / "table", name, "--compact")
    for step in ("lake:staged", "lake:manifest#2", "lake:first-renamed#2", "lake:table"):
        assert lake.run(step) == -signal.SIGKILL, f"{step}: {lake.said()}"
        assert max(lake.found().values(), default=1) == 1, step
    count = 200
    for step in COMPACTION_STEPS:
        before = set(lake.found())
        assert lake.run(step) == -signal.SIGKILL, f"{step}: {lake.said()}"
        assert before <= set(lake.found()), step
        produce(broker, name, numbered(10, partitions=2))
        count += 10
    assert lake.run() == 0, lake.said()
    _check(lake, name, [count // 2, count // 2])
    assert len(list(lake.table.glob("topic=*/date=*/*.parquet"))) == 1


def test_workers_and_the_jvm_are_killed(broker: Server, topic: Create, tmp_path: Path) -> None:
    """A task may be tried again; where it may not, the job fails, and the next run goes on."""
    name = topic("kill", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(400, partitions=2))
    lake = Command(broker, tmp_path / "table", name)
    for number, master in enumerate(("local[2]", "local[2,4]", "local[2,4]")):
        lake = Command(broker, tmp_path / "table", name, master=master)
        process = lake.start()
        _kill_worker(process, after=number)
        assert process.wait(RUN_S) in (0, 1)
        assert max(lake.found().values(), default=1) == 1
    produce(broker, name, numbered(400, partitions=2))
    process = lake.start()
    _kill_jvm(process, lake)
    assert process.wait(RUN_S) == 1
    assert lake.run() == 0, lake.said()
    _check(lake, name, [400, 400])


def test_it_follows_until_it_is_interrupted(broker: Server, topic: Create, tmp_path: Path) -> None:
    name = topic("follow", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(20, partitions=2))
    lake = Command(broker, tmp_path / "table", name, "--follow", "--every", "100ms")
    process = lake.start()
    until_data(lambda: len(lake.found()) == 20, "the first records", RUN_S)
    produce(broker, name, numbered(20, partitions=2))
    until_data(lambda: len(lake.found()) == 40, "those that came later", RUN_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(RUN_S) == 0
    _check(lake, name, [20, 20])


def _kill_worker(process: "subprocess.Popen[bytes]", *, after: int) -> None:
    """One of Spark's Python workers: children of its daemon. `after`: so many are spared."""
    seen: list[int] = []

    def found() -> bool:
        if process.poll() is not None:
            return True
        for child in _descendants(process):
            is_worker = "pyspark.daemon" in child.cmdline() and child.pid not in seen
            if is_worker and "pyspark.daemon" in (child.parent() or child).cmdline():
                seen.append(child.pid)
                if len(seen) > after:
                    child.send_signal(signal.SIGKILL)
                    return True
        return False

    until(lambda: _quietly(found), "a Python worker", RUN_S)


def _kill_jvm(process: "subprocess.Popen[bytes]", lake: Command) -> None:
    """As soon as the first batch of this run is in the table."""
    manifests = f"{lake.table}/_penstock/*/manifests/*.json"
    before = len(glob(manifests))
    until(lambda: len(glob(manifests)) > before, "a batch", RUN_S)
    for child in _descendants(process):
        with suppress(psutil.NoSuchProcess):  # a worker that has ended meanwhile
            if child.name() == "java":
                child.send_signal(signal.SIGKILL)


def _descendants(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def _quietly(look: Callable[[], bool]) -> bool:
    """Processes come and go while they are looked at."""
    try:
        return look()
    except psutil.Error:
        return False
