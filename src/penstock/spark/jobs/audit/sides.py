"""Read topics for an audit as rows of topic, partition, offset and digest; explain their gaps."""

from collections.abc import Mapping
from typing import Any

from penstock.model.ids import TopicPartition
from penstock.spark.jobs.audit.compare import digest
from penstock.spark.survey import Ranges


def read_topic(session: Any, bootstrap: str, ranges: Ranges, *, committed: bool) -> Any:
    isolation = "read_committed" if committed else "read_uncommitted"
    return (
        session.read.format("penstock")
        .options(**ranges.source_options(bootstrap))
        .option("columns", "key,value,topic,partition,offset,timestamp,headers")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")  # what retention takes meanwhile is told by its absence
        .option("kafka.isolation.level", isolation)
        .load()
    )


def whole_records(records: Any) -> Any:
    """Digests of all that a record has."""
    from pyspark.sql import functions as F

    return records.withColumn("digest", digest(F, F.col("key"), F.col("value"), *around(F)))


def contents(records: Any) -> Any:
    """Digests of key and value alone, with what must stay in order: the records of a key."""
    from pyspark.sql import functions as F

    key = F.col("key")
    return records.withColumn("digest", digest(F, key, F.col("value"))).withColumn(
        "ordering", F.when(key.isNotNull(), digest(F, key))
    )


def renamed(records: Any, names: Mapping[str, str]) -> Any:
    """With other names of topics: those that the other side has."""
    from pyspark.sql import functions as F

    topic = F.col("topic")
    for old, new in names.items():
        topic = F.when(F.col("topic") == old, new).otherwise(topic)
    return records.withColumn("topic", topic)


def around(F: Any) -> tuple[Any, Any]:
    """Of a record, beside key and value. No headers are the same as none."""
    headers = F.when(F.size("headers") > 0, F.encode(F.to_json("headers"), "UTF-8"))
    return headers, F.encode(F.unix_millis("timestamp").cast("string"), "UTF-8")


def count_stored(
    session: Any, bootstrap: str, ranges: Ranges
) -> dict[TopicPartition, tuple[int, int]]:
    """Markers and records of each partition, from batch headers alone."""
    from pyspark.sql import functions as F

    rows = (
        session.read.format("penstock")
        .options(**ranges.source_options(bootstrap))
        .option("mode", "rawbatches")
        .option("columns", "topic,partition,recordCount,isControl")
        .option("failOnDataLoss", "false")
        .load()
        .groupBy("topic", "partition")
        .agg(
            F.sum(F.when(F.col("isControl"), F.col("recordCount")).otherwise(0)),
            F.sum(F.when(F.col("isControl"), 0).otherwise(F.col("recordCount"))),
        )
        .collect()
    )
    return {TopicPartition(topic, partition): (int(m), int(r)) for topic, partition, m, r in rows}


def count_records(
    session: Any, bootstrap: str, ranges: Ranges, *, committed: bool
) -> dict[TopicPartition, int]:
    """What a reader gets of each partition."""
    isolation = "read_committed" if committed else "read_uncommitted"
    rows = (
        session.read.format("penstock")
        .options(**ranges.source_options(bootstrap))
        .option("columns", "topic,partition")
        .option("failOnDataLoss", "false")
        .option("kafka.isolation.level", isolation)
        .load()
        .groupBy("topic", "partition")
        .count()
        .collect()
    )
    return {TopicPartition(topic, partition): count for topic, partition, count in rows}
