"""`audit` of each kind of table that the lake writes: what it has passes, and what is planted is found at its offset."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from tests.spark.audits import Row, damage, faults, run_audit
from tests.spark.lakes import Lake
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PLANTED = {
    "missing": {0: [2]},
    "duplicate": {0: [4]},
    "changed": {0: [1, 5]},
    "reordered": {0: [7, 8]},
}


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


def plant(table: Path, change: Callable[[Row], Row]) -> None:
    """A row is lost, one doubled, two change places, and `change` changes those at 1 and 5."""

    def damaged(row: Row) -> list[Row]:
        match row["offset"]:
            case 2:
                return []
            case 4:
                return [row, row]
            case 7 | 8 as offset:
                return [{**row, "offset": 15 - offset}]
            case 1 | 5:
                return [change(row)]
            case _:
                return [row]

    damage(table, damaged)


def _passes(spark: Any, lake: Lake, name: str, records: int = 10, **how: Any) -> None:
    summary = run_audit(spark, lake.broker, name, table=str(lake.table), **how)
    assert faults(summary) == {}
    assert (summary.facts["agreed"], summary.facts["notes"]) == (records, [])


def _json(topic: str, broker: Server, *values: str) -> None:
    """Each with a key of its own."""
    produce(broker, topic, [Sent(text.encode()[:9], text.encode()) for text in values])


@pytest.mark.long
def test_a_schema_that_grew(spark: Any, lake: Lake, broker: Server, topic: Create) -> None:
    """Records are decoded as they were: what was left out then is no fault, and nor is what was kept later."""
    name = topic("grown", retention_ms=-1)
    how = {"decode": "json", "partition_by": "none", "compact": True}
    more = ', "more": {"x": 1.5, "at": "2026-11-15T08:00:00.123456Z"}'
    _json(name, broker, *(f'{{"id": {n}{more * (n % 2)}}}' for n in range(5)))
    lake.run(name, schema="id BIGINT", **how)
    _json(name, broker, *(f'{{"id": {n}{more}}}' for n in range(5, 9)), '{"id": "nine"}')
    schema = "id BIGINT, more STRUCT<x: DOUBLE, at: TIMESTAMP>"
    lake.run(name, schema=schema, evolve=True, **how)
    _passes(spark, lake, name)
    plant(lake.table, lambda row: {**row, "value": {**row["value"], "more": {"x": 1.5}}})
    assert faults(run_audit(spark, broker, name, table=str(lake.table))) == PLANTED
    alone = run_audit(spark, broker, name, table=str(lake.table), without_values=True)
    assert faults(alone) == {kind: at for kind, at in PLANTED.items() if kind != "changed"}
    assert "values were not compared" in alone.facts["notes"][0]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
LATER: dict[str, Any] = {
    **AVRO,
    "fields": [
        *AVRO["fields"],
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


@pytest.mark.long
def test_avro_of_two_versions(
    spark: Any, lake: Lake, broker: Server, topic: Create, tmp_path: Path
) -> None:
    fastavro = pytest.importorskip("fastavro")

    def written(schema: Any, number: int) -> bytes:
        stream = io.BytesIO()
        value = {"id": number, "tags": {"a": 1, "b": 2}, "at": 1_700_000_000_000_001}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
        return stream.getvalue()

    name, path = topic("avro", retention_ms=-1), tmp_path / "order.avsc"
    how = {"decode": "avro", "schema": str(path), "avro_framing": "none", "partition_by": "none"}
    for schema, first in ((AVRO, 0), (LATER, 5)):
        path.write_text(json.dumps(schema))
        values = [written(schema, first + n) for n in range(4)]
        produce(broker, name, [Sent(b"k", value) for value in [*values, b"?"]])
        lake.run(name, evolve=True, **how)
    path.unlink()
    _passes(spark, lake, name)
    plant(lake.table, lambda row: {**row, "value": {**row["value"], "tags": [("a", 1), ("b", 3)]}})
    expected = {**PLANTED, "duplicate": {}}  # at 4 is a dead letter
    found = faults(run_audit(spark, broker, name, table=str(lake.table)))
    assert {**expected, **found} == expected
    damage(lake.dead_letters, lambda row: [{**row, "value": b"!"}] if row["offset"] == 9 else [])
    found = faults(run_audit(spark, broker, name, table=str(lake.table)))
    assert (found["missing"], found["changed"]) == ({0: [2, 4]}, {0: [1, 5, 9]})


@pytest.mark.long
def test_a_delta_table_before_and_after_its_compaction(
    spark: Any, lake: Lake, broker: Server, topic: Create
) -> None:
    pytest.importorskip("deltalake")
    name = topic("delta", retention_ms=-1)
    how = {"format": "delta", "decode": "json", "schema": "id BIGINT", "unknown_fields": "reject"}
    for first in (0, 5):
        produce(broker, name, [Sent(b"k", b'{"id": %d}' % (first + n)) for n in range(5)])
        lake.run(name, **how)
    produce(broker, name, [Sent(b"k", b'{"id": 1, "more": 2}')])
    assert lake.run(name, **how).facts["dead_letters"] == 1
    _passes(spark, lake, name, 11)
    lake.run(name, compact_only=True, **how)
    _passes(spark, lake, name, 11)
    plant(lake.table, lambda row: {**row, "value": {"id": 99}})
    assert faults(run_audit(spark, broker, name, table=str(lake.table))) == PLANTED


@pytest.mark.long
def test_an_iceberg_table_is_what_its_catalog_says(
    spark: Any, lake: Lake, broker: Server, topic: Create, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    name = topic("iceberg", retention_ms=-1)
    where: dict[str, Any] = {
        "iceberg_table": "shop.orders",
        "catalog": "test",
        "catalog_property": (("type", "sql"), ("uri", f"sqlite:///{tmp_path}/catalog.db")),
    }
    produce(broker, name, numbered(10))
    lake.run(name, format="iceberg", **where)
    _passes(spark, lake, name, **where)
    with pytest.raises(JobError, match=r"is an Iceberg table.*give --iceberg-table"):
        run_audit(spark, broker, name, table=str(lake.table))
    other = {**where, "iceberg_table": "shop.none"}
    with pytest.raises(JobError, match=r"has no table shop\.none"):
        run_audit(spark, broker, name, table=str(lake.table), **other)
    plant(lake.table, lambda row: {**row, "value": b"?"})
    assert faults(run_audit(spark, broker, name, table=str(lake.table), **where)) == PLANTED


def test_what_cannot_be_compared_is_refused_by_name(
    spark: Any, lake: Lake, broker: Server, topic: Create
) -> None:
    name, other = topic("refused", retention_ms=-1), topic("refused", retention_ms=-1)
    for schema in ("id BIGINT", "id BIGINT, b STRING"):
        produce(broker, name, [Sent(b"k", b'{"id": 1}')])
        lake.run(name, decode="json", schema=schema, evolve=True)
    with pytest.raises(JobError, match=f"has nothing of {other} that a lake job wrote"):
        run_audit(spark, broker, name, other, table=str(lake.table))
    for path in lake.table.glob("_penstock/*/manifests/*.json"):
        path.write_text(path.read_text().replace('"schema": ', '"was": '))
    with pytest.raises(JobError, match=f"values of {name} cannot be compared.*--without-values"):
        run_audit(spark, broker, name, table=str(lake.table))
    summary = run_audit(spark, broker, name, table=str(lake.table), without_values=True)
    assert (faults(summary), summary.facts["agreed"]) == ({}, 2)
