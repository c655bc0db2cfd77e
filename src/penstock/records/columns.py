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

from penstock.model.errors import CorruptBatch
from penstock.records.batch import HEADER_SIZE, parse_header
from penstock.records.column_runs import Aborted, Batches, Run, Workspace, runs

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]

DEFAULT_ROWS: Final = 1 << 16
DEFAULT_BYTES: Final = 16 << 20
MAX_BYTES: Final = 1 << 30  # of a chunk: Arrow's offsets have 31 bits
_MAX_OFFSET: Final = (1 << 63) - 1


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
        gone = Aborted(aborted if self._read_committed else ())
        batches = Batches(records, from_offset, upto_offset, gone)
        return self._decode(batches, (from_offset, upto_offset), (max_rows, max_bytes))

    def _decode(
        self, batches: Batches, offsets: tuple[int, int], limits: tuple[int, int]
    ) -> Iterator[Columns]:
        for run in runs(batches, Workspace(), limits):
            if run.starts:
                yield from self._chunks(run, offsets, limits)
            self.next_offset = run.next_offset

    def _chunks(
        self, run: Run, offsets: tuple[int, int], limits: tuple[int, int]
    ) -> Iterator[Columns]:
        kernels = self._kernels
        data, starts, ends = run.data, *run.places()
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


def _corrupt(data: NDArray[np.uint8], starts: Int64s, state: Int64s) -> CorruptBatch:
    batch, position, left, delta = (int(number) for number in state[:4])
    start = int(starts[batch])
    header = parse_header(data[start : start + HEADER_SIZE].tobytes())
    return CorruptBatch(
        f"batch at offset {header.base_offset}: no record at byte {position - start - HEADER_SIZE} of "
        f"its records ({left} of {header.record_count} are missing, after offset delta {delta})"
    )


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
