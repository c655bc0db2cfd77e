"""`audit`: verify that no record was lost, duplicated, changed or reordered. Read-only."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.audit import compare, sides
from penstock.spark.jobs.audit import ledger as ledgers
from penstock.spark.jobs.audit import table as tables
from penstock.spark.jobs.audit import verdict as verdicts
from penstock.spark.jobs.audit.compare import END, Limits
from penstock.spark.jobs.audit.formats import Catalog
from penstock.spark.jobs.audit.options import AuditOptions
from penstock.spark.jobs.audit.table import TableFacts
from penstock.spark.jobs.files import is_local, normal
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges, ask, find_ranges

_SHOWN: Final = 20  # offences of a kind and partition


class Compared(NamedTuple):
    """What was found, before it is judged."""

    classified: Any
    ranges: Ranges  # of the topics, on whichever side they are
    places: Sequence[TopicPartition]
    text: str
    notes: tuple[str, ...] = ()


# Plan --------------------------------------------------------------------------------------------


def plan(options: AuditOptions) -> Plan:
    """Asks the brokers, and looks at a table or ledger of this machine; no Spark."""
    ranges = _ranges(options)
    how = "by offset"
    if options.table is not None:
        place = normal(options.table)
        if is_local(place):
            _table_facts(options, None)
        other = f"table {place} and its dead letters"
    elif options.against is not None:
        there = find_ranges(options.against, sorted(options.names_there.values()))
        other = f"{', '.join(sorted(options.names_there.values()))} of {options.against}, {there.offsets:,} offsets"
        how = f"by {options.by}"
    else:
        _check_ledger(options)
        other = f"ledger {options.ledger}"
    facts = {
        "job": "audit",
        "cluster": ranges.cluster_id,
        "topics": sorted(set(options.topics)),
        "partitions": len(ranges.first),
        "offsets": ranges.offsets,
        "with": normal(options.table or options.ledger or "")
        if options.against is None
        else options.against,
        "by": options.by,
    }
    lines = (
        f"read {', '.join(sorted(set(options.topics)))} from {options.bootstrap}: "
        f"{ranges.offsets:,} offsets in {len(ranges.first)} partitions",
        f"read {other}",
        f"compare {how}; write nothing",
    )
    return Plan(facts, lines)


def _ranges(options: AuditOptions) -> Ranges:
    return find_ranges(
        options.bootstrap,
        sorted(set(options.topics)),
        read_committed=not options.read_uncommitted,
    )


def _check_ledger(options: AuditOptions) -> str:
    place = normal(options.ledger or "")
    if is_local(place) and not Path(place).exists():
        raise JobError(f"{place}: there is no such ledger")
    return place


# Run ---------------------------------------------------------------------------------------------


def run(session: Any, options: AuditOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    if options.table is not None:
        compared = _with_table(session, options)
    elif options.against is not None:
        compared = _with_cluster(session, options, options.against)
    else:
        compared = _with_ledger(session, options)
    with progress.tasks(session, f"comparing {compared.ranges.offsets:,} offsets"):
        counts, offences = _judge(compared.classified)
    with progress.tasks(session, "counting gaps"):
        gaps = _gaps(session, options, compared.ranges)
    facts = {
        "job": "audit",
        "cluster": compared.ranges.cluster_id,
        "compared": compared.text,
        "notes": list(compared.notes),
        **verdicts.verdict(counts, offences, gaps, compared.places),
        "seconds": round(time.monotonic() - started_s, 1),
    }
    return Summary(facts, tuple(verdicts.lines(facts)), passed=facts["passed"])


def _judge(classified: Any) -> tuple[list[Any], list[compare.Offence]]:
    """One scan when all is well; what is not is looked at once more."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    counts = compare.count_kinds(classified)
    if not compare.is_any(counts):
        return counts, []
    offending = classified.where(F.col("kind").isin(*compare.OFFENDING))
    offending = offending.persist(StorageLevel.DISK_ONLY)
    try:
        named = offending if "home" in offending.columns else compare.refined(offending)
        legal = [row for row in counts if row[2] not in compare.OFFENDING]
        return [*legal, *compare.count_kinds(named)], compare.first_offences(named, _SHOWN)
    finally:
        offending.unpersist()


def _gaps(
    session: Any, options: AuditOptions, ranges: Ranges
) -> dict[TopicPartition, verdicts.Gaps]:
    """Only where there are markers can there be aborted records."""
    stored = sides.count_stored(session, options.bootstrap, ranges)
    read = {place: records for place, (_, records) in stored.items()}
    if any(markers for markers, _ in stored.values()):
        committed = not options.read_uncommitted
        read = sides.count_records(session, options.bootstrap, ranges, committed=committed)
    return {
        place: verdicts.gaps(
            ranges.after[place] - first,
            records=read.get(place, 0),
            markers=stored.get(place, (0, 0))[0],
            stored=stored.get(place, (0, 0))[1],
        )
        for place, first in ranges.first.items()
    }


def _table_facts(options: AuditOptions, session: Any) -> TableFacts:
    return tables.table_facts(
        normal(options.table or ""),
        options.topics,
        session,
        dead_letters=None if options.dead_letters is None else normal(options.dead_letters),
        with_values=not options.without_values,
    )


def _with_table(session: Any, options: AuditOptions) -> Compared:
    """The table first, so that the topic has all that the table can have."""
    table = _table_facts(options, session)
    catalog = Catalog(options.iceberg_table, options.catalog, dict(options.catalog_property))
    found = tables.read_table(session, table, catalog)
    ranges = _ranges(options)
    limits = _table_limits(options, table, ranges)
    records = tables.expected(
        session, options.bootstrap, ranges, table, committed=not options.read_uncommitted
    )
    rows = _up_to(found, {p: _after(table, p) for p in limits})
    return Compared(
        compare.by_offset(records, rows, limits),
        ranges,
        sorted(limits),
        f"{', '.join(sorted(set(options.topics)))} with table {table.table}, dead letters included",
        _table_notes(table),
    )


def _table_limits(
    options: AuditOptions, table: TableFacts, ranges: Ranges
) -> dict[TopicPartition, Limits]:
    """Also of partitions that the table has, and the topic has not."""
    compacted = _compacted(options.bootstrap, sorted(set(options.topics)))
    nothing = Limits(left_first=0, right_first=0, right_after=END, left_after=0)
    return dict.fromkeys(table.covered, nothing) | {
        place: Limits(
            left_first=first,
            right_first=table.start.get(place, 0),
            right_after=END if options.complete else _after(table, place),
            if_only_right=_excuse(place.topic in compacted, compare.Kind.EXTRA),
            left_after=ranges.after[place],
        )
        for place, first in ranges.first.items()
    }


def _after(table: TableFacts, place: TopicPartition) -> int:
    """The table says itself up to where it has all."""
    span = table.covered.get(place)
    return 0 if span is None else span.last + 1


def _up_to(rows: Any, after: Mapping[TopicPartition, int]) -> Any:
    """What a batch that is being written adds meanwhile is for the next audit."""
    from pyspark.sql import functions as F

    ends = rows.sparkSession.createDataFrame(
        [(*place, end) for place, end in sorted(after.items())],
        "topic string, partition int, end bigint",
    )
    joined = rows.join(F.broadcast(ends), ["topic", "partition"])
    return joined.where(F.col("offset") < F.col("end")).drop("end")


def _table_notes(table: TableFacts) -> tuple[str, ...]:
    notes = []
    if not table.with_values:
        notes.append("values were not compared, only keys, headers and times: --without-values")
    if table.unfinished:
        notes.append(
            f"{table.unfinished} batches were interrupted before all of their files had names; run the lake job again"
        )
    return tuple(notes)


def _with_cluster(session: Any, options: AuditOptions, against: str) -> Compared:
    """The other cluster first: it cannot be ahead then."""
    names, committed = options.names_there, not options.read_uncommitted
    back = {there: here for here, there in names.items()}
    there = find_ranges(against, sorted(back), read_committed=committed)
    ranges = _ranges(options)
    left = sides.read_topic(session, options.bootstrap, ranges, committed=committed)
    right = sides.renamed(sides.read_topic(session, against, there, committed=committed), back)
    text = (
        f"{', '.join(names)} of {options.bootstrap} with {', '.join(names.values())} of {against}, "
        f"by {options.by}"
    )
    if options.by == "content":
        classified = compare.by_content(
            sides.contents(left), sides.contents(right), is_complete=options.complete
        )
        notes = (
            f"offsets of what is there more than once, or should not be there, are {against}'s",
        )
        return Compared(classified, ranges, sorted(ranges.first), text, notes)
    here_compacted = _compacted(options.bootstrap, list(names))
    there_compacted = {back[topic] for topic in _compacted(against, sorted(back))}
    limits = {}
    for place, first in ranges.first.items():
        other = TopicPartition(names[place.topic], place.partition)
        limits[place] = Limits(
            left_first=first,
            right_first=there.first.get(other, 0),
            right_after=END if options.complete else there.after.get(other, 0),
            if_only_left=_excuse(place.topic in there_compacted, compare.Kind.MISSING),
            if_only_right=_excuse(place.topic in here_compacted, compare.Kind.EXTRA),
            left_after=ranges.after[place],
        )
    for other, first in there.first.items():  # partitions that only the other cluster has
        place = TopicPartition(back[other.topic], other.partition)
        limits.setdefault(place, Limits(0, first, END))
    classified = compare.by_offset(sides.whole_records(left), sides.whole_records(right), limits)
    return Compared(classified, ranges, sorted(limits), text)


def _with_ledger(session: Any, options: AuditOptions) -> Compared:
    """The ledger is what must be. Other producers may write to the topic too."""
    from pyspark.sql import functions as F

    topics = sorted(set(options.topics))
    ledger = ledgers.read_ledger(session, _check_ledger(options), topics)
    if options.complete and ledger.unacknowledged and not ledger.tells_contents:
        raise JobError(
            f"{ledger.place} has {ledger.unacknowledged} rows that were never acknowledged, and with --complete they must be "
            "known again: add key and value, or key and hash, to the ledger"
        )
    ranges = _ranges(options)
    claims = ledgers.claims(ledger)
    acknowledged = claims.where(F.col("offset").isNotNull())
    limits = _ledger_limits(options, acknowledged, ranges)
    records = sides.read_topic(
        session, options.bootstrap, ranges, committed=not options.read_uncommitted
    )
    rows = ledgers.as_claims(records, ledger.told)
    classified = compare.by_offset(acknowledged, rows, limits)
    if ledger.tells_contents:
        classified = compare.written_again(classified, claims, may_repeat=options.at_least_once)
    text = f"ledger {ledger.place} with {', '.join(topics)} of {options.bootstrap}"
    return Compared(classified, ranges, sorted(limits), text, tuple(ledgers.notes(ledger)))


def _ledger_limits(
    options: AuditOptions, acknowledged: Any, ranges: Ranges
) -> dict[TopicPartition, Limits]:
    """Also of partitions that the ledger has, and the topic has not."""
    compacted = _compacted(options.bootstrap, sorted(set(options.topics)))
    claimed = acknowledged.select("topic", "partition").distinct().collect()
    first = {TopicPartition(*place): 0 for place in claimed} | dict(ranges.first)
    return {
        place: Limits(
            left_first=0,
            right_first=at,
            right_after=END,
            if_only_left=_excuse(place.topic in compacted, compare.Kind.MISSING),
            if_only_right=compare.Kind.EXTRA if options.complete else compare.Kind.UNCLAIMED,
        )
        for place, at in first.items()
    }


def _excuse(is_compacted: bool, otherwise: compare.Kind) -> compare.Kind:
    return compare.Kind.COMPACTED if is_compacted else otherwise


def _compacted(bootstrap: str, topics: Sequence[str]) -> set[str]:
    """The topics of which old values of a key may vanish."""

    async def question(pool: Pool) -> set[str]:
        found = set()
        for topic in topics:
            for config in await admin.topic_configs(pool, topic):
                if config.name == "cleanup.policy" and "compact" in (config.value or ""):
                    found.add(topic)
        return found

    return ask(bootstrap, question)


JOB: Final = Job(
    name="audit",
    options=AuditOptions,
    plan=plan,
    run=run,
    examples=(
        "penstock pipeline audit orders --table lake/orders",
        "penstock pipeline audit orders --against standby:9092",
        "penstock pipeline audit orders --ledger sent.csv --json",
    ),
)
