"""Which batches of a fetch have rows, and how many of them become columns at once.

A batch is believed once its checksum holds and it begins where, or after, the one before it ended.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

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

Data: TypeAlias = NDArray[np.uint8]
Int64s: TypeAlias = NDArray[np.int64]

_MAX_OFFSET: Final = (1 << 63) - 1
_MAGIC_POSITION: Final = 16


class Aborted:
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


class Batches:
    """Those with rows for a reader, of a fetch. `next_offset` is past all that came before the last."""

    def __init__(
        self, records: memoryview, from_offset: int, upto_offset: int, aborted: Aborted
    ) -> None:
        self.records = records
        self.next_offset = from_offset
        self._from_offset = from_offset
        self._upto_offset = upto_offset
        self._aborted = aborted

    def __iter__(self) -> Iterator[tuple[int, int, BatchHeader]]:
        """Start, end and header of each. Hot where batches are small."""
        records, from_offset, upto_offset = self.records, self._from_offset, self._upto_offset
        end_offset = 0
        for start, end, header in _whole_batches(records):
            base_offset, attributes = header.base_offset, header.attributes
            if base_offset >= upto_offset:
                self.next_offset = max(from_offset, upto_offset)
                return
            if crc32c(records[start + CRC_START : end]) != header.crc or base_offset < end_offset:
                raise _damaged(records[start:end], header, end_offset)
            end_offset = base_offset + header.last_offset_delta + 1
            if not base_offset < end_offset <= _MAX_OFFSET:
                raise _damaged(records[start:end], header, base_offset)
            if not (
                (attributes & TRANSACTIONAL_BIT and self._aborted.has(header))
                or attributes & CONTROL_BIT
                or end_offset <= from_offset
            ):
                yield start, end, header
            self.next_offset = max(from_offset, min(end_offset, upto_offset))


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


class Workspace:
    """Where compressed batches are opened, run after run: memory that is new costs more than copying."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)
        self._used = 0

    def clear(self) -> None:
        self._used = 0

    def put(self, view: memoryview) -> int:
        """Where it is now."""
        start, self._used = self._used, self._used + len(view)
        if self._used > len(self._data):
            grown = np.empty(max(self._used, 2 * len(self._data)), np.uint8)
            grown[:start] = self._data[:start]
            self._data = grown
        self._data[start : self._used] = np.frombuffer(view, np.uint8)
        return start

    def data(self) -> Data:
        data = self._data[: self._used]
        data.flags.writeable = False
        return data


class Run:
    """Plain batches that become columns together. Those of a workspace are gone with the next run."""

    def __init__(self, records: memoryview, workspace: Workspace | None) -> None:
        self.starts: list[int] = []
        self.rows = 0
        self.next_offset = 0
        self._records = records
        self._workspace = workspace
        self._sizes: list[int] = []
        self._size_bytes = 0

    @property
    def is_opened(self) -> bool:
        return self._workspace is not None

    @property
    def data(self) -> Data:
        """Read only, as the kernels take it."""
        if self._workspace is not None:
            return self._workspace.data()
        return np.frombuffer(self._records.toreadonly(), np.uint8)

    def places(self) -> tuple[Int64s, Int64s]:
        """Where in the data each batch starts and ends."""
        starts = np.array(self.starts, np.int64)
        return starts, starts + np.array(self._sizes, np.int64)

    def fits(self, rows: int, size: int, limits: tuple[int, int]) -> bool:
        """One batch always does."""
        return not self.starts or (
            self.rows + rows <= limits[0] and self._size_bytes + size <= limits[1]
        )

    def add(self, start: int, end: int, rows: int, opened: memoryview | None) -> None:
        size = end - start
        if self._workspace is not None:
            head_end = end if opened is None else start + HEADER_SIZE
            start, size = self._workspace.put(self._records[start:head_end]), head_end - start
            if opened is not None:
                self._workspace.put(opened)
                size += len(opened)
        self.starts.append(start)
        self._sizes.append(size)
        self._size_bytes += size
        self.rows += rows


def runs(batches: Batches, workspace: Workspace, limits: tuple[int, int]) -> Iterator[Run]:
    """Runs that make about a chunk of so many rows and bytes; the last may be empty.

    Plain batches after a compressed one go to the workspace too, so that mixtures make large runs.
    """
    run = Run(batches.records, None)
    for start, end, header in batches:
        rows, opened, size = header.record_count, None, end - start
        if header.attributes & CODEC_MASK:
            opened = _opened(batches.records[start:end], header)
            size = HEADER_SIZE + len(opened)
        if not 0 <= rows <= (size - HEADER_SIZE) // MIN_RECORD_BYTES:
            raise CorruptBatch(
                f"batch at offset {header.base_offset}: {rows} records in {size} bytes"
            )
        must_open = opened is not None and not run.is_opened
        if must_open or not run.fits(rows, size, limits):
            run.next_offset = batches.next_offset
            yield run
            workspace.clear()
            run = Run(batches.records, None if opened is None else workspace)
        run.add(start, end, rows, opened)
    run.next_offset = batches.next_offset
    yield run


def _opened(batch: memoryview, header: BatchHeader) -> memoryview:
    try:
        return decompress(header.codec, batch[HEADER_SIZE:])
    except CorruptBatch as error:
        raise CorruptBatch(f"batch at offset {header.base_offset}: {error}") from error
