"""`traffic`: measure the traffic of topics from their records. Read-only.

Each scan reads the same offsets.
"""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any, Final

from penstock.spark.errors import JobError
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.record_times import of_times
from penstock.spark.jobs.traffic import picture, report
from penstock.spark.jobs.traffic.options import TrafficOptions
from penstock.spark.jobs.traffic.report import Cell, HotKey, Stored
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges, find_ranges

_CLASSES_PER_DOUBLING: Final = 4  # of sizes: percentiles are right to a fifth
_SHOWN_KEY_BYTES: Final = 200


def plan(options: TrafficOptions) -> Plan:
    """Asks the brokers what there is; no Spark."""
    ranges = _ranges(options)
    scans = ["stored batches, for sizes on disk", "records, for rates and sizes"]
    if options.hot_keys:
        scans.append(f"keys, for the {options.hot_keys} busiest")
    writes = [str(_place(name)) for name in (options.output, options.picture) if name]
    facts = {
        "job": "traffic",
        "cluster": ranges.cluster_id,
        "topics": sorted(options.topics),
        "partitions": len(ranges.first),
        "offsets": ranges.offsets,
        "scans": scans,
        "writes": writes,
    }
    lines = (
        f"read {', '.join(sorted(options.topics))} from {options.bootstrap}: "
        f"{_upto(options)}{ranges.offsets:,} offsets in {len(ranges.first)} partitions",
        *(f"scan {text}" for text in scans),
        *(f"write {name}" for name in writes),
    )
    return Plan(facts, lines)


def run(session: Any, options: TrafficOptions, progress: Progress) -> Summary:
    ranges = _ranges(options)
    read = partial(_read, session, ranges, options)
    with progress.tasks(session, "reading stored batches"):
        stored = collect_stored(
            read("maxTimestamp,topic,partition,recordCount,codec,batch", raw=True)
        )
    step_ms = options.step or report.choose_step_ms(stored)
    with progress.tasks(session, f"reading {_upto(options)}{ranges.offsets:,} records"):
        cells = collect_cells(read("key,value,topic,partition,timestamp"), step_ms)
    if not cells:
        raise _nothing(options)
    keys: list[HotKey] = []
    if options.hot_keys:
        with progress.tasks(session, "counting keys"):
            keys = collect_hot_keys(read("key,topic,timestamp"), options.hot_keys)
    facts = {
        "job": "traffic",
        "cluster": ranges.cluster_id,
        "measured_at_ms": time_ns() // 1_000_000,
        "step_ms": step_ms,
        "topics": report.report(
            cells,
            stored,
            keys,
            step_ms=step_ms,
            partition_counts=Counter(topic for topic, _ in ranges.first),
        ),
    }
    _write(options, facts)
    return Summary(facts, report.lines(facts))


def _ranges(options: TrafficOptions) -> Ranges:
    """From the first record that is young enough to the end: older and younger ones may follow each other."""
    found = find_ranges(options.bootstrap, options.topics, since_ms=options.since)
    if not found.offsets:
        raise _nothing(options)
    return found


def _upto(options: TrafficOptions) -> str:
    return "up to " if options.times.facts else ""


def _nothing(options: TrafficOptions) -> JobError:
    when = " of that time" if options.times.facts else ""
    return JobError(f"{', '.join(sorted(options.topics))}: no messages{when} to measure there")


def _read(
    session: Any, ranges: Ranges, options: TrafficOptions, columns: str, *, raw: bool = False
) -> Any:
    """Only what is of the time that is measured; a stored batch is of the time of its youngest record.

    `failOnDataLoss`: what retention takes away while we read is no error here.
    """
    source = session.read.format("penstock").options(**ranges.source_options(options.bootstrap))
    source = source.option("columns", columns).option("failOnDataLoss", "false")
    if raw:
        return of_times(source.option("mode", "rawbatches").load(), options.times, "maxTimestamp")
    return of_times(source.load(), options.times)


# Transforms: DataFrame -> rows of the driver -----------------------------------------------------


def collect_stored(batches: Any) -> list[Stored]:
    """What the batches of each partition take on disk, by codec."""
    from pyspark.sql import functions as F

    at_ms = _dated_ms("maxTimestamp")
    rows = (
        batches.groupBy("topic", "partition", "codec")
        .agg(
            F.count("*").alias("batches"),
            F.sum("recordCount").alias("records"),
            F.sum(F.octet_length("batch")).alias("size_bytes"),
            F.min(at_ms).alias("first_ms"),
            F.max(at_ms).alias("last_ms"),
        )
        .collect()
    )
    return [Stored(**row.asDict()) for row in rows]


def collect_cells(records: Any, step_ms: int) -> list[Cell]:
    """Counts and sums for each partition, interval and class of size: few rows, from which all else follows."""
    from pyspark.sql import functions as F

    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(
        F.octet_length("value"), F.lit(0)
    )
    size_class = F.ceil(F.log2(F.greatest(F.col("size"), F.lit(1))) * _CLASSES_PER_DOUBLING)
    rows = (
        records.withColumn("size", size)
        .withColumn("interval", F.floor(_dated_ms("timestamp") / F.lit(step_ms)))
        .withColumn("size_class", size_class)
        .groupBy("topic", "partition", "interval", "size_class")
        .agg(
            F.count("*").alias("records"),
            F.sum("size").alias("size_bytes"),
            F.max("size").alias("largest_bytes"),
            F.count_if(F.col("key").isNull()).alias("without_key"),
            F.count_if(F.col("value").isNull()).alias("tombstones"),
        )
        .collect()
    )
    return [Cell(**row.asDict()) for row in rows]


def _dated_ms(name: str) -> Any:
    """Null for a time that dates cannot say: one such record would make all rates 0."""
    from pyspark.sql import functions as F

    at_ms = F.unix_millis(name)
    dated = at_ms.between(report.FIRST_MS, report.LAST_MS)
    return F.when(dated, at_ms)


def collect_hot_keys(keyed: Any, wanted: int) -> list[HotKey]:
    """The busiest keys of each topic."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    counted = (
        keyed.where(F.col("key").isNotNull())
        .groupBy("topic", "key")
        .agg(F.count("*").alias("records"))
    )
    rank = F.row_number().over(Window.partitionBy("topic").orderBy(F.desc("records"), "key"))
    rows = (
        counted.withColumn("rank", rank)
        .where(F.col("rank") <= wanted)
        .orderBy("topic", "rank")
        .collect()
    )
    return [HotKey(row.topic, show_key(bytes(row.key)), row.records) for row in rows]


def show_key(key: bytes) -> str:
    """Text where it is text, else hexadecimal; a long one is cut."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = "0x" + key.hex()
    if not text.isprintable():
        text = "0x" + key.hex()
    return text if len(text) <= _SHOWN_KEY_BYTES else text[:_SHOWN_KEY_BYTES] + "…"


def _write(options: TrafficOptions, facts: dict[str, Any]) -> None:
    if options.output:
        _place(options.output).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    if options.picture:
        _place(options.picture).write_text(picture.draw(facts))


def _place(name: str) -> Path:
    """Better said before Spark takes its time."""
    path = Path(name).absolute()
    if not path.parent.is_dir():
        raise JobError(f"{path}: there is no directory {path.parent}; make it first")
    if path.is_dir():
        raise JobError(f"{path} is a directory; give the name of a file")
    return path


JOB: Final = Job(
    name="traffic",
    options=TrafficOptions,
    plan=plan,
    run=run,
    examples=(
        "penstock pipeline traffic orders",
        "penstock pipeline traffic orders payments --since -7d --picture week.svg",
        "penstock pipeline traffic orders --json --hot-keys 100 > traffic.json",
    ),
)
