"""Rows to the batches of a topic's partitions, in an order that one can rely on.

A key goes where Java's producer would send it; a column `partition` overrides that. Rows that came from one task keep their
order, so what a narrow query (select, where, explode, a Python function over rows) makes of a partition arrives as it was read.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Header, Record
from penstock.sdk.partitioners import partition_of
from penstock.spark.errors import JobError

RecordBatch = Any  # pyarrow's; help and plans need none of it

_TARGET_BYTES: Final = 512 * 1024  # of a batch before compression; topics take 1 MiB by default
_RECORD_OVERHEAD_BYTES: Final = 32
_ROWS_IN_A_TURN: Final = 256  # without a key, to one partition before the next
_KNOWN_KEYS: Final = 1 << 16


class Target(NamedTuple):
    """Where rows go."""

    topic: str
    partitions: int
    codec: Codec = Codec.NONE


class Outgoing(NamedTuple):
    """A batch that is not signed yet."""

    partition: int
    records: int
    data: bytearray


@lru_cache(_KNOWN_KEYS)
def _by_key(key: bytes, partitions: int) -> int:
    return partition_of(key, partitions)


def placing(target: Target) -> Callable[[bytes | None, int | None, int], int]:
    """A function of a row's key, of the partition that it asks for, and of its place among all."""

    def place(key: bytes | None, wanted: int | None, row: int) -> int:
        if wanted is not None:
            return _checked(wanted, target)
        if key is not None:
            return _by_key(bytes(key), target.partitions)
        return row // _ROWS_IN_A_TURN % target.partitions

    return place


def _checked(partition: int, target: Target) -> int:
    if not 0 <= partition < target.partitions:
        raise JobError(
            f"a row has partition {partition}, and topic {target.topic!r} has {target.partitions}; "
            "leave the column partition out to place rows by key"
        )
    return partition


def outgoing(
    target: Target, rows: Iterable[RecordBatch], *, now_ms: int, size_bytes: int = _TARGET_BYTES
) -> Iterator[Outgoing]:
    """Batches of rows that are sorted by `target`; a row without a time has `now_ms`."""
    return batched(_records(rows, now_ms), target.codec, size_bytes=size_bytes)


def batched(
    records: Iterable[tuple[int, Record]], codec: Codec, *, size_bytes: int = _TARGET_BYTES
) -> Iterator[Outgoing]:
    """Batches of records that are sorted by their partitions; a single one may be larger."""
    waiting: list[Record] = []
    size, current = 0, -1
    for partition, record in records:
        record_bytes = _size(record)
        if waiting and (partition != current or size + record_bytes > size_bytes):
            yield _batch(current, waiting, codec)
            waiting, size = [], 0
        waiting.append(record._replace(offset=len(waiting)))
        size, current = size + record_bytes, partition
    if waiting:
        yield _batch(current, waiting, codec)


def _batch(partition: int, records: list[Record], codec: Codec) -> Outgoing:
    return Outgoing(partition, len(records), build_batch(records, codec=codec))


def _records(rows: Iterable[RecordBatch], now_ms: int) -> Iterator[tuple[int, Record]]:
    for batch in rows:
        columns = (
            batch.column(name).to_pylist()
            for name in ("target", "key", "value", "headers", "timestamp_ms")
        )
        for partition, key, value, headers, timestamp_ms in zip(*columns, strict=True):
            record = Record(
                0, now_ms if timestamp_ms is None else timestamp_ms, key, value, _headers(headers)
            )
            yield partition, record


def _headers(row: list[dict[str, Any] | None] | None) -> tuple[Header, ...]:
    return tuple(_header(header) for header in row or ())


def _header(header: dict[str, Any] | None) -> Header:
    if header is None or header["key"] is None:
        raise JobError("a row has a header without a key; headers need one")
    return header["key"], header["value"]


def _size(record: Record) -> int:
    own = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD_BYTES
    return own + sum(
        len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in record.headers
    )
