"""Rows of fetched batches: each record, or each stored batch, in one range only."""

from collections.abc import Sequence

import pytest

pytest.importorskip("pyspark")

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.spark.fetching import Fetched
from penstock.spark.offsets import OffsetRange
from penstock.spark.options import COLUMNS, RAW_COLUMNS, Shape
from penstock.spark.rows import decoded, raw_batches, schema_of

T0 = TopicPartition("t", 0)


def stored(*counts: int) -> bytes:
    """Batches of so many records each, from offset 0 on."""
    batches, base = [], 0
    for count in counts:
        records = [
            Record(base + n, 1_000 + base + n, None, b"v%d" % (base + n)) for n in range(count)
        ]
        batches.append(bytes(build_batch(records, base_offset=base, codec=Codec.LZ4)))
        base += count
    return b"".join(batches)


def arrow(shape: Shape) -> pa.Schema:
    return to_arrow_schema(schema_of(shape), timezone="UTC")


def ranges(cuts: Sequence[int], end: int) -> list[OffsetRange]:
    places = sorted({0, end, *(cut for cut in cuts if cut < end)})
    return [OffsetRange(T0, a, b) for a, b in itertools.pairwise(places)]


counts = st.lists(st.integers(1, 6), min_size=1, max_size=6)
cuts = st.lists(st.integers(0, 30), max_size=5)


@given(counts, cuts)
def test_a_stored_batch_is_in_one_range_wherever_they_are_cut(
    sizes: list[int], places: list[int]
) -> None:
    data, schema = memoryview(stored(*sizes)), arrow(Shape(True, RAW_COLUMNS))

    rows = [
        row
        for range_ in ranges(places, sum(sizes))
        for batch in raw_batches([Fetched(data, range_.start, [])], range_, schema, False)
        for row in batch.to_pylist()
    ]

    assert b"".join(row["batch"] for row in rows) == bytes(data)
    assert [row["recordCount"] for row in rows] == sizes
    assert {row["codec"] for row in rows} == {"lz4"}


@given(counts, cuts)
def test_a_record_is_in_one_range_wherever_they_are_cut(
    sizes: list[int], places: list[int]
) -> None:
    data, schema = memoryview(stored(*sizes)), arrow(Shape(False, COLUMNS))

    rows = [
        row
        for range_ in ranges(places, sum(sizes))
        for batch in decoded([Fetched(data, range_.start, [])], range_, schema, False)
        for row in batch.to_pylist()
    ]

    assert [row["offset"] for row in rows] == list(range(sum(sizes)))
    assert [row["value"] for row in rows] == [b"v%d" % n for n in range(sum(sizes))]


def test_arrow_batches_have_exactly_the_schema_that_spark_expects() -> None:
    data, range_ = memoryview(stored(3)), OffsetRange(T0, 0, 3)
    for shape in (
        Shape(False, COLUMNS),
        Shape(False, ("offset", "headers", "key")),
        Shape(True, RAW_COLUMNS),
        Shape(True, ("lastOffset", "topic")),
    ):
        rows = raw_batches if shape.raw else decoded
        schema = arrow(shape)
        (batch,) = rows([Fetched(data, 0, [])], range_, schema, False)
        assert batch.schema.equals(schema)


def test_a_column_that_the_user_says_is_never_null_may_be_so() -> None:
    schema = pa.schema([pa.field("value", pa.binary(), nullable=False)])

    (batch,) = decoded([Fetched(memoryview(stored(2)), 0, [])], OffsetRange(T0, 0, 2), schema, True)

    assert batch.schema.equals(schema)


@pytest.mark.parametrize(
    ("timestamp_ms", "shown_us"),
    [
        (1_763_400_000_000_000, 1_763_400_000_000_000_000),  # microseconds taken for milliseconds
        (1_763_400_000_000_000_000, 9_223_372_036_854_775_000),  # nanoseconds: the nearest there is
        (-1, -1_000),
    ],
)
def test_a_stored_batch_of_an_impossible_time_can_be_read(timestamp_ms: int, shown_us: int) -> None:
    data = bytes(build_batch([Record(0, timestamp_ms, None, b"v")], base_offset=0))
    schema = arrow(Shape(True, ("maxTimestamp",)))
    (batch,) = raw_batches([Fetched(memoryview(data), 0, [])], OffsetRange(T0, 0, 1), schema, False)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [shown_us]
