"""Fetched batches to columns, as Arrow lays them out: one compiled pass to find, one to copy.

What was not asked for, belongs to an aborted transaction or to nobody (control batches) gives no
row, but is passed: `next_offset` says where to read on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.model.errors import BrokerError, CorruptBatch, ErrorCode
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    checksum,
    parse_header,
)
from penstock.records.compression import decompress
from penstock.records.crc32c import crc32c
from penstock.records.record import MIN_RECORD_BYTES

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]

DEFAULT_ROWS: Final = 1 << 16
DEFAULT_BYTES: Final = 16 << 20
MAX_BYTES: Final = 1 << 30  # of a chunk: Arrow's offsets have 31 bits
_MAX_OFFSET: Final = (1 << 63) - 1
_MAGIC_POSITION: Final = 16


class Wanted(NamedTuple):
    key: bool = True
    value: bool = True
    headers: bool = False


class BinaryColumn(NamedTuple):
    """The i-th value is `data[ends[i]:ends[i + 1]]`, or null where not `valid[i]`."""

    ends: Int32s
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]


class HeaderColumn(NamedTuple):
    """The headers of row i are those from `ends[i]` to `ends[i + 1]`. Keys are never null."""

    ends: Int32s
    key: BinaryColumn  # UTF-8; what was not has U+FFFD in its place, as in Kafka's clients
    value: BinaryColumn


@dataclass(frozen=True, slots=True)
class Columns:
    offset: Int64s
    timestamp_ms: Int64s
    timestamp_type: NDArray[np.int8]  # TimestampType
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeaderColumn | None

    @property
    def count(self) -> int:
        return len(self.offset)


class ColumnDecoder:
    """Decodes one fetch after another; not for two threads at once."""

    def __init__(self, wanted: Wanted = Wanted(), *, read_committed: bool) -> None:  # noqa: B008
        # imported here: numba takes 0.3 s, and compiles when it meets a machine for the first time
        from penstock.records import column_kernels

        self._kernels = column_kernels
        self._wanted = wanted
        self._read_committed = read_committed
        self.next_offset = 0

    def decode(
        self,
        records: memoryview,
        *,
        from_offset: int,
        upto_offset: int = _MAX_OFFSET,
        aborted: Sequence[tuple[int, int]] = (),
        max_rows: int = DEFAULT_ROWS,
        max_bytes: int = DEFAULT_BYTES,
    ) -> Iterator[Columns]:
        """The rows of whole batches, in chunks; one row may alone have more than `max_bytes`.

        `aborted` has producer id and first offset of each, in any order. `next_offset` moves with
        each chunk that is taken, and is final with the last. If it has not moved then, not one whole
        batch was there: ask for more bytes. Chunks do not refer to `records`.
        """
        if not (max_rows > 0 and 0 < max_bytes <= MAX_BYTES):
            raise ValueError(f"chunks of {max_rows} rows, {max_bytes} bytes (up to {MAX_BYTES})")
        self.next_offset = from_offset
        gone = _Aborted(aborted if self._read_committed else ())
        runs = _runs(records, (from_offset, upto_offset), gone, (max_rows, max_bytes))
        return self._decode(runs, (from_offset, upto_offset), (max_rows, max_bytes))

    def _decode(
        self, runs: "Iterator[_Run]", offsets: tuple[int, int], limits: tuple[int, int]
    ) -> Iterator[Columns]:
        for run in runs:
            if run.starts:
                yield from self._chunks(run, offsets, limits)
            self.next_offset = run.next_offset

    def _chunks(
        self, run: "_Run", offsets: tuple[int, int], limits: tuple[int, int]
    ) -> Iterator[Columns]:
        kernels = self._kernels
        data, starts, ends = run.joined()
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        state[kernels.POSITION] = -1
        code = kernels.FULL
        while code == kernels.FULL:
            index = _Index.empty(min(limits[0], run.rows))
            code = kernels.index(data, starts, ends, state, *offsets, limits[1], *index)
            if code not in (kernels.DONE, kernels.FULL):
                raise _corrupt(data, starts, state)
            rows = int(state[kernels.ROWS])
            if rows:
                self.next_offset = int(index.offset[rows - 1]) + 1
                yield self._columns(data, index, state)

    def _columns(self, data: NDArray[np.uint8], index: "_Index", state: Int64s) -> Columns:
        kernels, (key, value, headers) = self._kernels, self._wanted
        rows = int(state[kernels.ROWS])
        return Columns(
            index.offset[:rows],
            index.timestamp_ms[:rows],
            index.timestamp_type[:rows],
            self._gather(data, index.key_starts, index.key_ends, index.key_valid, rows)
            if key
            else None,
            self._gather(data, index.value_starts, index.value_ends, index.value_valid, rows)
            if value
            else None,
            self._headers(data, index, rows) if headers else None,
        )

    def _headers(self, data: NDArray[np.uint8], index: "_Index", rows: int) -> HeaderColumn:
        ends = index.header_ends[: rows + 1]
        count = int(ends[-1])
        key_starts, value_starts = np.empty(count, np.int64), np.empty(count, np.int64)
        key_ends, value_ends = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
        valid = np.empty(count, np.bool_)
        places = (key_starts, key_ends, value_starts, value_ends, valid)
        if self._kernels.index_headers(data, index.header_starts[:rows], ends, *places):
            raise CorruptBatch(f"headers of the record at offset {index.offset[0]} or later")
        key = self._gather(data, key_starts, key_ends, np.ones(count, np.bool_), count)
        return HeaderColumn(
            ends, as_utf8(key), self._gather(data, value_starts, value_ends, valid, count)
        )

    def _gather(
        self,
        data: NDArray[np.uint8],
        starts: Int64s,
        ends: Int32s,
        valid: NDArray[np.bool_],
        count: int,
    ) -> BinaryColumn:
        ends = ends[: count + 1]
        target = np.empty(int(ends[-1]), np.uint8)
        if self._kernels.gather(data, starts[:count], ends, target):
            raise CorruptBatch("records changed while they were read")
        return BinaryColumn(ends, target, valid[:count])


class _Index(NamedTuple):
    """What the first pass finds, in the order of the kernel's arguments."""

    offset: Int64s
    timestamp_ms: Int64s
    timestamp_type: NDArray[np.int8]
    key_starts: Int64s
    key_ends: Int32s
    key_valid: NDArray[np.bool_]
    value_starts: Int64s
    value_ends: Int32s
    value_valid: NDArray[np.bool_]
    header_starts: Int64s
    header_ends: Int32s

    @classmethod
    def empty(cls, rows: int) -> "_Index":
        return cls(*(np.empty(rows + more, dtype) for dtype, more in _INDEX_LAYOUT))


_STARTS: Final[tuple[Any, int]] = (np.int64, 0)
_ENDS: Final[tuple[Any, int]] = (np.int32, 1)
_VALID: Final[tuple[Any, int]] = (np.bool_, 0)
_INDEX_LAYOUT: Final[tuple[tuple[Any, int], ...]] = (
    *((np.int64, 0), (np.int64, 0), (np.int8, 0)),
    *(_STARTS, _ENDS, _VALID),
    *(_STARTS, _ENDS, _VALID),
    *(_STARTS, _ENDS),
)


class _Run:
    """Batches that become columns together: where they lie, or joined once one had to be opened."""

    def __init__(self, records: memoryview, next_offset: int) -> None:
        self._records = records
        self._sizes: list[int] = []
        self._opened: dict[int, memoryview] = {}
        self.starts: list[int] = []
        self.rows = 0
        self.size_bytes = 0
        self.next_offset = next_offset

    def add(self, start: int, size: int, rows: int, opened: memoryview | None) -> None:
        """A batch of `size` bytes, once opened."""
        if opened is not None:
            self._opened[start] = opened
        self.starts.append(start)
        self._sizes.append(size)
        self.rows += rows
        self.size_bytes += size

    def joined(self) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
        """The bytes, and where in them each batch starts and ends, opened."""
        sizes = np.array(self._sizes, np.int64)
        if not self._opened:
            starts = np.array(self.starts, np.int64)
            return _as_data(self._records), starts, starts + sizes
        ends = np.cumsum(sizes)
        return _as_data(memoryview(b"".join(self._parts()))), ends - sizes, ends

    def _parts(self) -> Iterator[memoryview]:
        for start, size in zip(self.starts, self._sizes, strict=True):
            opened = self._opened.get(start)
            if opened is None:
                yield self._records[start : start + size]
            else:
                yield self._records[start : start + HEADER_SIZE]
                yield opened


class _Aborted:
    """Which batches belong to aborted transactions. They must be asked about in offset order."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._next = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        """Only of batches that are transactional."""
        while self._next and self._next[-1][0] <= header.last_offset:
            self._open.add(self._next.pop()[1])
        if header.is_control:  # a marker, of whatever kind, ends what its producer had open
            self._open.discard(header.producer_id)
        return header.producer_id in self._open


def _runs(
    records: memoryview, offsets: tuple[int, int], aborted: _Aborted, limits: tuple[int, int]
) -> Iterator[_Run]:
    """The batches that have rows, in runs that make about a chunk each; the last may be empty.

    Hot where batches are small: what most batches do not have is asked for first, and at once.
    """
    (from_offset, upto_offset), (max_rows, max_bytes) = offsets, limits
    run, end_offset = _Run(records, from_offset), 0
    for start, end, header in _whole_batches(records):
        base_offset, attributes, rows = header.base_offset, header.attributes, header.record_count
        if base_offset >= upto_offset:
            run.next_offset = max(from_offset, upto_offset)
            break
        if crc32c(records[start + CRC_START : end]) != header.crc or base_offset < end_offset:
            raise _damaged(records[start:end], header, end_offset)
        end_offset = base_offset + header.last_offset_delta + 1
        if not base_offset < end_offset <= _MAX_OFFSET:
            raise _damaged(records[start:end], header, base_offset)
        rowless = attributes & CONTROL_BIT or end_offset <= from_offset
        if attributes & TRANSACTIONAL_BIT and aborted.has(header):
            rowless = True
        if not rowless:
            opened = _opened(records[start:end], header) if attributes & CODEC_MASK else None
            size = end - start if opened is None else HEADER_SIZE + len(opened)
            if not 0 <= rows <= (size - HEADER_SIZE) // MIN_RECORD_BYTES:
                raise CorruptBatch(f"batch at offset {base_offset}: {rows} records in {size} bytes")
            if run.starts and (run.rows + rows > max_rows or run.size_bytes + size > max_bytes):
                yield run
                run = _Run(records, run.next_offset)
            run.add(start, size, rows, opened)
        run.next_offset = max(from_offset, min(end_offset, upto_offset))
    yield run


def _whole_batches(records: memoryview) -> Iterator[tuple[int, int, BatchHeader]]:
    """Start, end and header of each; a partial one at the end is left out."""
    start, size = 0, len(records)
    while size - start > _MAGIC_POSITION:
        if records[start + _MAGIC_POSITION] != MAGIC:
            raise _not_a_batch(records, start)
        if size - start < HEADER_SIZE:
            return
        header = parse_header(records, start)
        end = start + header.length + LENGTH_PREFIX
        if end < start + HEADER_SIZE:
            raise CorruptBatch(
                f"batch at offset {header.base_offset} says {header.size_bytes} bytes"
            )
        if end > size:
            return
        yield start, end, header
        start = end


def _not_a_batch(records: memoryview, start: int) -> BrokerError:
    magic = records[start + _MAGIC_POSITION]
    if magic > MAGIC:
        return CorruptBatch(f"no batch header at byte {start} (magic {magic})")
    return BrokerError(
        f"message format {magic} at byte {start}; formats before 2 (Kafka 0.11) are not read: "
        "copy the topic with a client of that broker first",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )


def _damaged(batch: memoryview, header: BatchHeader, end_offset: int) -> CorruptBatch:
    """Why a batch cannot be what was written where the batch before it ended at `end_offset`."""
    actual = checksum(batch)
    if actual != header.crc:
        return CorruptBatch(
            f"batch at offset {header.base_offset}: checksum {actual:#010x}, header says {header.crc:#010x}"
        )
    return CorruptBatch(
        f"batch at offset {header.base_offset}: it says it ends at {header.last_offset}, and the one "
        f"before it at {end_offset}"
    )


def _opened(batch: memoryview, header: BatchHeader) -> memoryview:
    try:
        return decompress(header.codec, batch[HEADER_SIZE:])
    except CorruptBatch as error:
        raise CorruptBatch(f"batch at offset {header.base_offset}: {error}") from error


def _corrupt(data: NDArray[np.uint8], starts: Int64s, state: Int64s) -> CorruptBatch:
    batch, position, left, delta = (int(number) for number in state[:4])
    start = int(starts[batch])
    header = parse_header(data[start : start + HEADER_SIZE].tobytes())
    return CorruptBatch(
        f"batch at offset {header.base_offset}: no record at byte {position - start - HEADER_SIZE} of "
        f"its records ({left} of {header.record_count} are missing, after offset delta {delta})"
    )


def _as_data(buffer: memoryview) -> NDArray[np.uint8]:
    """Bytes as the kernels take them: read only."""
    return np.frombuffer(buffer.toreadonly(), np.uint8)


def as_utf8(column: BinaryColumn) -> BinaryColumn:
    """The column itself if each value is UTF-8, else one with U+FFFD for what is not."""
    ends, data, valid = column
    if not len(data) or data.max() < 0x80:
        return column
    whole = data.tobytes()
    values = [whole[start:end] for start, end in pairwise(ends.tolist())]
    texts = [value.decode("utf-8", "replace").encode() for value in values]
    if texts == values:
        return column
    lengths = np.array([0, *map(len, texts)], np.int64)
    return BinaryColumn(
        np.cumsum(lengths).astype(np.int32), np.frombuffer(b"".join(texts), np.uint8), valid
    )
