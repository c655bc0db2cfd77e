"""`replay`: copy a range of topics, by time or offset, to a topic or a table.

A run with the same --id continues the replay and copies nothing twice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock.client.raw_transactions import OffsetToCommit
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.functions import chosen, with_texts
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.files import is_local, normal, open_files
from penstock.spark.jobs.record_times import Times, of_times
from penstock.spark.jobs.replay.options import ReplayOptions
from penstock.spark.jobs.replay.range import (
    Decided,
    check_ids,
    decided,
    from_marks,
    mark,
)
from penstock.spark.jobs.replay.table import Table
from penstock.spark.jobs.table.owner import refuse_lake
from penstock.spark.jobs.target import find_target
from penstock.spark.jobs.topic_ids import Ids, find_ids
from penstock.spark.outgoing import Target
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges, find_ranges
from penstock.spark.transactional import CONFS, Transactions, check_confs

HEADERS: Final = {  # of what is replayed: where it was
    "penstock-replay-topic": "topic",
    "penstock-replay-partition": "partition",
    "penstock-replay-offset": "offset",
}
ID_HEADER: Final = "penstock-replay-id"


def confs(options: ReplayOptions) -> Mapping[str, str]:
    return CONFS if options.to is not None else {}


# Plan --------------------------------------------------------------------------------------------


def plan(options: ReplayOptions) -> Plan:
    """Asks the brokers, and looks at a table of this machine; no Spark."""
    ranges = _ranges(options)
    what = _decided(options, ranges, {})
    where = _destination(options)
    if options.to is not None:
        target = find_target(options)
        how = "their own" if _keeps(options, target, ranges) else "their keys'"
        where += f", {target.partitions} partitions, records to {how}"
    elif is_local(where):
        refuse_lake(where, open_files(where, None))
    facts = {**_facts(options, ranges), "offsets": what.offsets, "partitions": len(what.first)}
    lines = (
        f"read {', '.join(sorted(options.topics))} from {options.bootstrap}: "
        f"{'up to ' if _chooses(options) else ''}{what.offsets:,} offsets in {len(what.first)} partitions, "
        f"unless {options.id!r} ran before and has found others",
        f"write {where}, each once for {options.id!r}",
    )
    return Plan(facts, lines)


def _destination(options: ReplayOptions) -> str:
    return options.to if options.to is not None else normal(options.table or "")


def _facts(options: ReplayOptions, ranges: Ranges) -> dict[str, Any]:
    return {
        "job": "replay",
        "id": options.id,
        "cluster": ranges.cluster_id,
        "topics": sorted(options.topics),
        "to": options.to,
        "table": None if options.table is None else normal(options.table),
        "group": options.group if options.to is not None else None,
    }


def _ranges(options: ReplayOptions) -> Ranges:
    """From the first record that is young enough to the end: older and younger ones may follow each other."""
    return find_ranges(
        options.bootstrap,
        options.topics,
        since_ms=options.since,
        read_committed=not options.read_uncommitted,
    )


def _decided(options: ReplayOptions, ranges: Ranges, ids: Ids) -> Decided:
    """By this run, if it is the first."""
    times = Times(options.since, options.until)
    return decided(options.wish, ranges, options.pieces, times, ids)


def _chooses(options: ReplayOptions) -> bool:
    """Not all that is read is replayed; which records are is known when they are read."""
    return any(one is not None for one in (options.since, options.until, options.where))


def _keeps(options: ReplayOptions, target: Target, ranges: Ranges) -> bool:
    if options.partitions is not None:
        return options.partitions == "keep"
    counts = {topic: 0 for topic, _ in ranges.first}
    for topic, partition in ranges.first:
        counts[topic] = max(counts[topic], partition + 1)
    return not options.offsets and set(counts.values()) == {target.partitions}


# Run ---------------------------------------------------------------------------------------------


@dataclass
class Done:
    """By one run."""

    what: Decided
    records: int = 0
    batches: int = 0
    before: int = 0  # offsets that earlier runs had done


def run(session: Any, options: ReplayOptions, progress: Progress) -> Summary:
    started_s, ids = time.monotonic(), find_ids(options.bootstrap, sorted(set(options.topics)))
    ranges = _ranges(options)
    write = _to_topic if options.to is not None else _to_table
    done = write(session, options, ranges, ids, progress)
    seconds, what = time.monotonic() - started_s, done.what
    facts = {
        **_facts(options, ranges),
        "offsets": what.offsets,
        "offsets_done_before": done.before,
        "records": done.records,
        "batches": done.batches,
        "seconds": round(seconds, 1),
        "ranges": [
            {"topic": p.topic, "partition": p.partition, "first": first, "after": after}
            for p, first, after in what.pieces
        ],
    }
    lines = (
        f"{done.records:,} records replayed to {_destination(options)}, {seconds:,.1f} s"
        + (
            f"; {done.before:,} of {what.offsets:,} offsets were done before" if done.before else ""
        ),
    )
    return Summary(facts, lines)


def _to_topic(
    session: Any, options: ReplayOptions, ranges: Ranges, ids: Ids, progress: Progress
) -> Done:
    check_confs(session)
    target = find_target(options)
    keeps = _keeps(options, target, ranges)
    transactions = Transactions(
        options.bootstrap,
        transactional_id=options.group,
        group=options.group,
        timeout_ms=options.transaction_timeout,
    )
    done: Done | None = None
    while True:
        committed = transactions.begin()
        before = from_marks(committed, options.group, options.topics, options.pieces)
        what = before or _decided(options, ranges, ids)
        _check_same(options, what, ids)
        at = {**what.first, **{place: row.offset for place, row in committed.items()}}
        done = done or Done(what, before=what.done(at))
        start, end = what.next_chunk(at, options.batch_records)
        if not end:
            return done
        records = _records(session, options, what.times, Ranges(ranges.cluster_id, start, end))
        result = with_coordinates(records, options.id, keeps=keeps, partitions=target.partitions)
        offsets = {p: OffsetToCommit(o, mark(what, p)) for p, o in {**at, **end}.items()}
        with progress.tasks(session, _so_far(what, at)):
            done.records += transactions.write(result, target, offsets).records
        done.batches += 1


def _so_far(what: Decided, at: Mapping[TopicPartition, int]) -> str:
    return f"{what.done(at):,} of {what.offsets:,} offsets"


def _check_same(options: ReplayOptions, what: Decided, ids: Ids) -> None:
    if what.wish != options.wish:
        raise JobError(
            f"replay {options.id!r} was begun with other topics, another target, --offsets or --where; "
            "give what it had, or another --id"
        )
    check_ids(what, ids)


def _to_table(
    session: Any, options: ReplayOptions, ranges: Ranges, ids: Ids, progress: Progress
) -> Done:
    table = Table(session, normal(options.table or ""), options.id)
    what, most = table.decide(
        _decided(options, ranges, ids),
        options.pieces,
        cluster_id=ranges.cluster_id,
        most=options.batch_records,
    )
    _check_same(options, what, ids)
    done, at = Done(what), dict(what.first)
    for number in range(what.offsets):
        start, end = what.next_chunk(at, most)
        if not end:
            break
        if table.has(number):
            done.before += sum(end[place] - first for place, first in start.items())
        chunk = Ranges(ranges.cluster_id, start, end)
        with progress.tasks(session, _so_far(what, at)):
            table.take(partial(_records, session, options, what.times, chunk), number)
        at |= end
    done.records, done.batches = table.rows, table.batches
    return done


def _records(session: Any, options: ReplayOptions, times: Times, ranges: Ranges) -> Any:
    committed = "read_uncommitted" if options.read_uncommitted else "read_committed"
    source = session.read.format("penstock").options(**ranges.source_options(options.bootstrap))
    records = (
        source.option("includeHeaders", "true").option("kafka.isolation.level", committed).load()
    )
    records = of_times(records, times)
    if options.where is None:
        return records
    return chosen(with_texts(records), options.where).drop("key_text", "value_text")


def with_coordinates(records: Any, id: str, *, keeps: bool, partitions: int) -> Any:
    """DataFrame -> DataFrame: headers that say where each record was; its partition if it is to be kept."""
    from pyspark.sql import functions as F

    def header(name: str, value: Any) -> Any:
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    own = F.array(
        header(ID_HEADER, F.lit(id)),
        *(header(name, F.col(column)) for name, column in HEADERS.items()),
    )
    without_key = F.when(F.col("key").isNull(), F.col("partition") % partitions)
    return records.select(
        "key",
        "value",
        F.concat(F.coalesce("headers", F.array().cast(_HEADERS_TYPE)), own).alias("headers"),
        "timestamp",
        (F.col("partition") if keeps else without_key).alias("partition"),
    )


_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

JOB: Final = Job(
    name="replay",
    options=ReplayOptions,
    plan=plan,
    run=run,
    confs=confs,
    examples=(
        "penstock pipeline replay orders --id after-bug-17 --since -2h --to orders-again",
        "penstock pipeline replay orders --id some --offsets orders:0:100-200 --to orders-again",
        "penstock pipeline replay orders --id month --since 2026-11-01 --until 2026-12-01 --table month",
    ),
)
