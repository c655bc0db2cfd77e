"""`transform`: send a topic through SQL or a Python function to another topic, exactly once.

Each micro-batch is one transaction.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.client.raw_transactions import OffsetToCommit
from penstock.spark import checkpoint
from penstock.spark.functions import check_files
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.files import is_local, open_files
from penstock.spark.jobs.target import find_target
from penstock.spark.jobs.topic_ids import check_ids, find_ids, hold_ids
from penstock.spark.jobs.transform.options import TransformOptions
from penstock.spark.jobs.transform.position import Log, is_committed, starting
from penstock.spark.jobs.transform.query import Query, check, function_query, sql_query
from penstock.spark.outgoing import Target
from penstock.spark.progress import Meter, Progress
from penstock.spark.streams import see_through
from penstock.spark.survey import Ranges, find_ranges, offsets_json
from penstock.spark.transactional import CONFS, Transactions, check_confs

_LAST_BATCH_S: Final = 60.0
_RESTART_MS: Final = "60000"  # a broker that is started again is waited for
_OTHER_TOPIC: Final = "give another --checkpoint and --name for the new one"


def confs(options: TransformOptions) -> Mapping[str, str]:
    return {} if options.at_least_once else CONFS


# Plan --------------------------------------------------------------------------------------------


def plan(options: TransformOptions) -> Plan:
    """Asks the brokers; no Spark."""
    check_files(options.sql, options.function)
    ranges, target = _ranges(options), find_target(options)
    continues = is_local(options.place) and _is_continued(options, ranges)
    facts = {
        **_facts(options, ranges),
        "continues": continues,
        "offsets": ranges.offsets,
        "partitions": len(ranges.first),
        "to_partitions": target.partitions,
    }
    how = (
        "at least once"
        if options.at_least_once
        else f"exactly once, in transactions of at most {options.batch_records:,} records"
    )
    lines = (
        f"read {', '.join(sorted(options.topics))} from {options.bootstrap}: "
        f"{ranges.offsets:,} offsets in {len(ranges.first)} partitions"
        + (", but for what the checkpoint has" if continues else ""),
        f"transform with {options.sql or options.function}",
        f"write {options.to}, {target.partitions} partitions, {how}",
        f"remember the progress in {options.place}, and as group {options.group}",
    )
    return Plan(facts, lines)


def _is_continued(options: TransformOptions, ranges: Ranges) -> bool:
    """Raises if the checkpoint is another job's, or of topics that are gone."""
    place = options.place
    found = checkpoint.check(place, options.identity(ranges.cluster_id))
    check_ids(open_files(place, None), place, _ids(options), _OTHER_TOPIC)
    return found


def _ids(options: TransformOptions) -> dict[str, str]:
    return find_ids(options.bootstrap, options.topics)


def _facts(options: TransformOptions, ranges: Ranges) -> dict[str, Any]:
    return {
        "job": "transform",
        "cluster": ranges.cluster_id,
        "topics": sorted(options.topics),
        "to": options.to,
        "group": options.group,
        "checkpoint": options.place,
        "exactly_once": not options.at_least_once,
    }


def _ranges(options: TransformOptions) -> Ranges:
    """Up to where the job can read: not beyond an open transaction, unless it takes those too."""
    return find_ranges(
        options.bootstrap,
        options.topics,
        since_ms=options.since,
        read_committed=not options.read_uncommitted,
    )


# Run ---------------------------------------------------------------------------------------------


class Batches:
    """Used by one thread: Spark's, which runs one batch after the other."""

    def __init__(self, options: TransformOptions, query: Query, target: Target, log: Log) -> None:
        self._options = options
        self._query = query
        self._target = target
        self._log = log
        self._running = threading.Lock()
        self._transactions = Transactions(
            options.bootstrap,
            transactional_id=options.group,
            group=options.group,
            timeout_ms=options.transaction_timeout,
        )
        self._unfinished: int | None = None
        self.written = self.size_bytes = self.committed = self.skipped = 0

    def prepare(self, ranges: Ranges) -> str:
        """Ends whatever an earlier run left; from where Spark's first batch reads."""
        options = self._options
        committed = {} if options.at_least_once else self._transactions.begin()
        whole = options.since is None and not options.new_only
        begin = starting(committed, ranges, whole=whole, new_only=options.new_only)
        self._log.remember(begin)
        known = {p: o for p, o in self._log.first().items() if p in begin}
        return offsets_json(begin | known)

    def look(self) -> None:
        """Whenever the query is started: which batch an earlier one may have done."""
        self._unfinished = self._log.unfinished()

    def take(self, records: Any, batch: int) -> None:
        with self._running:
            if self._options.at_least_once:
                self._append(self._query(records))
            else:
                self._commit(records, batch)

    def wait(self) -> None:
        """A batch that was interrupted ends its transaction first."""
        if self._running.acquire(timeout=_LAST_BATCH_S):
            self._running.release()

    def _commit(self, records: Any, batch: int) -> None:
        log, mark = self._log, self._log.mark(batch)
        end = log.end(batch)
        committed = self._transactions.begin()
        if is_committed(
            committed,
            mark,
            group=self._options.group,
            start=log.start(batch),
            end=end,
            was_tried=batch > 0 and batch == self._unfinished,
        ):
            self.skipped += 1
            return
        offsets = {place: OffsetToCommit(offset, mark) for place, offset in end.items()}
        sent = self._transactions.write(self._query(records), self._target, offsets)
        self.committed += 1
        self.written += sent.records
        self.size_bytes += sent.size_bytes

    def _append(self, result: Any) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        options = {
            "kafka.bootstrap.servers": self._options.bootstrap,
            "kafka.compression.type": self._options.compression,
            "kafka.max.block.ms": _RESTART_MS,
            "topic": self._options.to,
        }
        counted = result.observe(seen, F.count(F.lit(1)).alias("rows"))
        counted.write.format("penstock").options(**options).mode("append").save()
        self.committed += 1
        self.written += int(seen.get["rows"])


def run(session: Any, options: TransformOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    ranges, target = _ranges(options), find_target(options)
    if not options.at_least_once:
        check_confs(session)
    query = sql_query(options.sql) if options.sql is not None else _function(options)
    check(session, query, target)  # first: a job that cannot be has no checkpoint either
    files = open_files(options.place, session)
    checkpoint.claim(options.place, options.identity(ranges.cluster_id), session)
    hold_ids(files, options.place, _ids(options), _OTHER_TOPIC)
    batches = Batches(options, query, target, Log(options.place, files))
    meter = _stream(session, options, batches, batches.prepare(ranges), progress)
    if meter.was_interrupted and not options.follow:
        raise KeyboardInterrupt  # it was not done
    seconds = time.monotonic() - started_s
    facts = {
        **_facts(options, ranges),
        "batches": batches.committed,
        "batches_found_committed": batches.skipped,
        "records_read": meter.rows,
        "records_written": batches.written,
        "bytes": batches.size_bytes,
        "seconds": round(seconds, 1),
    }
    lines = (
        f"{meter.rows:,} records read, {batches.written:,} written to {options.to} in "
        f"{batches.committed:,} {'batches' if options.at_least_once else 'transactions'}, {seconds:,.1f} s",
    )
    return Summary(facts, lines)


def _function(options: TransformOptions) -> Query:
    assert options.function is not None, "one of the two is given"
    return function_query(options.function)


def _stream(
    session: Any, options: TransformOptions, batches: Batches, start: str, progress: Progress
) -> Meter:
    trigger = (
        {"processingTime": f"{options.every} milliseconds"}
        if options.follow
        else {"availableNow": True}
    )
    place, meter = options.place, Meter()

    def begin() -> Any:
        batches.look()
        return (
            session.readStream.format("penstock")
            .options(**_source_options(options, start))
            .load()
            .writeStream.foreachBatch(batches.take)
            .option("checkpointLocation", f"file:{place}" if is_local(place) else place)
            .trigger(**trigger)
            .start()
        )

    try:
        return see_through(begin, lambda query: progress.follow(query, meter))
    finally:
        batches.wait()


def _source_options(options: TransformOptions, start: str) -> dict[str, str]:
    committed = "read_uncommitted" if options.read_uncommitted else "read_committed"
    found = {
        "kafka.bootstrap.servers": options.bootstrap,
        "subscribe": ",".join(sorted(set(options.topics))),
        "startingOffsets": start,
        "includeHeaders": "true",
        "kafka.isolation.level": committed,
        "maxOffsetsPerTrigger": str(options.batch_records),
        "failOnDataLoss": "false" if options.allow_data_loss else "true",
    }
    if options.at_least_once:  # else the transactions do that
        found["groupId"] = options.group
    return found


JOB: Final = Job(
    name="transform",
    options=TransformOptions,
    plan=plan,
    run=run,
    confs=confs,
    examples=(
        "penstock pipeline transform orders --to large-orders --checkpoint state/large "
        "--sql \"SELECT key, value FROM records WHERE get_json_object(value_text, '$.amount') > 100\"",
        "penstock pipeline transform orders --to cleaned --checkpoint state/cleaned --function clean.py:clean --follow",
        "penstock pipeline transform orders --to cleaned --checkpoint state/cleaned --sql clean.sql --dry-run",
    ),
)
