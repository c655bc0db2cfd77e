"""Read dead letters of the lake and of the SDK as rows of one kind.

All but the reads is DataFrame -> DataFrame. The columns topic, partition and offset are the
record's first place and identify the letter. `kind` is the error without its details.
"""

from typing import Any, Final

from penstock.sdk import dead_letters, large
from penstock.spark.jobs.files import for_spark
from penstock.spark.survey import Ranges

PLACE: Final = ("topic", "partition", "offset")
COLUMNS: Final = (
    *PLACE,
    *("timestamp", "key", "value", "headers", "error", "kind", "attempts", "source", "letter"),
    *("has_origin", "is_part", "is_sent"),
)
_HEADERS: Final = "headers array<struct<key: string, value: binary>>"
_TABLE: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    f"{_HEADERS}, error string, job string"
)
_SHOWN_BYTES: Final = 100


def read_table(session: Any, place: str) -> Any:
    """What the lake could not decode."""
    from pyspark.sql import functions as F

    rows = session.read.schema(_TABLE).parquet(for_spark(place))
    return rows.select(
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers", "error"),
        F.trim(F.split_part("error", F.lit(":"), F.lit(1))).alias("kind"),
        F.lit(1).alias("attempts"),
        F.col("job").alias("source"),
        F.col("_metadata.file_name").alias("letter"),
        F.lit(True).alias("has_origin"),
        F.lit(False).alias("is_part"),
        F.lit(False).alias("is_sent"),
    )


def read_topic(session: Any, bootstrap: str, ranges: Ranges) -> Any:
    """What consumers put aside."""
    rows = (
        session.read.format("penstock")
        .options(**ranges.source_options(bootstrap))
        .option("columns", "key,value,topic,partition,offset,timestamp,headers")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return from_sdk(rows)


def from_sdk(records: Any) -> Any:
    from pyspark.sql import functions as F

    def header(name: str) -> Any:
        """The last of that name, as text."""
        found = F.filter("headers", lambda one: one["key"] == name)
        return F.try_element_at(found, F.lit(-1))["value"].cast("string")

    origin = (
        header(dead_letters.ORIGIN_TOPIC),
        header(dead_letters.ORIGIN_PARTITION).try_cast("int"),
        header(dead_letters.ORIGIN_OFFSET).try_cast("bigint"),
    )
    has_origin = F.coalesce(
        origin[0].isNotNull() & (origin[1] >= 0) & (origin[2] >= 0), F.lit(False)
    )
    kind = F.coalesce(F.nullif(header(dead_letters.ERROR_TYPE), F.lit("")), F.lit("no dead letter"))
    letter = F.concat_ws("", "topic", F.lit("-"), "partition", F.lit("@"), "offset")
    part = F.exists(F.coalesce("headers", F.array()), lambda one: one["key"] == large.PART_HEADER)

    return records.select(
        *(
            F.when(has_origin, told).otherwise(F.col(own)).alias(own)
            for told, own in zip(origin, PLACE, strict=True)
        ),
        *("timestamp", "key", "value", "headers"),
        header(dead_letters.ERROR).alias("error"),
        kind.alias("kind"),
        header(dead_letters.ATTEMPTS).try_cast("int").alias("attempts"),
        header(dead_letters.GROUP).alias("source"),
        letter.alias("letter"),
        has_origin.alias("has_origin"),
        part.alias("is_part"),
        F.lit(False).alias("is_sent"),
    )


def with_texts(letters: Any) -> Any:
    """Key and value as text too: `--where` and repairs may ask for them."""
    from pyspark.sql import functions as F

    return letters.withColumns(
        {f"{name}_text": F.col(name).cast("string") for name in ("key", "value")}
    )


def once(letters: Any) -> Any:
    """A record that was put aside several times is one letter: the last of them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(
        Window.partitionBy(*PLACE).orderBy(F.desc("attempts"), F.desc("letter"))
    )
    return letters.withColumn("rank", rank).where("rank = 1").drop("rank")


def kinds(letters: Any) -> list[dict[str, Any]]:
    """Counts by kind of error, the most frequent first."""
    from pyspark.sql import functions as F

    rows = (
        letters.groupBy("kind")
        .agg(
            F.count("*").alias("letters"),
            F.array_sort(F.collect_set("topic")).alias("topics"),
            F.min(F.unix_millis("timestamp")).alias("first_ms"),
            F.max(F.unix_millis("timestamp")).alias("last_ms"),
            F.count_if("is_sent").alias("sent_before"),
        )
        .orderBy(F.desc("letters"), "kind")
        .collect()
    )
    return [row.asDict() for row in rows]


def samples(letters: Any, each: int) -> list[dict[str, Any]]:
    """Some of each kind, the oldest offsets first; values as text, cut."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy("kind").orderBy(*PLACE))

    def text(name: str) -> Any:
        return F.substring(name, 1, _SHOWN_BYTES).alias(name)

    rows = (
        letters.withColumn("rank", rank)
        .where(F.col("rank") <= each)
        .select("kind", *PLACE, "error", "attempts", "source", "letter", text("key"), text("value"))
        .orderBy("kind", *PLACE)
        .collect()
    )
    return [{name: _shown(value) for name, value in row.asDict().items()} for row in rows]


def _shown(value: Any) -> Any:
    return (
        bytes(value).decode(errors="backslashreplace")
        if isinstance(value, bytearray | bytes)
        else value
    )
