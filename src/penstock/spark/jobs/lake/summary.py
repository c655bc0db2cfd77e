"""Summarize a run of the lake job as text and as JSON.

Pure, except that it reads the last manifest.
"""

from collections.abc import Mapping
from typing import Any

from penstock.spark.job import Summary
from penstock.spark.jobs.lake.options import LakeOptions
from penstock.spark.jobs.table.batches import Batches, Storage
from penstock.spark.jobs.table.unknown import listed
from penstock.spark.survey import Ranges


def summarize(
    options: LakeOptions,
    ranges: Ranges,
    storage: Storage,
    batches: Batches,
    more: dict[str, Any],
    seconds: float,
) -> Summary:
    layout, totals, last = storage.layout, batches.totals, storage.last()
    covered = last.covered if last else {}
    facts = {
        "job": "lake",
        "name": layout.job,
        "cluster": ranges.cluster_id,
        "topics": sorted(options.topics),
        "decode": options.decode,
        "format": options.format,
        "table": layout.table,
        "dead_letters_table": layout.dead_letters,
        "checkpoint": options.checkpoint_place,
        "group": options.group,
        "batches": totals.batches,
        "rows": totals.rows,
        "dead_letters": totals.dead_letters,
        "unknown_fields": {"rows": totals.unknown_fields, "names": totals.unknown_names},
        "files": totals.files,
        "bytes": totals.size_bytes,
        **more,
        "seconds": round(seconds, 1),
        "covered": [
            {
                "topic": p.topic,
                "partition": p.partition,
                "first": s.first,
                "last": s.last,
                "records": s.records,
            }
            for p, s in sorted(covered.items())
        ],
    }
    return Summary(facts, _lines(facts, evolve=options.evolve))


def _lines(facts: Mapping[str, Any], *, evolve: bool) -> tuple[str, ...]:
    covered = facts["covered"]
    total = sum(span["records"] for span in covered)
    lines = [
        f"{facts['rows']:,} rows in {facts['files']:,} files ({facts['bytes'] / 1e6:,.1f} MB), "
        f"{facts['batches']:,} batches, {facts['seconds']:,.1f} s → {facts['table']}",
        f"the table has {total:,} records of {len(covered)} partitions, dead letters included",
    ]
    if facts["dead_letters"]:
        lines.append(
            f"{facts['dead_letters']:,} records could not be decoded → {facts['dead_letters_table']}"
        )
    if facts["unknown_fields"]["rows"]:
        lines.append(_left_out(facts, evolve=evolve))
    if facts["compacted"]["before"]:
        counts = facts["compacted"]
        lines.append(f"{counts['before']:,} small files became {counts['after']:,}")
    return tuple(lines)


def _left_out(facts: Mapping[str, Any], *, evolve: bool) -> str:
    rows, names = facts["unknown_fields"]["rows"], listed(facts["unknown_fields"]["names"])
    reject = "--unknown-fields reject makes such records dead letters"
    if evolve:
        return (
            f"{rows:,} rows had fields that get no column, for another has the name in other case, or they are nested too "
            f"deep, or empty so far; they were left out: {names}; without --evolve, {reject}"
        )
    grow = "--evolve adds columns for them (not for names that differ from others only in case), "
    return (
        f"{rows:,} rows had fields that the schema lacks, which were left out: {names}; "
        f"{grow if facts['format'] == 'parquet' else ''}{reject}"
    )
