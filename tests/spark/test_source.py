"""Batch queries: `format("penstock")` gives exactly what was written, in Spark's own schema."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.records.batch import parse_header
from penstock.records.record import decode_records
from tests.spark.topics import (
    KEEPS_ALL,
    Create,
    Queries,
    Sent,
    by_place,
    numbered,
    produce,
    transactions,
    values,
)
from tests.support.command import environment
from tests.support.server import Server, until

pytestmark = pytest.mark.spark

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def queries(spark: Any, broker: Server, tmp_path: Path) -> Queries:
    return Queries(spark, broker, tmp_path)


def fails(run: Callable[[], object]) -> str:
    """What a query says when it fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own kinds say nothing
        run()
    return str(caught.value)


def test_the_schema_is_that_of_sparks_own_source(queries: Queries, topic: Create) -> None:
    plain = queries.read(topic())
    rich = queries.read(topic(), includeHeaders=True)

    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert rich.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


@pytest.mark.parametrize(
    "codec",
    [*(pytest.param(it, marks=pytest.mark.long) for it in CODECS if it != "zstd"), "zstd"],
)
def test_rows_are_what_was_written(
    queries: Queries, broker: Server, topic: Create, codec: str
) -> None:
    name = topic(f"codec-{codec}", partitions=3)
    messages = [
        *numbered(500, partitions=3),
        Sent(None, b"no key", 1),
        Sent(b"tombstone", None, 2),
        Sent(b"", b"", 0),
        Sent(b"headed", b"v", 0, headers=(("a", b"1"), ("a", None), ("ü", b""))),
    ]
    written = produce(broker, name, messages, compression_type=codec)

    rows = by_place(queries.read(name, includeHeaders=True).collect())

    assert rows.keys() == written.keys()
    for place, sent in written.items():
        row = rows[place]
        assert (row["topic"], row["timestampType"]) == (name, 0)
        assert (row["key"], row["value"]) == (sent.key, sent.value)
        expected = datetime.fromtimestamp(sent.timestamp_ms / 1000, UTC)
        assert row["timestamp"].astimezone(UTC) == expected
        assert [(h["key"], h["value"]) for h in row["headers"] or []] == list(sent.headers)
        assert row["headers"] is None or sent.headers


@pytest.mark.long
def test_the_time_of_appending_is_told_as_such(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("appended", message_timestamp_type="LogAppendTime")
    produce(broker, name, numbered(3))

    rows = queries.read(name).collect()

    assert [row["timestampType"] for row in rows] == [1, 1, 1]
    assert rows[0]["timestamp"].year > 2024


@pytest.mark.long
def test_columns_are_read_as_chosen(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("columns")
    produce(broker, name, numbered(4))

    chosen = queries.read(name, columns="offset,value")
    by_schema = queries.spark.read.format("penstock").schema("value binary, partition int")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name}

    assert chosen.columns == ["offset", "value"]
    assert [(row[0], bytes(row[1])) for row in chosen.collect()] == [
        (n, b"value %d" % n) for n in range(4)
    ]
    assert values(by_schema.options(**options).load().collect()) == values(chosen.collect())
    said = fails(queries.spark.read.format("penstock").schema("value string").options(**options).load().collect)  # fmt: skip
    assert (
        "the schema of the penstock source is fixed: it has no column value of type string" in said
    )


def test_only_committed_records_are_read_when_asked(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("transactions")
    produce(broker, name, numbered(2))
    kept = transactions(broker, name, [True, False, True, False])
    plain = [sent.value for sent in numbered(2)]

    committed = queries.read(name, kafka__isolation__level="read_committed").collect()
    everything = queries.read(name).collect()

    assert values(committed) == plain + kept
    assert len(everything) == 2 + 4 * 3
    assert all(a["offset"] < b["offset"] for a, b in itertools.pairwise(everything))


@pytest.mark.long
def test_a_compacted_topic_gives_what_is_left(spark: Any, tmp_path: Path) -> None:
    with Server(tmp_path, {**KEEPS_ALL, "log.cleaner.backoff.ms": 50}) as own:
        name = own.create_topic(
            "compacted",
            cleanup_policy="compact",
            segment_bytes=4000,
            min_cleanable_dirty_ratio=0.01,
        )
        messages = [Sent(b"k%d" % (n % 5), b"value %d" % n) for n in range(1000)]
        written = produce(own, name, messages, batch_num_messages=10)

        def is_small() -> bool:
            try:
                return sum(path.stat().st_size for path in own.segments(name)) < 12_000
            except FileNotFoundError:  # one was replaced while they were measured
                return False

        until(is_small, "most of it is compacted away")
        rows = by_place(Queries(spark, own, tmp_path).read(name, minPartitions=4).collect())

    assert len(rows) < 900
    assert rows.keys() <= written.keys()
    assert all(bytes(rows[place]["value"]) == written[place].value for place in rows)
    latest = {bytes(row["key"]): bytes(row["value"]) for _, row in sorted(rows.items())}
    assert latest == {b"k%d" % n: b"value %d" % (995 + n) for n in range(5)}


def test_large_partitions_are_split_without_loss(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("split", partitions=2)
    written = produce(broker, name, numbered(1000, partitions=2), compression_type="lz4")

    wide = queries.read(name, minPartitions=7)
    small = queries.read(name, maxRecordsPerPartition=90)

    assert 6 <= wide.rdd.getNumPartitions() <= 8
    assert small.rdd.getNumPartitions() == 12
    assert by_place(wide.collect()).keys() == written.keys()
    assert by_place(small.collect()).keys() == written.keys()


def test_starts_and_ends_are_exact(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("ranges", partitions=2)
    produce(broker, name, numbered(100, partitions=2))

    def read(**options: object) -> list[tuple[int, int]]:
        return sorted(by_place(queries.read(name, **options).collect()))

    def places(first: tuple[int, int], second: tuple[int, int]) -> list[tuple[int, int]]:
        return [(0, n) for n in range(*first)] + [(1, n) for n in range(*second)]

    base_ms = 1_700_000_000_000
    offsets = {
        "startingOffsets": json.dumps({name: {"0": 10, "1": -2}}),
        "endingOffsets": json.dumps({name: {"0": 20, "1": -1}}),
    }
    stamps = {
        "startingOffsetsByTimestamp": json.dumps({name: {"0": base_ms + 10, "1": base_ms + 21}}),
        "endingOffsetsByTimestamp": json.dumps({name: {"0": base_ms + 20, "1": base_ms + 999}}),
    }
    assert read(**offsets) == places((10, 20), (0, 50))
    assert read(**offsets, **stamps) == places((5, 10), (10, 50))
    one = {"startingTimestamp": base_ms + 90, "endingTimestamp": base_ms + 96}
    assert read(**offsets, **stamps, **one) == places((45, 48), (45, 48))


@pytest.mark.long
def test_a_time_after_the_last_record_is_an_error_or_the_end(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("late")
    produce(broker, name, numbered(5))
    late = {"startingTimestamp": 1_800_000_000_000}

    said = fails(queries.read(name, **late).collect)
    rows = queries.read(name, startingOffsetsByTimestampStrategy="latest", **late).collect()

    assert f"{name}-0 has no record from timestamp 1800000000000 on" in said
    assert rows == []


@pytest.mark.long
def test_topics_are_found_by_pattern_and_assigned_by_number(
    queries: Queries, broker: Server, topic: Create
) -> None:
    first, second = topic("found", partitions=2), topic("found")
    produce(broker, first, numbered(10, partitions=2))
    produce(broker, second, numbered(3))

    both = queries.read(subscribePattern="^found-.*").collect()
    one = queries.read(assign=json.dumps({first: [1]})).collect()

    assert sorted({row["topic"] for row in both}) == sorted([first, second])
    assert len(both) == 13
    assert [(row["partition"], row["offset"]) for row in one] == [(1, n) for n in range(5)]


@pytest.mark.long
def test_an_empty_topic_has_no_rows(queries: Queries, topic: Create) -> None:
    assert queries.read(topic("empty", partitions=2)).collect() == []


@pytest.mark.long
def test_a_limit_ends_a_read_early(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("limit")
    produce(broker, name, [Sent(None, b"x" * 1000) for _ in range(30_000)])

    frame = queries.read(name, kafka__max__partition__fetch__bytes=100_000)

    assert len(frame.limit(5).collect()) == 5
    assert frame.count() == 30_000


@pytest.mark.long
def test_raw_batches_are_the_stored_bytes(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("raw")
    produce(broker, name, numbered(50), compression_type="zstd", batch_num_messages=10)
    transactions(broker, name, [True])

    rows = queries.read(name, mode="rawbatches", maxRecordsPerPartition=7).collect()

    rows.sort(key=lambda row: row["baseOffset"])
    assert rows[0]["baseOffset"] == 0
    assert all(a["lastOffset"] + 1 == b["baseOffset"] for a, b in itertools.pairwise(rows))
    assert [row["isControl"] for row in rows][-1]
    assert {row["codec"] for row in rows} == {"zstd", "none"}
    for row in rows:
        header = parse_header(bytes(row["batch"]))
        assert header.size_bytes == len(row["batch"])
        assert (header.base_offset, header.record_count) == (row["baseOffset"], row["recordCount"])
        assert header.is_transactional == row["isTransactional"]
        assert header.producer_id == row["producerId"]
    records = [r for row in rows if not row["isControl"] for r in decode_records(row["batch"])]
    assert [r.value for r in records][:50] == [sent.value for sent in numbered(50)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "nowhere"}, "topic 'nowhere' does not exist; create it with: penstock"),
        (
            {"kafka.bootstrap.servers": "127.0.0.1:1"},
            "cannot reach 127.0.0.1:1: connection refused",
        ),
        ({"kafka.security.protocol": "SASL_SSL"}, "option kafka.security.protocol=SASL_SSL is not"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"startingOffset": "earliest"}, "has no option 'startingoffset'; did you mean"),
        ({"assign": '{"t":[7]}'}, "only one of the options assign, subscribe"),
    ],
)
def test_mistakes_are_told_in_one_line(
    queries: Queries, topic: Create, options: dict[str, str], says: str
) -> None:
    frame = queries.read(topic())

    said = fails(lambda: queries.read(topic(), **options).collect())

    assert says in said
    assert frame.collect() == []


@pytest.mark.long
def test_a_partition_that_is_not_there_cannot_be_assigned(queries: Queries, topic: Create) -> None:
    name = topic("assigned")

    said = fails(queries.read(assign=json.dumps({name: [0, 3]})).collect)

    assert f"topic '{name}' has no partition 3" in said


@pytest.mark.long
def test_offsets_must_name_every_partition(queries: Queries, topic: Create) -> None:
    name = topic("unnamed", partitions=2)

    said = fails(queries.read(name, startingOffsets=json.dumps({name: {"0": 0}})).collect)

    assert f"startingOffsets must name every partition that is read, and no other: {name}-1" in said


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("penstock").option("kafka.bootstrap.servers", sys.argv[1])
print("rows", frame.option("subscribe", sys.argv[2]).load().count())
"""


def test_a_plain_session_finds_the_source_by_itself(
    broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("plain")
    produce(broker, name, numbered(12))

    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, broker.bootstrap, name],
        capture_output=True,
        text=True,
        env=environment(PYSPARK_PYTHON=sys.executable),
        cwd=tmp_path,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 12" in done.stdout
