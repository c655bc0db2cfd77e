"""Rows become batches of partitions: where they go, in which order, and how large."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.compression import Codec
from penstock.records.record import decode_records
from penstock.sdk.partitioners import partition_of
from penstock.spark.errors import JobError
from penstock.spark.outgoing import Target, outgoing, placing

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp_ms", pa.int64()),
    ]
)


def rows(*values: tuple[int, bytes | None, bytes | None]) -> list[Any]:
    given = [
        {"target": target, "key": key, "value": value, "headers": None, "timestamp_ms": None}
        for target, key, value in values
    ]
    return [pa.RecordBatch.from_pylist(given, schema=SCHEMA)]


def test_a_key_goes_where_javas_producer_sends_it() -> None:
    place = placing(Target("t", 7))
    assert [place(b"k%d" % n, None, n) for n in range(50)] == [
        partition_of(b"k%d" % n, 7) for n in range(50)
    ]


def test_a_row_that_names_a_partition_goes_there() -> None:
    assert placing(Target("t", 7))(b"k", 6, 0) == 6


def test_rows_without_a_key_reach_every_partition() -> None:
    place = placing(Target("t", 3))
    assert {place(None, None, row) for row in range(3000)} == {0, 1, 2}


def test_a_partition_that_the_topic_lacks_is_an_error_that_says_so() -> None:
    with pytest.raises(JobError, match="partition 7, and topic 't' has 7; leave the column"):
        placing(Target("t", 7))(b"k", 7, 0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40))).map(
        lambda given: sorted(given, key=lambda row: row[0])
    ),
    st.integers(1, 300),
    st.sampled_from([Codec.NONE, Codec.GZIP]),
)
def test_batches_hold_the_rows_of_one_partition_each_in_their_order(
    given_rows: list[tuple[int, bytes]], size_bytes: int, codec: Codec
) -> None:
    made = list(
        outgoing(
            Target("t", 4, codec),
            rows(*((target, b"k", value) for target, value in given_rows)),
            now_ms=17,
            size_bytes=size_bytes,
        )
    )
    found = [
        (batch.partition, record.value) for batch in made for record in decode_records(batch.data)
    ]
    assert found == given_rows
    for batch in made:
        records = decode_records(batch.data)
        assert len(records) == batch.records
        assert [record.offset for record in records] == list(range(batch.records))


def test_headers_and_times_are_kept_and_a_row_without_a_time_has_now() -> None:
    given = [
        {"target": 0, "key": None, "value": None, "headers": None, "timestamp_ms": None},
        {
            "target": 0,
            "key": b"k",
            "value": b"v",
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            "timestamp_ms": 5,
        },
    ]
    batch = pa.RecordBatch.from_pylist(given, schema=SCHEMA)
    (made,) = outgoing(Target("t", 1), [batch], now_ms=17)
    first, second = decode_records(made.data)
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (None, None, (), 17)
    assert second.headers == (("a", b"1"), ("a", None))
    assert second.timestamp_ms == 5


def test_a_header_without_a_key_is_an_error() -> None:
    given = [{"target": 0, "headers": [{"key": None, "value": b"1"}]}]
    batch = pa.RecordBatch.from_pylist(given, schema=SCHEMA)
    with pytest.raises(JobError, match="header without a key"):
        list(outgoing(Target("t", 1), [batch], now_ms=17))
