"""Fetched batches as Arrow record batches: a row for each record, or for each stored batch."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.records.batch import BatchHeader, split_batches
from penstock.records.columns import ColumnDecoder
from penstock.records.compression import Codec
from penstock.spark.arrow import ArrowRows, wanted
from penstock.spark.fetching import Fetched
from penstock.spark.offsets import OffsetRange
from penstock.spark.options import RAW_COLUMNS, Shape

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_RECORDS: Final[dict[str, Any]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_RAW_TYPES: Final = (
    *(StringType(), IntegerType(), LongType(), LongType(), TimestampType(), IntegerType()),
    *(StringType(), LongType(), BooleanType(), BooleanType(), BinaryType()),
)
_RAW: Final[dict[str, Any]] = dict(zip(RAW_COLUMNS, _RAW_TYPES, strict=True))
_RAW_BYTES: Final = 8 << 20  # of an Arrow batch, about
_MAX_MS: Final = ((1 << 63) - 1) // 1_000


def schema_of(shape: Shape) -> StructType:
    """The columns of `shape`; all that there are when it names none."""
    types = _RAW if shape.raw else _RECORDS
    return StructType([StructField(name, types[name]) for name in shape.columns or types])


def decoded(
    fetches: Iterable[Fetched], range_: OffsetRange, schema: pa.Schema, read_committed: bool
) -> Iterator[pa.RecordBatch]:
    """A row for each record of the range."""
    decoder = ColumnDecoder(wanted(schema.names), read_committed=read_committed)
    arrow = ArrowRows(*range_.partition, schema.names)
    is_same = arrow.schema.equals(schema)  # but for what the user says cannot be null
    for fetched in fetches:
        chunks = decoder.decode(
            fetched.records,
            from_offset=fetched.position,
            upto_offset=range_.end,
            aborted=fetched.aborted,
        )
        for columns in chunks:
            batch = arrow.batch(columns)
            yield batch if is_same else batch.cast(schema)


def raw_batches(
    fetches: Iterable[Fetched], range_: OffsetRange, schema: pa.Schema, _: bool
) -> Iterator[pa.RecordBatch]:
    """A row for each stored batch whose last offset is in the range: in no other range is it as well."""
    rows: list[tuple[BatchHeader, bytes]] = []
    size_bytes = 0
    for fetched in fetches:
        for header, batch in split_batches(fetched.records):
            if not range_.start <= header.last_offset < range_.end:
                continue
            rows.append((header, bytes(batch)))
            size_bytes += header.size_bytes
            if size_bytes >= _RAW_BYTES:
                yield _raw_rows(rows, range_, schema)
                rows, size_bytes = [], 0
    if rows:
        yield _raw_rows(rows, range_, schema)


def _raw_rows(
    rows: list[tuple[BatchHeader, bytes]], range_: OffsetRange, schema: pa.Schema
) -> pa.RecordBatch:
    topic, partition = range_.partition
    headers = [header for header, _ in rows]
    columns: dict[str, list[Any]] = {
        "topic": [topic] * len(rows),
        "partition": [partition] * len(rows),
        "baseOffset": [h.base_offset for h in headers],
        "lastOffset": [h.last_offset for h in headers],
        "maxTimestamp": [_microseconds(h.max_timestamp_ms) for h in headers],
        "recordCount": [h.record_count for h in headers],
        "codec": [Codec(h.codec).name.lower() for h in headers],
        "producerId": [h.producer_id for h in headers],
        "isControl": [h.is_control for h in headers],
        "isTransactional": [h.is_transactional for h in headers],
        "batch": [batch for _, batch in rows],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(timestamp_ms: int) -> int:
    """The nearest that they can hold, as for records."""
    return max(-_MAX_MS, min(timestamp_ms, _MAX_MS)) * 1_000
