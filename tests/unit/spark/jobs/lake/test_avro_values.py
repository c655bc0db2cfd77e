"""Avro schemas become columns, and Avro bytes become values or the reason of a failure."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake.avro_values import read_avro, record_columns, spark_type
from penstock.spark.jobs.table import schema as schemas
from penstock.spark.jobs.table.decode_avro import parser

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["null", "Kind"]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}


def test_an_avro_schema_becomes_columns(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    assert schemas.show(spark_type(read_avro(str(path)))) == (
        "struct<id: bigint, note: string, at: timestamp, sum: decimal(9,2), kind: string, "
        "other: string, tags: map<string, array<int>>, uid: string>"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (["int", "string"], "only null and one other type"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
            "contains itself",
        ),
        ("Nobody", "is not defined"),
    ],
)
def test_what_makes_no_columns_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        spark_type(schema)


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"foo": 1}, """{"foo": 1} has no 'type'"""),
        (7, "7 has no 'type'"),
        ({"logicalType": "uuid"}, "{} has no 'type'"),
        ({"type": "record", "fields": []}, "has no 'name'"),
        ({"type": "record", "name": 7, "fields": []}, "must be a text, not 7"),
        ({"type": "record", "name": "R"}, "has no 'fields'"),
        ({"type": "record", "name": "R", "fields": {}}, "must be a list, not {}"),
        ({"type": "record", "name": "R", "fields": [3]}, "3 has no 'name'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "has no 'type'"),
        ({"type": "array"}, "has no 'items'"),
        ({"type": "map"}, "has no 'values'"),
        ({"type": "bytes", "logicalType": "decimal"}, "has no 'precision'"),
        ({"type": ["null", "Nobody"], "logicalType": "x"}, "Nobody is not defined"),
        ("string", "the lake needs a record, not string"),
    ],
)
def test_a_file_that_is_no_avro_schema_is_named_with_what_it_lacks(
    tmp_path: Path, schema: Any, wrong: str
) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    with pytest.raises(JobError) as refused:
        record_columns(read_avro(str(path)), str(path))
    assert str(path) in str(refused.value)
    assert wrong in str(refused.value)


def test_a_schema_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no file"):
        read_avro(str(tmp_path / "none.avsc"))
    (tmp_path / "bad.avsc").write_text("{")
    with pytest.raises(JobError, match="is not JSON"):
        read_avro(str(tmp_path / "bad.avsc"))


def test_values_are_read_with_and_without_a_registrys_prefix() -> None:
    fastavro = pytest.importorskip("fastavro")
    value = {
        "id": 7,
        "note": None,
        "at": datetime(2026, 11, 15, tzinfo=UTC),
        "sum": Decimal("12.50"),
        "kind": "A",
        "other": "B",
        "tags": {"x": [1, 2]},
        "uid": "u",
    }
    schema = json.loads(json.dumps(ORDER).replace(', "logicalType": "uuid"', ""))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    bare = stream.getvalue()
    assert parser(schema, "none")(bare) == (value, None)
    assert parser(schema, "confluent")(b"\x00\x00\x00\x00\x05" + bare) == (value, None)
    assert parser(schema, "none")(None) == (None, None)
    for framing, wrong, reason in (
        ("confluent", bare, "--avro-framing none"),
        ("none", bare + b"x", "1 bytes are left over"),
        ("none", bare[:-3], "not Avro of the schema"),
    ):
        found, error = parser(schema, framing)(wrong)
        assert found is None
        assert reason in (error or "")
