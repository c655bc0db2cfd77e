"""The source reads from Apache Kafka too, which is fetched from Maven Central; skipped where that is out of reach.

What a task does is done here without Spark: planning, fetching, decoding.
"""

from typing import Any

import confluent_kafka
import pytest

from tests.conformance.test_other_clients import fresh
from tests.conformance.test_sdk_apache_kafka import PATIENCE_S, bootstrap

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["bootstrap"]  # the fixture


def rows(broker: str, topic: str, **options: str) -> list[dict[str, Any]]:
    from pyspark_penstock import DefaultSource

    texts = {name.replace("__", "."): value for name, value in options.items()}
    source = DefaultSource({"kafka.bootstrap.servers": broker, "subscribe": topic, **texts})
    reader = source.reader(source.schema())
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.mark.long
def test_records_of_apache_kafka_are_read(bootstrap: str) -> None:  # the fixture
    topic = fresh("spark")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "compression.type": "lz4",
        }
    )
    producer.init_transactions(PATIENCE_S)
    for outcome in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for n in range(30):
            producer.produce(topic, b"value %d" % n, b"key %d" % n, headers={"own": b"h"})
        producer.flush(PATIENCE_S)
        outcome(PATIENCE_S)

    committed = rows(
        bootstrap, topic, kafka__isolation__level="read_committed", includeHeaders="true"
    )
    everything = rows(bootstrap, topic)
    split = rows(bootstrap, topic, minPartitions="9", startingTimestamp="0")

    assert sorted(row["value"] for row in committed) == sorted(b"value %d" % n for n in range(30))
    assert committed[0]["headers"] == [{"key": "own", "value": b"h"}]
    assert len(everything) == len(split) == 60


@pytest.mark.long
def test_progress_is_published_to_apache_kafka(bootstrap: str) -> None:  # the fixture
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from pyspark_penstock import DefaultSource

    topic, group = fresh("spark"), fresh("group")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v")
    producer.flush(PATIENCE_S)
    options = {"subscribe": topic, "startingOffsets": "earliest", "groupId": group}
    source = DefaultSource({"kafka.bootstrap.servers": bootstrap, **options})
    reader = source.streamReader(source.schema())

    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.commit(end)
    reader.stop()

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    asked = [confluent_kafka.TopicPartition(topic, int(index)) for index in end[topic]]
    committed = {p.partition: p.offset for p in consumer.committed(asked, timeout=PATIENCE_S)}
    consumer.close()
    assert committed == {int(index): offset for index, offset in end[topic].items()}
    assert sum(committed.values()) == 1
