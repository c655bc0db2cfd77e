"""`lake`: write topics to a table of Parquet files, each record exactly once.

This holds wherever the job is killed.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.spark import checkpoint
from penstock.spark.checkpoint import Identity
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.files import for_spark, is_local, open_files
from penstock.spark.jobs.lake.avro_values import AvroDecoder
from penstock.spark.jobs.lake.compact import Compacted, Compactor
from penstock.spark.jobs.lake.formats import DeltaLake, Iceberg, ParquetTable, TableFormat
from penstock.spark.jobs.lake.given_schema import check_given
from penstock.spark.jobs.lake.json_values import JsonDecoder
from penstock.spark.jobs.lake.options import LakeOptions
from penstock.spark.jobs.lake.start import (
    Numbers,
    check_topics,
    claim_table,
    claimed,
    hold_topics,
    starting_offsets,
)
from penstock.spark.jobs.lake.summary import summarize
from penstock.spark.jobs.record_times import folder_date
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.batches import Batches, Storage, Totals
from penstock.spark.jobs.table.decode import Decoder, RawDecoder
from penstock.spark.jobs.table.manifest import Manifest, Table
from penstock.spark.jobs.table.packages import check_fastavro, check_installed
from penstock.spark.jobs.table.unknown import listed
from penstock.spark.jobs.topic_ids import find_ids
from penstock.spark.progress import FIRST_BATCH, Meter, Progress
from penstock.spark.streams import see_through
from penstock.spark.survey import Ranges, find_ranges

_SQL: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what other engines read
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # else rows are sorted by directory first
    "spark.sql.session.timeZone": "UTC",  # of dates in directories' names
}
_COMPACT_EVERY: Final = 100  # batches
_LOOK_S: Final = 0.5


# Plan --------------------------------------------------------------------------------------------


def plan(options: LakeOptions) -> Plan:
    """Asks the brokers, and looks at the table if it is on this machine; no Spark."""
    check_installed(options.format)
    if options.decode == "avro":
        check_fastavro()
    if options.schema is not None:
        check_given(options.decode, options.schema)
    ranges = _ranges(options)
    layout = options.layout
    options, last = _look(options, ranges)
    done = manifests.next_offsets(last.covered) if last else {}
    missing = sum(
        max(0, after - max(ranges.first[place], done.get(place, 0)))
        for place, after in ranges.after.items()
    )
    facts = {
        "job": "lake",
        "name": layout.job,
        "cluster": ranges.cluster_id,
        "topics": sorted(options.topics),
        "partitions": len(ranges.first),
        "offsets": missing,
        "continues": last is not None,
        "decode": options.decode,
        "format": options.format,
        "table": layout.table,
        "dead_letters_table": layout.dead_letters,
        "checkpoint": options.checkpoint_place,
        "group": options.group,
    }
    lines = (
        f"read {', '.join(sorted(options.topics))} from {options.bootstrap}: "
        f"{missing:,} offsets in {len(ranges.first)} partitions"
        + (f", after {last.number + 1:,} batches that are in the table" if last else ""),
        f"write {layout.table} as {options.format}, by topic" + _by(options),
        f"write what is not {options.decode} to {layout.dead_letters}"
        if options.decode != "raw"
        else "keep values as they are",
        f"remember the progress in {options.checkpoint_place}, and show it as group {options.group}",
    )
    return Plan(facts, lines)


def _by(options: LakeOptions) -> str:
    return "" if options.partition_by == "none" else f" and {options.partition_by}"


def _look(options: LakeOptions, ranges: Ranges) -> tuple[LakeOptions, Manifest | None]:
    """How the job goes on, and what the table has; raises if it, or the checkpoint, is another job's."""
    layout, identity = options.layout, options.identity(ranges.cluster_id)
    last = None
    if is_local(layout.table):
        files = open_files(layout.table, None)
        found = claimed(files, layout, _flat(identity))
        options, identity = _since_first(options, identity, found)
        if not options.compact_only:
            check_topics(files, layout, options.topics, _ids(options))
        last = Storage(layout, files, files).last()
    if is_local(options.checkpoint_place):
        checkpoint.check(options.checkpoint_place, identity)
    return options, last


def _flat(identity: Identity) -> dict[str, Any]:
    return {
        "cluster": identity.cluster_id,
        "topics": list(identity.topics),
        **dict(sorted(identity.options.items())),
    }


def _since_first(
    options: LakeOptions, identity: Identity, found: Mapping[str, Any] | None
) -> tuple[LakeOptions, Identity]:
    """As the checkpoint has it: the table may have been moved since, and topics left out."""
    if found is None:
        return options, identity
    kept = {name: found[name] for name in ("table", "dead_letters") if name in found}
    since = replace(identity, options={**identity.options, **kept})
    return options.continuing(found["topics"]), since


def _ranges(options: LakeOptions) -> Ranges:
    """Up to where the job can read: not beyond an open transaction, unless it takes those too."""
    return find_ranges(
        options.bootstrap,
        options.topics,
        since_ms=options.since,
        read_committed=not options.read_uncommitted,
    )


def _ids(options: LakeOptions) -> dict[str, str]:
    return find_ids(options.bootstrap, options.topics)


# Run ---------------------------------------------------------------------------------------------


def run(session: Any, options: LakeOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    for name, value in _SQL.items():
        session.conf.set(name, value)
    layout, ranges = options.layout, _ranges(options)
    storage = Storage(
        layout, open_files(layout.table, session), open_files(layout.dead_letters, session)
    )
    _check(session, options, storage, ranges)
    table = _table(session, options)
    decoder = _decoder(session, options, storage, ranges, progress)
    options = _claim(session, options, storage, ranges)  # all that may fail did not
    batches = Batches(session, storage, decoder, table.folders, place, table.commit)
    batches.recover()
    compaction = _Compaction(session, options, storage, table)
    compaction.recover()
    is_done = options.compact_only or _stream(
        session, options, storage, ranges, batches, compaction, progress
    )
    if is_done and (options.compact or options.compact_only):
        with progress.tasks(session, "compacting small files"):
            compaction.run()
    facts = {"compacted": compaction.total._asdict()}
    return summarize(options, ranges, storage, batches, facts, time.monotonic() - started_s)


def _check(session: Any, options: LakeOptions, storage: Storage, ranges: Ranges) -> None:
    """As `_claim`, but changes nothing."""
    layout, identity = options.layout, options.identity(ranges.cluster_id)
    found = claimed(storage.files, layout, _flat(identity))
    options, identity = _since_first(options, identity, found)
    checkpoint.check(options.checkpoint_place, identity, session)
    if not options.compact_only:
        check_topics(storage.files, layout, options.topics, _ids(options))


def _claim(session: Any, options: LakeOptions, storage: Storage, ranges: Ranges) -> LakeOptions:
    """Table, topics and checkpoint are this job's from now on; how it goes on."""
    layout, identity = options.layout, options.identity(ranges.cluster_id)
    found = claim_table(storage.files, layout, _flat(identity))
    options, identity = _since_first(options, identity, found)
    checkpoint.claim(options.checkpoint_place, identity, session)
    if not options.compact_only:
        hold_topics(storage.files, layout, options.topics, _ids(options))
    return options


class _Compaction:
    """Of the rows and of the dead letters."""

    def __init__(
        self, session: Any, options: LakeOptions, storage: Storage, table: TableFormat
    ) -> None:
        self._table = table
        self._small_bytes = options.small_files
        self._is_due = options.compact and options.follow
        ours = [Table.DEAD_LETTERS] if table.compacts_itself else list(Table)
        self._compactors = [Compactor(session, storage, each) for each in ours]
        self.total = Compacted(0, 0)

    def recover(self) -> None:
        for compactor in self._compactors:
            compactor.recover()

    def run(self) -> None:
        for compactor in self._compactors:
            self._add(*compactor.run(self._small_bytes))
        if self._table.compacts_itself:
            self._add(*self._table.compact(self._small_bytes))

    def _add(self, before: int, after: int) -> None:
        self.total = Compacted(self.total.before + before, self.total.after + after)

    def after_batch(self, batch: int) -> None:
        if self._is_due and batch % _COMPACT_EVERY == _COMPACT_EVERY - 1:
            self.run()


def _table(session: Any, options: LakeOptions) -> TableFormat:
    match options.format:
        case "delta":
            return DeltaLake(session, options.layout, options.partition_by)
        case "iceberg":
            return Iceberg(
                session,
                options.layout,
                options.partition_by,
                catalog=options.catalog,
                properties=dict(options.catalog_property),
                name=options.iceberg_table or "",
            )
        case _:
            return ParquetTable(options.partition_by)


def _decoder(
    session: Any, options: LakeOptions, storage: Storage, ranges: Ranges, progress: Progress
) -> Decoder:
    if options.compact_only:
        return RawDecoder()  # nothing will be decoded
    if options.decode == "json":
        return JsonDecoder(
            session,
            storage,
            bootstrap=options.bootstrap,
            ranges=ranges,
            given=options.schema,
            evolve=options.evolve,
            unknown_fields=options.unknown_fields,
            isolation=_isolation(options),
            progress=progress,
        )
    if options.decode == "avro":
        return AvroDecoder(
            storage,
            path=options.schema or "",
            framing=options.avro_framing,
            evolve=options.evolve,
        )
    return RawDecoder()


def _stream(
    session: Any,
    options: LakeOptions,
    storage: Storage,
    ranges: Ranges,
    batches: Batches,
    compaction: _Compaction,
    progress: Progress,
) -> bool:
    """False: it was to follow, and was interrupted; Spark may be gone."""
    checkpoint_place = options.checkpoint_place
    numbers = Numbers(storage, checkpoint_place, open_files(checkpoint_place, session))

    def take(records: Any, batch: int) -> None:
        batches.take(records, *numbers.number(batch))
        compaction.after_batch(batch)

    def watch(query: Any) -> bool:
        try:
            with progress.or_asked():
                _watch(query, batches.totals, progress)
        except KeyboardInterrupt:
            if not options.follow:
                raise
            return False
        return True

    start = starting_offsets(storage, ranges, **_begin(options))
    return see_through(lambda: _start(session, options, start, take), watch)


def _begin(options: LakeOptions) -> dict[str, bool]:
    whole = options.since is None and not options.new_only
    return {"whole": whole, "new_only": options.new_only}


def _start(session: Any, options: LakeOptions, start: str, take: Callable[[Any, int], None]) -> Any:
    trigger = (
        {"processingTime": f"{options.every} milliseconds"}
        if options.follow
        else {"availableNow": True}
    )
    return (
        session.readStream.format("penstock")
        .options(**_source_options(options, start))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", for_spark(options.checkpoint_place))
        .trigger(**trigger)
        .start()
    )


def _watch(query: Any, totals: Totals, progress: Progress) -> None:
    """Until the query ends; raises what ended it. Spark's own count has records twice of which some are bad."""
    meter = Meter()
    while not query.awaitTermination(_LOOK_S):
        meter.see(query.recentProgress)
        if meter.is_first:
            progress.show(FIRST_BATCH)
            continue
        behind = "" if meter.lag is None else f", lag {meter.lag:,}"
        bad = f", {totals.dead_letters:,} dead letters" if totals.dead_letters else ""
        if totals.unknown_fields:
            names = listed(totals.unknown_names)
            bad += f", {totals.unknown_fields:,} with fields that the schema lacks ({names})"
        progress.show(
            f"{totals.rows:,} rows in {totals.batches:,} batches{bad}, "
            f"{meter.rows_per_s:,.0f} rows/s{behind}"
        )


def _source_options(options: LakeOptions, start: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": options.bootstrap,
        "subscribe": ",".join(sorted(set(options.topics))),
        "startingOffsets": start,
        "includeHeaders": "true",
        "kafka.isolation.level": _isolation(options),
        "maxOffsetsPerTrigger": str(options.batch_records),
        "failOnDataLoss": "false" if options.allow_data_loss else "true",
        "groupId": options.group,
    }


def _isolation(options: LakeOptions) -> str:
    return "read_uncommitted" if options.read_uncommitted else "read_committed"


def place(rows: Any, folders: tuple[str, ...]) -> Any:
    """With the columns that become directories. Those of Iceberg are copies, for its files hold all columns."""
    from pyspark.sql import functions as F

    values = {
        "date": folder_date(),
        "hour": F.date_format("timestamp", "HH"),
        "topic": F.col("topic"),
    }
    return rows.withColumns({name: values[name.removeprefix("by_")] for name in folders})


JOB: Final = Job(
    name="lake",
    options=LakeOptions,
    plan=plan,
    run=run,
    examples=(
        "penstock pipeline lake orders --table lake/orders",
        "penstock pipeline lake orders --table lake/orders --decode json --schema 'id BIGINT, amount DOUBLE'",
        "penstock pipeline lake orders payments --table lake/events --follow --every 1m",
    ),
)
