"""`format("penstock")` writes what Spark's own `kafka` sink writes, read back here by another client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from pyspark.errors import PySparkException

from penstock.spark.errors import explain
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

Topic = Callable[..., str]
COLUMNS = (
    "key string, value string, headers array<struct<key: string, value: binary>>, partition int"
)


class Read(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None


@pytest.fixture
def write(broker: Server) -> Callable[..., None]:
    def save(frame: Any, **options: object) -> None:
        writer = frame.write.format("penstock").mode("append")
        for name, value in {"kafka.bootstrap.servers": broker.bootstrap, **options}.items():
            writer = writer.option(name, value)
        writer.save()

    return save


def read(broker: Server, topic: str, partitions: int = 1) -> list[Read]:
    """All records, in order within each partition."""
    return sorted(_read(broker, topic, partitions), key=lambda found: found.partition)


def _read(broker: Server, topic: str, partitions: int) -> Iterator[Read]:
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)]
    consumer.assign(places)
    ended = 0
    while ended < partitions:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"nothing more came from {topic}"
        if message.error() is None:
            yield Read(message.partition(), message.key(), message.value(), message.headers())
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended += 1
    consumer.close()


def test_rows_become_records_with_all_their_parts(
    spark: Any, broker: Server, topic: Topic, write: Callable[..., None]
) -> None:
    name = topic(partitions=3)
    rows = [
        ("k", "v", [("h", b"1"), ("h", None)], 2),
        (None, "alone", None, 0),
        ("gone", None, [], 1),
        ("é", "ü", None, 1),
    ]
    write(spark.createDataFrame(rows, COLUMNS).coalesce(1), topic=name)
    assert read(broker, name, 3) == [
        Read(0, None, b"alone"),
        Read(1, b"gone", None),
        Read(1, "é".encode(), "ü".encode()),
        Read(2, b"k", b"v", [("h", b"1"), ("h", None)]),
    ]


@pytest.mark.long
def test_each_row_may_name_its_topic_and_bytes_stay_as_they_are(
    spark: Any, broker: Server, topic: Topic, write: Callable[..., None]
) -> None:
    first, second = topic(), topic()
    rows = [(first, b"\xff\x00"), (second, b""), (first, None)]
    write(spark.createDataFrame(rows, "topic string, value binary").coalesce(1))
    assert [found.value for found in read(broker, first)] == [b"\xff\x00", None]
    assert [found.value for found in read(broker, second)] == [b""]


@pytest.mark.long
def test_the_option_topic_overrides_the_column(
    spark: Any, broker: Server, topic: Topic, write: Callable[..., None]
) -> None:
    wanted, other = topic(), topic()
    write(spark.createDataFrame([(other, "v")], "topic string, value string"), topic=wanted)
    assert len(read(broker, wanted)) == 1
    assert read(broker, other) == []


def test_many_rows_arrive_once_and_in_order_within_their_task(
    spark: Any, broker: Server, topic: Topic, write: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    rows = spark.range(0, 100_000, 1, 2).selectExpr(
        "cast(id as string) as value", "cast(id % 2 as int) as partition"
    )
    write(rows, topic=name, **{"kafka.linger.ms": "5", "kafka.compression.type": "lz4"})
    found = read(broker, name, 2)
    assert sorted(int(record.value or b"") for record in found) == list(range(100_000))
    for partition, low in [(0, 0), (0, 50_000), (1, 0), (1, 50_000)]:
        numbers = [int(record.value or b"") for record in found if record.partition == partition]
        of_task = [number for number in numbers if low <= number < low + 50_000]
        assert of_task == sorted(of_task)


def test_a_key_goes_where_javas_producer_would_send_it(
    spark: Any, broker: Server, topic: Topic, write: Callable[..., None]
) -> None:
    name = topic(partitions=12)
    keys = [f"key-{number}" for number in range(50)]
    write(
        spark.createDataFrame([(key, "v") for key in keys], "key string, value string"), topic=name
    )
    for record in read(broker, name, 12):
        assert record.key is not None
        assert record.partition == (_murmur2(record.key) & 0x7FFFFFFF) % 12


def _murmur2(data: bytes) -> int:
    """As in Kafka's Utils.murmur2; an unsigned 32-bit number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for start in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    rest = data[len(data) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "row", "options", "said"),
    [
        ("value string", ("v",), {}, "no topic to write to; give the option topic, or a column"),
        ("v string", ("v",), {"topic": "t"}, "no column named value; the columns are v"),
        ("value int", (1,), {"topic": "t"}, "column value is int, and must be string or binary"),
        ("topic string, value string", (None, "v"), {}, "a row has no topic"),
        ("value string, partition int", ("v", -1), {"topic": "t"}, "a row has partition -1"),
        (
            "value string",
            ("v",),
            {"topic": "t", "kafka.key.serializer": "x"},
            "option kafka.key.serializer is not supported",
        ),
        (
            "value string",
            ("v",),
            {"topic": "t", "kafka.no.such.setting": "x"},
            'No such configuration property: "no.such.setting"',
        ),
        (
            "value string, headers array<struct<key: string, value: binary>>",
            ("v", [(None, b"")]),
            {"topic": "t"},
            "a row has a header without a key",
        ),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(
    spark: Any,
    write: Callable[..., None],
    columns: str,
    row: tuple[Any, ...],
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.createDataFrame([row], columns), **options)
    assert said in explain(caught.value)
    assert "\n" not in explain(caught.value)


def test_a_refusal_of_the_broker_fails_the_task_with_the_reason(
    spark: Any, topic: Topic, write: Callable[..., None]
) -> None:
    name = topic(max_message_bytes=1000)
    frame = spark.createDataFrame([("x" * 2000,)], "value string")
    with pytest.raises(PySparkException) as caught:
        write(frame, topic=name)
    assert explain(caught.value) == f"{name}-0 did not take a row: Message size too large"


@pytest.mark.long
def test_a_partition_that_is_not_there_is_named(
    spark: Any, topic: Topic, write: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    with pytest.raises(PySparkException) as caught:
        write(spark.createDataFrame([("v", 7)], "value string, partition int"), topic=name)
    assert explain(caught.value) == f"topic {name!r} has no partition 7"


@pytest.mark.long
def test_without_a_broker_the_write_says_so_before_long(spark: Any) -> None:
    """And does not wait for the delivery, which may take an hour."""
    writer = spark.createDataFrame([("v",)], "value string").write.format("penstock")
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.delivery.timeout.ms": "3600000"}
    with pytest.raises(PySparkException) as caught:
        writer.options(**options, topic="t").mode("append").save()
    assert explain(caught.value).startswith("cannot reach 127.0.0.1:1: connection refused; ")


@pytest.mark.long
def test_a_batch_write_without_a_mode_is_sparks_to_refuse(
    spark: Any, broker: Server, topic: Topic
) -> None:
    writer = spark.createDataFrame([("v",)], "value string").write.format("penstock")
    with pytest.raises(PySparkException) as caught:
        writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic()).save()
    assert "errorifexists" in str(caught.value).lower()


@pytest.mark.long
def test_a_topic_cannot_be_overwritten(spark: Any, broker: Server, topic: Topic) -> None:
    writer = spark.createDataFrame([("v",)], "value string").write.format("penstock")
    with pytest.raises(PySparkException) as caught:
        writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic()).mode(
            "overwrite"
        ).save()
    assert "a topic cannot be overwritten" in explain(caught.value)


def has_ended(query: Any) -> bool:
    """Waits for it, and raises what ended it; one that goes on is stopped, for others use the session too."""
    try:
        return bool(query.awaitTermination(2 * PATIENCE_S))
    finally:
        query.stop()


def test_a_stream_writes_each_micro_batch(
    spark: Any, broker: Server, topic: Topic, tmp_path: Path
) -> None:
    name = topic()
    source = tmp_path / "in"
    query = None
    for number in range(2):
        spark.range(number * 10, number * 10 + 10).selectExpr(
            "cast(id as string) as value"
        ).coalesce(1).write.mode("append").parquet(str(source))
        query = (
            spark.readStream.schema("value string")
            .parquet(str(source))
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert has_ended(query)
        assert query.exception() is None
    found = [int(record.value or b"") for record in read(broker, name)]
    assert found == list(range(20))


@pytest.mark.long
def test_a_stream_that_cannot_write_ends_with_the_reason(
    spark: Any, broker: Server, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", "not a name")
        .option("kafka.delivery.timeout.ms", "5000")
        .option("kafka.topic.metadata.propagation.max.ms", "1000")
        .option("checkpointLocation", str(tmp_path))
    )
    with pytest.raises(PySparkException) as caught:
        has_ended(query.start())
    assert "not a name" in explain(caught.value)


@pytest.mark.long
def test_complete_mode_works_update_mode_is_refused_by_name_and_foreach_batch_does_it(
    spark: Any, broker: Server, topic: Topic, tmp_path: Path, write: Callable[..., None]
) -> None:
    """Spark asks sinks whether they can, and one that is written in Python has no way to say yes."""
    name, source = topic(), topic()
    write(spark.createDataFrame([("a",), ("b",), ("a",)], "value string"), topic=source)
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    words = (
        spark.readStream.format("penstock")
        .options(**options, subscribe=source, startingOffsets="earliest")
        .load()
    )
    counts = words.groupBy("value").count().selectExpr("value AS key", "string(count) AS value")
    updates = counts.writeStream.outputMode("update").trigger(availableNow=True)
    refused = {**options, "topic": name, "checkpointLocation": str(tmp_path / "refused")}
    with pytest.raises(PySparkException) as caught:
        updates.format("penstock").options(**refused).start().awaitTermination()
    assert "does not support Update mode" in explain(caught.value)
    each = counts.writeStream.outputMode("update").trigger(availableNow=True)
    done = (
        each.foreachBatch(lambda rows, _: write(rows, topic=name))
        .option("checkpointLocation", str(tmp_path / "done"))
        .start()
    )
    done.awaitTermination()
    counted = {(b"a", b"2"), (b"b", b"1")}
    assert {(row.key, row.value) for row in read(broker, name)} == counted
    other = topic()
    whole = (
        counts.writeStream.outputMode("complete")
        .trigger(availableNow=True)
        .format("penstock")
        .options(**options, topic=other, checkpointLocation=str(tmp_path / "whole"))
        .start()
    )
    whole.awaitTermination()
    assert {(row.key, row.value) for row in read(broker, other)} == counted
