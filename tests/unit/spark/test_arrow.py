"""Record batches for Spark: its schema to the letter, the same rows, and the same memory."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.builder import build_batch
from penstock.records.columns import ColumnDecoder, Columns, Wanted
from penstock.records.record import Record
from penstock.spark.arrow import COLUMNS, DEFAULT_COLUMNS, ArrowRows, arrow_schema, wanted
from tests.unit.records.batches import record_lists

RECORDS = [
    Record(0, 1_700_000_000_000, b"k", b"v", (("a", b"x"), ("b", None))),
    Record(1, -1, None, b""),
    Record(2, 0, b"", None, (("é", b""),)),
]


def columns_of(records: list[Record], asked: Wanted, **options: Any) -> Columns:
    data = memoryview(build_batch(records, **options))
    (columns,) = ColumnDecoder(asked, read_committed=False).decode(data, from_offset=0)
    return columns


def batch_of(records: list[Record], columns: tuple[str, ...], **options: Any) -> Any:
    batch = ArrowRows("orders", 3, columns).batch(columns_of(records, wanted(columns), **options))
    batch.validate(full=True)
    return batch


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    assert str(arrow_schema(COLUMNS)).splitlines()[:8] == [
        "key: binary",
        "value: binary",
        "topic: string",
        "partition: int32",
        "offset: int64",
        "timestamp: timestamp[us, tz=UTC]",
        "timestampType: int32",
        "headers: list<element: struct<key: string, value: binary>>",
    ]
    assert arrow_schema().names == list(DEFAULT_COLUMNS) == list(COLUMNS[:7])


def test_pyspark_would_make_the_same_schema() -> None:
    spark = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    fields = [
        ("key", spark.BinaryType()),
        ("value", spark.BinaryType()),
        ("topic", spark.StringType()),
        ("partition", spark.IntegerType()),
        ("offset", spark.LongType()),
        ("timestamp", spark.TimestampType()),
        ("timestampType", spark.IntegerType()),
    ]
    header = spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())
    fields.append(("headers", spark.ArrayType(header)))
    whole = spark.StructType([spark.StructField(name, kind) for name, kind in fields])
    assert to_arrow_schema(whole, timezone="UTC").equals(arrow_schema(COLUMNS))


def test_rows_hold_what_the_records_held() -> None:
    assert batch_of(RECORDS, COLUMNS).to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "orders",
            "partition": 3,
            "offset": 0,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "a", "value": b"x"}, {"key": "b", "value": None}],
        },
        {
            "key": None,
            "value": b"",
            "topic": "orders",
            "partition": 3,
            "offset": 1,
            "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
            "timestampType": 0,
            "headers": None,
        },
        {
            "key": b"",
            "value": None,
            "topic": "orders",
            "partition": 3,
            "offset": 2,
            "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "é", "value": b""}],
        },
    ]


@given(record_lists(), st.permutations(COLUMNS), st.integers(1, len(COLUMNS)))
def test_only_the_columns_asked_for_come_and_in_that_order(
    records: list[Record], order: list[str], count: int
) -> None:
    columns = tuple(order[:count])
    batch = batch_of(records, columns)
    assert batch.schema.equals(arrow_schema(columns))
    assert batch.num_rows == len(records)
    expected: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": ["orders"] * len(records),
        "partition": [3] * len(records),
        "offset": [record.offset for record in records],
        "timestampType": [0] * len(records),
        "headers": [
            [{"key": key, "value": value} for key, value in record.headers] or None
            for record in records
        ],
    }
    if "timestamp" in columns:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [record.timestamp_ms * 1000 for record in records]
    for name in set(columns) - {"timestamp"}:
        assert batch.column(name).to_pylist() == expected[name]


def test_the_data_is_not_copied() -> None:
    columns = columns_of(RECORDS, Wanted(headers=True))
    batch = ArrowRows("t", 0, COLUMNS).batch(columns)
    assert columns.value is not None
    assert columns.headers is not None
    value = batch.column("value").buffers()
    assert value[1].address == columns.value.ends.ctypes.data
    assert value[2].address == columns.value.data.ctypes.data
    assert batch.column("offset").buffers()[1].address == columns.offset.ctypes.data
    entries = batch.column("headers").values
    assert entries.field("value").buffers()[2].address == columns.headers.value.data.ctypes.data


def test_constant_columns_are_built_once() -> None:
    rows = ArrowRows("t", 0)
    large = rows.batch(columns_of(RECORDS, Wanted())).column("topic")
    small = rows.batch(columns_of(RECORDS[:1], Wanted())).column("topic")
    assert small.to_pylist() == ["t"]
    assert small.buffers()[2].address == large.buffers()[2].address
    assert rows.batch(columns_of([*RECORDS, Record(3, 1, None, None)], Wanted())).num_rows == 4


def test_the_append_time_is_marked_as_such() -> None:
    batch = batch_of(RECORDS, ("timestampType", "timestamp"), append_time_ms=1000)
    assert batch.column("timestampType").to_pylist() == [1, 1, 1]
    assert batch.column("timestamp").to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 3


@pytest.mark.parametrize("time_ms", [1_700_000_000_000_000_000, -(1 << 62)])
def test_a_time_that_microseconds_cannot_hold_is_the_nearest_they_can(time_ms: int) -> None:
    batch = batch_of([Record(0, time_ms, None, None)], ("timestamp",))
    (stored,) = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert stored == np.sign(time_ms) * (((1 << 63) - 1) // 1000 * 1000)


def test_a_batch_of_no_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="how many rows"):
        ArrowRows("t", 0, ())
