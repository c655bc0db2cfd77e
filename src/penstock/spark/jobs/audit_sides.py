"""What an audit compares, as rows of topic, partition, offset and digest: topics, tables of the lake, ledgers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs import lake_manifest as manifests
from penstock.spark.jobs import lake_schema as schemas
from penstock.spark.jobs.audit_compare import digest
from penstock.spark.jobs.lake_batches import Storage
from penstock.spark.jobs.lake_decode import ERROR, RAW, decode_json
from penstock.spark.jobs.lake_files import Files, for_spark, open_files
from penstock.spark.jobs.lake_layout import STATE, Layout
from penstock.spark.jobs.lake_manifest import Spans
from penstock.spark.survey import Ranges

_COORDINATES: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, key binary"
)
_FORMATS: Final = {".csv": "csv", ".jsonl": "json", ".json": "json", ".ndjson": "json"}
_LEDGER: Final = ("topic", "partition", "offset")
_IN_DECODED: Final = (
    b"v"  # marks of a value, so that one side's row is never the other's dead letter
)
_IN_DEAD: Final = b"d"


# Topics ------------------------------------------------------------------------------------------


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

    return records.withColumn("digest", digest(F, F.col("key"), F.col("value"), *_around(F)))


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


def _around(F: Any) -> tuple[Any, Any]:
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


# Tables ------------------------------------------------------------------------------------------


class TableFacts(NamedTuple):
    """What the lake's jobs say of their table."""

    table: str
    dead_letters: tuple[str, ...]
    covered: Spans
    start: Mapping[TopicPartition, int]  # older records were not wanted
    decode: str
    schema: schemas.Type | None  # of decoded values; None: they cannot be compared
    unfinished: int  # batches whose files are not all where readers look

    @property
    def compares_values(self) -> bool:
        return self.decode == "raw" or self.schema is not None


def table_facts(
    table: str, topics: Iterable[str], session: Any, dead_letters: str | None
) -> TableFacts:
    """JobError where no job of the lake has written these topics."""
    files = open_files(table, session)
    wanted = set(topics)
    jobs = []
    for name in files.names(f"{table}/{STATE}"):
        path = f"{table}/{STATE}/{name}/job.json"
        if files.exists(path):
            facts = json.loads(files.read(path))
            if wanted & set(facts["topics"]):
                layout = Layout(table, dead_letters or facts["dead_letters"], name)
                jobs.append((layout, str(facts["decode"])))
    if not jobs:
        raise JobError(
            f"{table} has nothing of {', '.join(sorted(wanted))} that a lake job wrote; "
            "give the --table of: penstock pipeline lake"
        )
    layouts = [layout for layout, _ in jobs]
    last = [Storage(layout, files, files).last() for layout in layouts]
    decodes = {decode for _, decode in jobs}
    return TableFacts(
        table=table,
        dead_letters=tuple(sorted({layout.dead_letters for layout in layouts})),
        covered=manifests.together(
            entry for found in last if found for entry in found.covered.items()
        ),
        start={place: at for layout in layouts for place, at in _start(files, layout).items()},
        decode=decodes.pop() if len(decodes) == 1 else "mixed",
        schema=_only_schema(files, layouts),
        unfinished=sum(_unfinished(files, layout) for layout in layouts),
    )


def _start(files: Files, layout: Layout) -> dict[TopicPartition, int]:
    if not files.exists(layout.start):
        return {}
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(files.read(layout.start)).items()
        for partition, offset in partitions.items()
    }


def _only_schema(files: Files, layouts: list[Layout]) -> schemas.Type | None:
    """Of JSON that was always decoded in the same way; what grew later would be found in old records too."""
    if len(layouts) != 1:
        return None
    numbers = manifests.numbers(files.names(layouts[0].schemas))
    if len(numbers) != 1:
        return None
    return schemas.from_json(files.read(f"{layouts[0].schemas}/{manifests.name(numbers[0])}"))


def _unfinished(files: Files, layout: Layout) -> int:
    """Its manifest is there, and so is its staging, which is removed last."""
    numbers = set(manifests.numbers(files.names(layout.manifests)))
    stems = (name.partition("-")[0] for name in files.names(layout.staging))
    return sum(stem.isdigit() and int(stem) in numbers for stem in stems)


def read_table(session: Any, facts: TableFacts) -> Any:
    """Rows and dead letters, with digests as `decoded_records` or `whole_records` make them of the topic."""
    from pyspark.sql import functions as F

    rows = _rows(session, facts)
    for place in facts.dead_letters:
        if open_files(place, session).exists(place):
            dead = session.read.schema(f"{_COORDINATES}, value binary").parquet(for_spark(place))
            rows = rows.unionByName(_digested(F, dead, _dead_value(F, facts, "value")))
    return rows


def _rows(session: Any, facts: TableFacts) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    shape = T.StructType()
    for field in session.createDataFrame([], _COORDINATES).schema:
        shape = shape.add(field)
    if facts.decode == "raw":
        shape = shape.add("value", T.BinaryType())
        value = F.col("value")
    elif facts.schema is not None:
        shape = shape.add("value", T.StructType.fromJson(facts.schema))
        value = _decoded_value(F)
    else:
        value = F.lit(None).cast("binary")
    rows = session.read.schema(shape).parquet(for_spark(facts.table))
    return _digested(F, rows, value)


def decoded_records(records: Any, facts: TableFacts) -> Any:
    """Records of the topic with the digests that a table of such decoding must have."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if facts.decode == "raw":
        return whole_records(records)
    if facts.schema is None:
        return _digested(F, records, F.lit(None).cast("binary"))
    decoded = decode_json(records, T.StructType.fromJson(facts.schema))
    value = F.when(F.col(ERROR).isNull(), _decoded_value(F)).otherwise(_dead_value(F, facts, RAW))
    return _digested(F, decoded, value)


def _decoded_value(F: Any) -> Any:
    return F.concat(F.lit(_IN_DECODED), F.encode(F.to_json("value"), "UTF-8"))


def _dead_value(F: Any, facts: TableFacts, column: str) -> Any:
    if facts.decode == "raw":
        return F.col(column)
    if facts.schema is None:
        return F.lit(None).cast("binary")
    return F.concat(F.lit(_IN_DEAD), F.col(column))


def _digested(F: Any, rows: Any, value: Any) -> Any:
    made = digest(F, F.col("key"), value, *_around(F))
    return rows.select("topic", "partition", "offset", made.alias("digest"))


# Ledgers -----------------------------------------------------------------------------------------


def read_ledger(session: Any, place: str) -> Any:
    """What a producer says it has written: one row a record."""
    kind = _FORMATS.get(Path(place).suffix, "parquet")
    reader = session.read.option("header", "true") if kind == "csv" else session.read
    rows = reader.format(kind).load(for_spark(place))
    missing = [name for name in _LEDGER if name not in rows.columns]
    if missing:
        raise JobError(
            f"{place} has no column {', '.join(missing)}; a ledger has topic, partition and offset, and may have "
            "key, value and hash (SHA-256 of the value, hexadecimal)"
        )
    return rows.withColumns(
        {name: rows[name].cast(kind) for name, kind in (("partition", "int"), ("offset", "bigint"))}
    )


def ledger_contents(ledger: Any) -> tuple[str, ...]:
    """What of a record the ledger tells."""
    return tuple(name for name in ("key", "value", "hash") if name in ledger.columns)


def ledger_rows(ledger: Any, told: tuple[str, ...]) -> Any:
    from pyspark.sql import functions as F

    parts = {
        name: F.unhex(F.trim("hash")) if name == "hash" else F.col(name).cast("binary")
        for name in told
    }
    made = digest(F, *parts.values()) if parts else F.lit(None).cast("binary")
    return ledger.select(*_LEDGER, made.alias("digest"))


def as_ledger_rows(records: Any, told: tuple[str, ...]) -> Any:
    """Records of the topic, with the digests that such a ledger has of them."""
    from pyspark.sql import functions as F

    parts = {
        name: F.unhex(F.sha2("value", 256)) if name == "hash" else F.col(name) for name in told
    }
    made = digest(F, *parts.values()) if parts else F.lit(None).cast("binary")
    return records.select(*_LEDGER, made.alias("digest"))
