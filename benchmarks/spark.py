"""What `format("penstock")` reads a second, beside Spark's own `kafka` source on the same topics: `make bench B=spark`.

Broker, JVM and Python workers share the cores of this machine. Sources take turns within each round, and what counts is the
ratio of a round: the machine may be busy. The ceiling is a Python data source that gives prebuilt Arrow batches of
the same shape and does nothing else: no source in Python can be faster. "CPU" is what each side used for a million rows.
After that come micro-batches under a light, steady load, and the mirror job from one broker to another.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import confluent_kafka
import psutil
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.rig import (
    load_average,
    parser,
    percentiles,
    print_heading,
    print_machine,
    print_row,
)
from penstock.client.connection import Connection, parse_address
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.spark.arrow import arrow_schema
from penstock.spark.session import SessionSettings, open_session
from penstock.testing import Broker
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.spark_connector import NotToBeHad, fetch_jars

_PARTITIONS: Final = 4
_BATCH_BYTES: Final = 64 << 10
_KINDS: Final = 64  # of batches: more values than a dictionary of Parquet holds
_ASK_MS: Final = 60_000
_CEILING: Final = "ceiling"
_OURS: Final = "penstock"
_THEIRS: Final = "kafka"
_PER_SECOND: Final = 200  # of the light load
_GOAL: Final = {100: 1.5, 1000: 1.0}  # times Spark's own source
_GOAL_OF_CEILING: Final = 0.8
_MEMORY: Final = {"spark.driver.memory": "4g"}


# The topics ------------------------------------------------------------------------------------


def batches_of(value_bytes: int) -> list[tuple[bytes, int]]:
    """Batches that differ, and how many records each has."""
    dice, now_ms = Random(value_bytes), time.time_ns() // 1_000_000
    count = _BATCH_BYTES // (value_bytes + 20)
    return [
        (
            bytes(
                build_batch(
                    [
                        Record(i, now_ms, b"%010d" % i, dice.randbytes(value_bytes))
                        for i in range(count)
                    ]
                )
            ),
            count,
        )
        for _ in range(_KINDS)
    ]


async def fill(bootstrap: str, topic: str, value_bytes: int, megabytes: int) -> int:
    """How many records were written."""
    batches, written = batches_of(value_bytes), 0
    connection = await Connection.open(
        parse_address(bootstrap), client_id="bench", timeout_ms=_ASK_MS
    )
    try:
        for number in range(megabytes * 1_000_000 // _BATCH_BYTES):
            batch, count = batches[number % _KINDS]
            data = PartitionProduceData(index=number % _PARTITIONS, records=memoryview(batch))
            request = ProduceRequest(
                acks=1,
                timeout_ms=_ASK_MS,
                topic_data=[TopicProduceData(name=topic, partition_data=[data])],
            )
            answer = await connection.request(
                request, ProduceResponse, at_most=12, timeout_ms=_ASK_MS
            )
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                raise SystemExit(f"{topic} took no more: error {code}")
            written += count
    finally:
        await connection.close()
    return written


# The ceiling -----------------------------------------------------------------------------------


class CeilingReader(DataSourceReader):
    """Gives one batch again and again."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._value_bytes = int(options["valueBytes"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # Spark's signature
        count = (4 << 20) // (self._value_bytes + 20)  # about as many as ours gives at a time
        dice, left = Random(1), self._rows // _PARTITIONS
        columns = (
            [b"%010d" % i for i in range(count)],
            [dice.randbytes(self._value_bytes) for _ in range(count)],
            ["t"] * count,
            [0] * count,
            list(range(count)),
            [time.time_ns() // 1000] * count,
            [0] * count,
        )
        schema = arrow_schema()
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]  # fmt: skip
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count


class Ceiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return _CEILING

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: Any) -> CeilingReader:  # noqa: ARG002  # Spark's signature
        return CeilingReader(self.options)


# Reading everything ----------------------------------------------------------------------------


class Cpu(NamedTuple):
    """Seconds, all threads and children."""

    jvm: float
    workers: float
    broker: float

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(*(now - then for now, then in zip(self, before, strict=True)))


def cpu_now(broker_pid: int) -> Cpu:
    jvm = workers = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            words, times = process.cmdline(), process.cpu_times()
        except psutil.Error:
            continue
        seconds = times.user + times.system
        if process.pid != broker_pid and words and "java" in Path(words[0]).name:
            jvm += seconds
        elif any("pyspark.daemon" in word or "pyspark.worker" in word for word in words):
            workers += seconds + times.children_user + times.children_system
    times = psutil.Process(broker_pid).cpu_times()
    return Cpu(jvm, workers, times.user + times.system)


class Took(NamedTuple):
    seconds: float
    cpu: Cpu


def into_nothing(frame: Any, home: Path) -> None:  # noqa: ARG001  # as the others
    frame.write.format("noop").mode("overwrite").save()


def into_parquet(frame: Any, home: Path) -> None:
    try:
        frame.write.parquet(str(home / "table"))
    finally:
        shutil.rmtree(home / "table", ignore_errors=True)


SINKS: Final[dict[str, Callable[[Any, Path], None]]] = {"noop": into_nothing, "Parquet": into_parquet}  # fmt: skip


class Case(NamedTuple):
    value_bytes: int
    topic: str
    rows: int


def read_once(spark: Any, broker: Broker, source: str, case: Case, sink: str, home: Path) -> Took:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": case.topic,
    }
    if source == _CEILING:
        options = {"rows": str(case.rows), "valueBytes": str(case.value_bytes)}
    before, begun_s = cpu_now(broker.pid), time.monotonic()
    SINKS[sink](spark.read.format(source).options(**options).load(), home)
    return Took(time.monotonic() - begun_s, cpu_now(broker.pid).since(before))


def compare(
    spark: Any, broker: Broker, case: Case, sink: str, sources: Sequence[str], rounds: int, home: Path
) -> None:  # fmt: skip
    took: dict[str, list[Took]] = {source: [] for source in sources}
    for source in sources:
        read_once(spark, broker, source, case, sink, home)  # compilers, caches, workers
    for _ in range(rounds):
        for source in sources:
            took[source].append(read_once(spark, broker, source, case, sink, home))
    for source in sources:
        _report(case, sink, source, took)


def _report(case: Case, sink: str, source: str, took: Mapping[str, Sequence[Took]]) -> None:
    best = min(took[source], key=lambda it: it.seconds)
    rows_s = case.rows / best.seconds
    ratios = {
        other: [theirs.seconds / ours.seconds for ours, theirs in zip(took[source], took[other], strict=True)]
        for other in took
    }  # fmt: skip
    print_row(
        f"{case.value_bytes} B",
        sink,
        source,
        f"{rows_s:,.0f}",
        f"{rows_s * case.value_bytes / 1e6:,.0f}",
        *(_spread(ratios.get(other)) for other in (_THEIRS, _CEILING)),
        " / ".join(f"{seconds / case.rows * 1e6:.2f}" for seconds in best.cpu),
        _verdict(case, ratios) if source == _OURS else "",
    )


def _spread(ratios: Sequence[float] | None) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"


def _verdict(case: Case, ratios: Mapping[str, Sequence[float]]) -> str:
    if _THEIRS not in ratios:
        return "nothing to compare with"
    ours, of_ceiling = median(ratios[_THEIRS]), median(ratios[_CEILING])
    good = ours >= _GOAL[case.value_bytes]
    if case.value_bytes == min(_GOAL):
        good = good or of_ceiling >= _GOAL_OF_CEILING
    return "reached" if good else "missed"


# Micro-batches ---------------------------------------------------------------------------------


@contextmanager
def light_load(bootstrap: str, topic: str) -> Iterator[None]:
    """Messages that say when they were sent, at a steady rate."""
    ending = Event()

    def send() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        due_s = time.monotonic()
        while not ending.is_set():
            producer.produce(topic, b"x" * 100, timestamp=time.time_ns() // 1_000_000)
            due_s += 1 / _PER_SECOND
            producer.poll(0)
            time.sleep(max(0.0, due_s - time.monotonic()))
        producer.flush(30)

    thread = Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def micro_batches(spark: Any, bootstrap: str, source: str, topic: str, seconds: float, home: Path) -> list[float]:  # fmt: skip
    """How old each message was when its batch was at hand, in ms; without the first quarter of the time."""
    ages: list[tuple[float, float]] = []

    def take(part: Any, _: int) -> None:
        times = [row[0].timestamp() for row in part.select("timestamp").collect()]
        now_s = time.time_ns() / 1e9
        ages.extend((now_s, (now_s - sent_s) * 1000) for sent_s in times)

    stream = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
    )
    begun_s = time.time_ns() / 1e9
    query = (
        stream.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(home / f"checkpoint-{source}-{time.monotonic_ns()}"))
        .start()
    )
    try:
        query.awaitTermination(int(seconds))
    finally:
        query.stop()
    return [age for at_s, age in ages if at_s - begun_s > seconds / 4]


def report_micro_batches(spark: Any, broker: Broker, sources: Sequence[str], seconds: float, home: Path) -> None:  # fmt: skip
    print(f"\nMicro-batches, {_PER_SECOND} messages/s, from sent to at hand in foreachBatch, ms\n")
    print_heading("source", "messages", "p50", "p99", "worst")
    broker.create_topic("light", partitions=_PARTITIONS)
    with light_load(broker.bootstrap, "light"):
        for source in sources:
            ages = micro_batches(spark, broker.bootstrap, source, "light", seconds, home)
            cells = [f"{value:,.0f}" for value in percentiles(ages, 0.5, 0.99, 1.0)]
            print_row(source, f"{len(ages):,}", *cells)


# The mirror ------------------------------------------------------------------------------------


def mirror(broker: Broker, case: Case) -> None:
    with Broker(subprocess=True) as target:
        words = ("mirror", case.topic, "--target", target.bootstrap, "--json")
        begun_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", *words, "--bootstrap", broker.bootstrap],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"mirror: {done.stderr}")
        seconds, copied = time.monotonic() - begun_s, json.loads(done.stdout)
        print(
            f"\nMirror of {copied['bytes'] / 1e6:,.0f} MB in {copied['batches']:,} batches: {copied['seconds']:.1f} s, "
            f"{copied['bytes'] / copied['seconds'] / 1e6:.0f} MB/s; with the start of Spark {seconds:.1f} s"
        )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3, help="of each case")
    options.add_argument("--megabytes", type=int, default=1000, help="of each topic")
    options.add_argument(
        "--seconds", type=float, default=30.0, help="of micro-batches, each source"
    )
    options.add_argument(
        "--only", default="", metavar="TEXT", help="cases with this in their names"
    )
    arguments = options.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.data) as place:
        home, confs, sources = Path(place), dict(_MEMORY), [_OURS, _CEILING]
        try:
            confs["spark.jars"] = ",".join(map(str, fetch_jars(home)))
            sources.insert(0, _THEIRS)
        except NotToBeHad as reason:
            print(f"nothing to compare with: {reason}\n")
        broker = Broker(subprocess=True, data_dir=home / "data")
        with broker, open_session(SessionSettings(master="local[2]", confs=confs)) as spark:
            run(spark, broker, sources, arguments, home)
    print(f"\nload average after the run {load_average():.1f}")


def run(spark: Any, broker: Broker, sources: Sequence[str], arguments: Any, home: Path) -> None:
    spark.dataSource.register(Ceiling)
    print_heading(
        "values", "to", "source", "rows/s", "MB/s", "times kafka", "times ceiling",
        "CPU s a million rows: JVM / workers / broker", "goal",
    )  # fmt: skip
    cases = [written(broker, value_bytes, arguments.megabytes) for value_bytes in _GOAL]
    for case in cases:
        for sink in SINKS:
            if arguments.only in f"{case.value_bytes} {sink}":
                compare(spark, broker, case, sink, sources, arguments.rounds, home)
    if arguments.only in "micro-batches":
        readers = [source for source in sources if source != _CEILING]
        report_micro_batches(spark, broker, readers, arguments.seconds, home)
    if arguments.only in "mirror":
        mirror(broker, cases[-1])


def written(broker: Broker, value_bytes: int, megabytes: int) -> Case:
    topic = f"values-{value_bytes}"
    broker.create_topic(topic, partitions=_PARTITIONS)
    rows = asyncio.run(fill(broker.bootstrap, topic, value_bytes, megabytes))
    return Case(value_bytes, topic, rows)


if __name__ == "__main__":
    main()
