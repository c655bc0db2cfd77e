"""What the tests of the audit have in common: runs of it, and damage to tables of the lake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.job import Summary, explained
from penstock.spark.jobs.audit import job as audit
from penstock.spark.jobs.audit.options import AuditOptions
from penstock.spark.progress import Progress
from tests.support.server import Server

Row = dict[str, Any]
FAULTS = ("missing", "duplicate", "reordered", "changed", "extra")


def run_audit(spark: Any, broker: Server, *topics: str, **options: Any) -> Summary:
    given = AuditOptions(bootstrap=broker.bootstrap, topics=topics, **options)
    with explained():
        audit.plan(given)
        return audit.run(spark, given, Progress())


def faults(summary: Summary) -> dict[str, dict[int, list[int]]]:
    """By kind and partition, the offsets that are named; the counts must agree with them."""
    found: dict[str, dict[int, list[int]]] = {}
    for entry in summary.facts["partitions"]:
        for kind, offsets in entry["first"].items():
            assert entry[kind] == len(offsets)
            found.setdefault(kind, {})[entry["partition"]] = offsets
    for kind in FAULTS:
        named = sum(len(offsets) for offsets in found.get(kind, {}).values())
        assert summary.facts[kind] == named
    assert summary.passed == (not found)
    return found


def damage(table: Path, change: Callable[[Row], list[Row]]) -> None:
    """Rewrites the files of a table; `change` gives what becomes of a row."""
    for path in table.rglob("*.parquet"):
        if "_penstock" not in path.parts:
            old = pq.ParquetFile(path).read()
            rows = [new for row in old.to_pylist() for new in change(row)]
            pq.write_table(pa.Table.from_pylist(rows, old.schema), path)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
