"""The examples of docs/examples/spark.md do what they say, run as their readers run them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow.csv
import pytest

from tests.spark.lakes import read
from tests.spark.standalone import QUICK_JVM
from tests.spark.topics import Create, Sent, produce
from tests.support.command import environment, penstock_command
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
]  # a JVM or two each, also on a busy machine

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
RUN_S = 8 * PATIENCE_S
HOUR_MS = 3_600_000
TEN_MS = 1_794_736_800_000  # 2026-11-15T10:00:00Z


def words(name: str, broker: Server, *more: object) -> list[str]:
    return [
        *(sys.executable, str(EXAMPLES / f"{name}.py"), "--bootstrap", broker.bootstrap),
        *("--master", "local[2]", *map(str, more)),
    ]


def run(name: str, broker: Server, *more: object) -> str:
    done = subprocess.run(
        words(name, broker, *more),
        env=environment(JAVA_TOOL_OPTIONS=QUICK_JVM),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(name: str, broker: Server, *more: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Until the block ends; then Ctrl-C, which it must take well."""
    process = subprocess.Popen(
        words(name, broker, *more),
        env=environment(JAVA_TOOL_OPTIONS=QUICK_JVM),
        start_new_session=True,
    )
    try:
        yield process
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(RUN_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def expect(process: "subprocess.Popen[bytes]", condition: Callable[[], bool]) -> None:
    until(lambda: process.poll() is not None or condition(), "what the example does", RUN_S)
    assert process.poll() is None, "it ended; what it said is on stderr"


def newest(broker: Server, topic: str) -> dict[str, str]:
    """The last value of each key."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "newest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: dict[str, str] = {}
    try:
        while (message := consumer.poll(PATIENCE_S)).error() is None:
            found[message.key().decode()] = message.value().decode()
    finally:
        consumer.close()
    return found


@pytest.mark.long
def test_words_are_counted_while_they_arrive(broker: Server, topic: Create, tmp_path: Path) -> None:
    source, target = topic("sentences", partitions=2, retention_ms=-1), topic("counts")
    flags = ("--from", source, "--to", target, "--checkpoint", tmp_path)
    counts = {"the": "3", "fox": "1", "and": "1", "dog": "1", "fox's": "1", "öl": "1"}
    with running("word_count", broker, *flags) as example:
        produce(broker, source, [Sent(None, b"The fox and the dog.", 0)])
        expect(example, lambda: len(newest(broker, target)) == 4)
        produce(broker, source, [Sent(None, "the fox's Öl".encode(), 1)])
        expect(example, lambda: newest(broker, target) == counts)  # two tasks write them
    assert newest(broker, target) == counts
    described = penstock_command(
        "group", "describe", "word-count", "--json", "--bootstrap", broker.bootstrap
    )
    assert source in {row["topic"] for row in described.json()["partitions"]}


def test_orders_become_a_table_and_the_table_a_report(
    broker: Server, topic: Create, tmp_path: Path
) -> None:
    name, table, report = topic("orders", partitions=2), tmp_path / "orders", tmp_path / "report"
    flags = ("--topic", name, "--table", table, "--report", report)
    said = run("daily_revenue", broker, *flags, "--sample", 300)
    rows = read(table)
    assert sorted(row["value"]["id"] for row in rows) == [n for n in range(300) if n % 100 != 99]
    assert {bytes(row["value"]) for row in read(tmp_path / "orders_dead_letters")} == {b"oops"}
    (path,) = report.glob("*.csv")
    days = pyarrow.csv.read_csv(path).to_pylist()
    assert sum(Decimal(str(day["revenue"])) for day in days) == sum(
        row["value"]["amount"] for row in rows
    )
    assert sum(day["orders"] for day in days) == 297
    assert "|2026-11-01|     AT|" in said


@pytest.mark.long
def test_an_hour_of_wrong_results_is_corrected_and_nothing_else(
    broker: Server, topic: Create
) -> None:
    payments, amounts = topic("payments", retention_ms=-1), topic("amounts", retention_ms=-1)
    at_ms = {"before": TEN_MS - 1, "bad": TEN_MS, "fine": TEN_MS + 5, "after": TEN_MS + HOUR_MS}
    produce(
        broker,
        payments,
        [Sent(key.encode(), b'{"amount": "1.234,50"}', 0, at) for key, at in at_ms.items()],
    )
    results = {"before": b"1", "bad": b"1", "fine": b"123450", "after": b"1"}
    produce(broker, amounts, [Sent(key.encode(), value) for key, value in results.items()])
    flags = (
        *("--from", payments, "--to", amounts),
        *("--since", "2026-11-15T10:00:00Z", "--until", "2026-11-15T11:00:00Z"),
    )
    said = run("replay_after_a_bug", broker, *flags)
    assert "1 corrections were sent" in said
    assert newest(broker, amounts) == {
        **{"before": "1", "bad": "123450", "fine": "123450", "after": "1"}
    }
    again = run("replay_after_a_bug", broker, *flags)
    assert "0 corrections were sent" in again
