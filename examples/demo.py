"""A broker, a million messages there and back through a group and into a table of Parquet files, and the proof that none was lost or doubled.

Run it with `make demo`. It takes a free port and a temporary directory, and leaves nothing behind.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

TOPIC: Final = "demo"
PARTITIONS: Final = 4
MESSAGES: Final = 1_000_000
MESSAGE_BYTES: Final = 100
CREATE_TIMEOUT_S: Final = 30
SILENCE_TIMEOUT_S: Final = 30  # so long without a message: the rest is lost
STOP_TIMEOUT_S: Final = 15

PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))

console: Final = Console(highlight=False)


class DemoFailed(Exception):
    """What went wrong, in one line."""


class Step(NamedTuple):
    what: str
    messages: int
    seconds: float


class Ledger:
    """Every partition's messages carry 0, 1, 2, …: whatever else arrives was lost, doubled or reordered."""

    def __init__(self) -> None:
        self.next_sequence = [0] * PARTITIONS
        self.wrong: list[str] = []

    @property
    def received(self) -> int:
        return sum(self.next_sequence)

    def check(self, partition: int, value: bytes) -> None:
        sequence = int(value[:12] or -1)
        if sequence != self.next_sequence[partition]:
            self.wrong.append(
                f"partition {partition}: expected {self.next_sequence[partition]}, got {sequence}"
            )
        self.next_sequence[partition] = sequence + 1

    def verdict(self) -> str:
        expected = [len(range(partition, MESSAGES, PARTITIONS)) for partition in range(PARTITIONS)]
        if self.wrong:
            raise DemoFailed(f"{len(self.wrong)} messages out of place; the first: {self.wrong[0]}")
        if self.next_sequence != expected:
            raise DemoFailed(f"partitions ended at {self.next_sequence}, expected {expected}")
        return "none lost, none doubled, none reordered"


@contextmanager
def broker() -> Iterator[str]:
    """A broker in a process of its own; yields the address that it names when it is ready."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as data:
        command = [PENSTOCK, "serve", "--listen", "127.0.0.1:0", "--http", "off", "--data", data]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None, "stdout is a pipe"
                ready = re.search(r"listen=(\S+)", process.stdout.readline())
                if ready is None:
                    raise DemoFailed("the broker ended before it was ready; its reason is above")
                yield ready[1]
            finally:
                stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    created[TOPIC].result(timeout=CREATE_TIMEOUT_S)


def produce(bootstrap: str) -> Step:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 262_144,
            "compression.type": "none",
            "queue.buffering.max.messages": MESSAGES,
            "queue.buffering.max.kbytes": 1_048_576,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
    )
    padding = "." * (MESSAGE_BYTES - 12)
    started = perf_counter()
    for number in range(MESSAGES):
        sequence, partition = divmod(number, PARTITIONS)
        producer.produce(TOPIC, f"{sequence:012d}{padding}", partition=partition)
        if number % 10_000 == 0:
            producer.poll(0)
    unsent = producer.flush(SILENCE_TIMEOUT_S)
    if unsent or failures:
        reason = failures[0] if failures else "no answer"
        raise DemoFailed(f"{unsent + len(failures)} messages were not acknowledged: {reason}")
    return Step("produced, acks=all, idempotent", MESSAGES, perf_counter() - started)


def consume(bootstrap: str, ledger: Ledger) -> Step:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.min.bytes": 65_536,
            "fetch.queue.backoff.ms": 10,  # by default it sleeps a second whenever its queue is full
            "check.crcs": True,
        }
    )
    started = perf_counter()
    consumer.subscribe([TOPIC])
    while ledger.received < MESSAGES and not ledger.wrong:
        messages = consumer.consume(10_000, timeout=SILENCE_TIMEOUT_S)
        if not messages:
            raise DemoFailed(f"only {ledger.received:,} of {MESSAGES:,} messages arrived")
        for message in messages:
            if message.error():
                raise DemoFailed(f"consumer: {message.error()}")
            ledger.check(message.partition() or 0, message.value() or b"")
    consumer.commit(asynchronous=False)
    seconds = perf_counter() - started
    surplus = consumer.consume(1, timeout=0.5)
    committed = consumer.committed([TopicPartition(TOPIC, n) for n in range(PARTITIONS)])
    consumer.close()
    if [partition.offset for partition in committed] != ledger.next_sequence:
        raise DemoFailed(f"the group committed {committed}, and read {ledger.next_sequence}")
    if surplus:
        raise DemoFailed(f"partition {surplus[0].partition()} has more messages than were produced")
    return Step("consumed by a group, each checked", ledger.received, seconds)


def pipeline(bootstrap: str, *words: str) -> dict[str, Any]:
    """A job on Spark; its progress is on the terminal, its summary comes back."""
    command = [PENSTOCK, "pipeline", *words, "--bootstrap", bootstrap, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise DemoFailed(f"penstock {' '.join(command[1:])}: its reason is above")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def fill_lake(bootstrap: str, table: str) -> Step:
    done = pipeline(bootstrap, "lake", TOPIC, "--table", table)
    return Step("written to Parquet by Spark", done["rows"], done["seconds"])


def audit(bootstrap: str, table: str) -> Step:
    started = perf_counter()
    found = pipeline(bootstrap, "audit", TOPIC, "--table", table, "--complete")
    seconds = perf_counter() - started - found["spark_started_in_s"]
    if not found["passed"] or found["agreed"] != MESSAGES:
        raise DemoFailed(f"the table does not have what the topic has: {json.dumps(found)}")
    return Step("topic and table compared", found["agreed"], seconds)


def report(steps: list[Step], verdict: str) -> None:
    table = Table(title=f"{MESSAGES:,} messages of {MESSAGE_BYTES} bytes, {PARTITIONS} partitions")
    table.add_column("step")
    for heading in ("messages", "seconds", "messages/s", "MB/s"):
        table.add_column(heading, justify="right")
    for what, count, seconds in steps:
        rate = count / seconds
        row = f"{count:,}", f"{seconds:.2f}", f"{rate:,.0f}", f"{rate * MESSAGE_BYTES / 1e6:,.1f}"
        table.add_row(what, *row)
    console.print(table)
    console.print(f"checked: {verdict}.")
    console.print("The rates are those of one client or job; a broker does more.\n")
    console.print(
        "Keep a broker running:  [bold].venv/bin/penstock serve[/]  (or [bold]make run[/])"
    )
    console.print("then point any Kafka client at 127.0.0.1:9092; see docs/quickstart.md.")
    console.print("Topics as tables: see docs/pipeline.md.")


def main() -> int:
    ledger = Ledger()
    try:
        with broker() as bootstrap:
            console.print(f"a broker is ready on {bootstrap}")
            create_topic(bootstrap)
            steps = [produce(bootstrap), consume(bootstrap, ledger)]
            verdict = ledger.verdict()
            with tempfile.TemporaryDirectory(prefix="penstock-demo-lake-") as lake:
                table = f"{lake}/{TOPIC}"
                steps += [fill_lake(bootstrap, table), audit(bootstrap, table)]
    except DemoFailed as failure:
        console.print(f"[red]demo failed:[/] {failure}")
        return 1
    report(steps, f"{verdict}, and the table has them all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
