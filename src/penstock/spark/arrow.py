"""Columns to Arrow record batches in the schema of Spark's kafka source, without copying the data."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.columns import BinaryColumn, Columns, HeaderColumn, Wanted

# `to_arrow_schema` of pyspark gives exactly these; all may be null, as Spark has it
FIELDS: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), ("value", pa.binary())]))
    ),
}
COLUMNS: Final = tuple(FIELDS)
DEFAULT_COLUMNS: Final = COLUMNS[:-1]  # headers only when asked for
_US_PER_MS: Final = 1_000
_MAX_MS: Final = ((1 << 63) - 1) // _US_PER_MS


def arrow_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> Any:
    """The pyarrow.Schema of `columns`, in their order."""
    return pa.schema([pa.field(name, FIELDS[name]) for name in columns])


def wanted(columns: Sequence[str]) -> Wanted:
    """What must be decoded for them."""
    return Wanted("key" in columns, "value" in columns, "headers" in columns)


class ArrowRows:
    """Makes record batches of one partition; its constant columns are built once and sliced."""

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str] = DEFAULT_COLUMNS
    ) -> None:
        if not columns:
            raise ValueError("a record batch without columns cannot say how many rows it has")
        self.schema = arrow_schema(columns)
        self._arrays = tuple(_ARRAYS.get(name) for name in columns)
        self._scalars = tuple(
            pa.scalar({"topic": topic, "partition": partition}.get(name), FIELDS[name])
            for name in columns
        )
        self._constants: list[Any] = [None] * len(columns)

    def batch(self, rows: Columns) -> Any:
        """A pyarrow.RecordBatch that shares its memory with `rows`."""
        arrays = [
            self._constant(place, rows.count) if build is None else build(rows)
            for place, build in enumerate(self._arrays)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, place: int, count: int) -> Any:
        constant = self._constants[place]
        if constant is None or len(constant) < count:
            constant = self._constants[place] = pa.repeat(self._scalars[place], count)
        return constant.slice(0, count)


def _binary(column: BinaryColumn | None, arrow_type: Any) -> Any:
    assert column is not None, "the decoder was not asked for this column"
    return pa.Array.from_buffers(
        arrow_type,
        len(column.valid),
        [_validity(column.valid), pa.py_buffer(column.ends), pa.py_buffer(column.data)],
    )


def _validity(valid: NDArray[np.bool_]) -> Any:
    """Arrow's bitmap, low bits first; none when nothing is null."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _timestamps(rows: Columns) -> Any:
    """A time that microseconds cannot hold (|year| > 290,000) becomes the nearest that they can."""
    times_us = rows.timestamp_ms.clip(-_MAX_MS, _MAX_MS) * _US_PER_MS
    return pa.Array.from_buffers(
        FIELDS["timestamp"], rows.count, [None, pa.py_buffer(times_us)], null_count=0
    )


def _headers(column: HeaderColumn | None) -> Any:
    """A record without headers has null, not an empty list: so has Spark's own source."""
    assert column is not None, "the decoder was not asked for headers"
    arrow_type = FIELDS["headers"]
    entry = arrow_type.value_type
    names = _binary(column.key, entry.field("key").type)
    values = _binary(column.value, entry.field("value").type)
    count = len(column.ends) - 1
    entries = pa.Array.from_buffers(
        entry, len(names), [None], null_count=0, children=[names, values]
    )
    some = column.ends[1:] > column.ends[:-1]
    buffers = [_validity(some), pa.py_buffer(column.ends)]
    return pa.Array.from_buffers(arrow_type, count, buffers, children=[entries])


_ARRAYS: Final[dict[str, Callable[[Columns], Any]]] = {
    "key": lambda rows: _binary(rows.key, FIELDS["key"]),
    "value": lambda rows: _binary(rows.value, FIELDS["value"]),
    "offset": lambda rows: pa.array(rows.offset),
    "timestamp": _timestamps,
    "timestampType": lambda rows: pa.array(rows.timestamp_type.astype(np.int32)),
    "headers": lambda rows: _headers(rows.headers),
}
