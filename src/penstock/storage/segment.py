"""A segment: one file of record batches, and the sparse indexes that find them.

An entry of an index is believed only after the batch it points to agrees; else the index is rebuilt.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.model.errors import DiskFull, StorageFault
from penstock.records.batch import HEADER_SIZE, MAGIC, BatchHeader, parse_header
from penstock.storage.files import Buffer, OpenFiles, SegmentFile
from penstock.storage.index import OFFSETS, TIMES, Layout, SparseIndex

LOG_SUFFIX: Final = ".log"
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
NO_TIMESTAMP: Final = -1

_SCAN_BYTES: Final = 16 << 10  # read at once when looking for a batch
_TAIL_BATCHES: Final = 128  # kept in memory, at least, for readers at the end
_TAIL_LIMIT: Final = 2 * _TAIL_BATCHES


class Extent(NamedTuple):
    """Whole batches: where they lie, and the offset to go on from."""

    position: int
    end: int
    next_offset: int


class Segment:
    """A run of whole record batches, in offset order, from `base_offset` up to `next_offset`.

    Not thread-safe: the Log that owns it is its only caller.
    """

    __slots__ = (
        "_cursor",
        "_interval_bytes",
        "_offsets",
        "_tail_offsets",
        "_tail_positions",
        "_times",
        "_unindexed_bytes",
        "base_offset",
        "file",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "next_offset",
    )

    def __init__(self, file: SegmentFile, interval_bytes: int, next_offset: int) -> None:
        """A closed segment whose contents are trusted; see `begin` and `reopen` for those that grow."""
        self.base_offset = file.base_offset
        self.next_offset = next_offset
        self.file = file
        self.max_timestamp_ms: int | None = None  # None: not known yet
        self.max_timestamp_offset = file.base_offset
        self._interval_bytes = interval_bytes
        self._unindexed_bytes = 0
        self._cursor = (-1, 0)  # where the last read ended: the next one often begins there
        self._offsets: SparseIndex | None = None
        self._times: SparseIndex | None = None
        self._tail_offsets: array[int] | None = None  # only while it grows
        self._tail_positions: array[int] | None = None

    @classmethod
    def begin(
        cls, files: OpenFiles, directory: str, base_offset: int, interval_bytes: int
    ) -> "Segment":
        """A new, empty segment with its file."""
        file = SegmentFile(files, directory, base_offset, LOG_SUFFIX)
        file.create()
        segment = cls(file, interval_bytes, base_offset)
        segment.start_over()
        return segment

    def start_over(self) -> None:
        """Forget what is known about the contents, and grow from the first byte."""
        self.next_offset = self.base_offset
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self._unindexed_bytes = 0
        self._cursor = (-1, 0)
        self._offsets = self._fresh(OFFSETS)
        self._times = self._fresh(TIMES)
        self._tail_offsets = array("q")
        self._tail_positions = array("q")

    def _fresh(self, layout: Layout) -> SparseIndex:
        file = self.file
        return SparseIndex(file.files, file.directory, self.base_offset, layout)

    @property
    def size_bytes(self) -> int:
        return self.file.size

    @property
    def index_bytes(self) -> int:
        """Size of the larger index, for `segment.index.bytes`."""
        assert self._offsets is not None and self._times is not None
        return max(self._offsets.size_bytes, self._times.size_bytes)

    # Growing ---------------------------------------------------------------------------------

    def append(
        self, batch: Buffer, base_offset: int, last_offset: int, max_timestamp_ms: int
    ) -> bool:
        """Write one batch; True if an index grew."""
        file = self.file
        position = file.size
        file.append(batch)
        return self.note(position, len(batch), base_offset, last_offset, max_timestamp_ms)

    def note(
        self,
        position: int,
        size_bytes: int,
        base_offset: int,
        last_offset: int,
        max_timestamp_ms: int,
    ) -> bool:
        """Take note of a batch that the file holds at `position`; True if an index grew."""
        self.next_offset = last_offset + 1
        if max_timestamp_ms > self.max_timestamp_ms:  # type: ignore[operator] # known while it grows
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        tail = self._tail_offsets
        tail.append(base_offset)  # type: ignore[union-attr] # it is there while it grows
        self._tail_positions.append(position)  # type: ignore[union-attr] # likewise
        if len(tail) >= _TAIL_LIMIT:  # type: ignore[arg-type] # likewise
            self._trim_tail()
        unindexed = self._unindexed_bytes
        if unindexed > self._interval_bytes:
            self._add_entries(position, last_offset)
            self._unindexed_bytes = size_bytes
            return True
        self._unindexed_bytes = unindexed + size_bytes
        return False

    def _trim_tail(self) -> None:
        assert self._tail_offsets is not None and self._tail_positions is not None
        del self._tail_offsets[:-_TAIL_BATCHES], self._tail_positions[:-_TAIL_BATCHES]

    def _add_entries(self, position: int, last_offset: int) -> None:
        assert self._offsets is not None
        self._offsets.add(last_offset - self.base_offset, position)
        self._add_time_entry()

    def _add_time_entry(self) -> None:
        times = self._times
        assert times is not None and self.max_timestamp_ms is not None
        last = times.last()
        if self.max_timestamp_ms > (last[0] if last else NO_TIMESTAMP):
            times.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    def note_header(self, position: int, header: BatchHeader) -> None:
        self.note(
            position,
            header.size_bytes,
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
        )

    def save_indexes(self) -> None:
        """Bring the index files up to date. Times first: an entry among the offsets vouches for them."""
        self.times.save()
        self.offsets.save()

    def seal(self) -> list[SegmentFile]:
        """It grows no more: the indexes go to their files and leave the memory.

        The files are returned, to be synced. May be repeated when there was no room for them.
        """
        if self._tail_offsets is not None:
            self._add_time_entry()
            self._tail_offsets = self._tail_positions = None
        sealed = (self.times.seal(), self.offsets.seal())
        return [file for file in sealed if file is not None]

    def _resume(self, entry: tuple[int, int] | None) -> int:
        """Keep the indexes up to `entry`, ready to note the batches from its position on."""
        if entry is None:
            self.start_over()
            return 0
        self.offsets.truncate(entry[1])
        self.times.truncate(entry[0])
        newest = self.times.last() or (NO_TIMESTAMP, 0)
        self.max_timestamp_ms, self.max_timestamp_offset = newest[0], self.base_offset + newest[1]
        self.next_offset = self.base_offset
        self._unindexed_bytes = 0
        self._cursor = (-1, 0)
        self._tail_offsets, self._tail_positions = array("q"), array("q")
        return entry[1]

    def resume_at(self, position: int) -> int:
        """Make it ready to note batches again, from a batch at or before `position`, which is returned."""
        entry = self.offsets.floor_value(position)
        if entry is not None and self._entry_header(entry) is None:
            entry = None
        return self._resume(entry)

    def reopen(self) -> None:
        """Let a closed segment, trusted to its end, grow again."""
        for position, header in self.headers(self.resume_at(self.file.size)):
            self.note_header(position, header)

    def truncate(self, position: int) -> None:
        """Drop the batches from `position` on, and let it grow again from there."""
        start = self.resume_at(position)
        self.file.truncate(position)
        for start, header in self.headers(start):
            self.note_header(start, header)

    # Reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto_offset: int) -> Extent | None:
        """Whole batches from the one that holds `offset`, or the first one after it, within `max_bytes`.

        The first is given even when it is larger: a reader must always progress. None of them
        reaches `upto_offset`; None when there is no such batch here.
        """
        tail = self._tail_offsets
        if tail and offset >= tail[0]:
            found = self._read_tail(offset, max_bytes, upto_offset)
            if found is not None:
                return found
        return self._read_file(offset, max_bytes, upto_offset)

    def _read_tail(self, offset: int, max_bytes: int, upto_offset: int) -> Extent | None:
        """The answer from memory, if it is certain."""
        offsets, positions = self._tail_offsets, self._tail_positions
        assert offsets is not None and positions is not None
        first = bisect_left(offsets, offset)
        if first == len(offsets) or offsets[first] != offset:
            return None  # inside a batch, or in a gap
        start = positions[first]
        if upto_offset >= self.next_offset:
            end, next_offset = self.file.size, self.next_offset
        else:
            last = bisect_left(offsets, upto_offset)
            if last == len(offsets) or offsets[last] != upto_offset:
                return None
            end, next_offset = positions[last], upto_offset
        if end - start > max_bytes:
            last = max(bisect_right(positions, start + max_bytes) - 1, first + 1)
            if last < len(offsets) and positions[last] < end:
                end, next_offset = positions[last], offsets[last]
        return Extent(start, end, next_offset)

    def _read_file(self, offset: int, max_bytes: int, upto_offset: int) -> Extent | None:
        found = self.find(offset)
        if found is None:
            return None
        start, header = found
        if header.next_offset > upto_offset:
            return None
        limit = start + max_bytes
        if limit >= self.file.size and upto_offset >= self.next_offset:
            return Extent(start, self.file.size, self.next_offset)
        end, next_offset = start + header.size_bytes, header.next_offset
        boundary = self._boundary_before(limit, upto_offset) if end < limit else end
        for position, header in self.headers(max(end, boundary)):
            if position + header.size_bytes > limit or header.next_offset > upto_offset:
                end, next_offset = position, max(next_offset, header.base_offset)
                break
            end, next_offset = position + header.size_bytes, header.next_offset
        next_offset = min(next_offset, upto_offset)
        self._cursor = (next_offset, end)
        return Extent(start, end, next_offset)

    def _boundary_before(self, limit: int, upto_offset: int) -> int:
        """The last indexed place where a batch begins, with all before it within both limits."""
        offsets = self.offsets
        entry = offsets.floor_value(limit)
        if upto_offset < self.next_offset:
            below = offsets.floor(upto_offset - self.base_offset - 1)
            entry = min(entry, below) if entry and below else None
        if entry is None:
            return 0
        if self._entry_header(entry) is None:
            self.rebuild_indexes()
            return 0
        return entry[1]

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends after `offset`."""
        if offset >= self.next_offset:
            return None
        position = self._floor(offset)
        for position, header in self.headers(position):
            if header.next_offset > offset:
                return position, header
        return None

    def _floor(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`, not far from it."""
        known_offset, known_position = self._cursor
        if known_offset == offset:
            return known_position
        tail = self._tail_offsets
        if tail and offset >= tail[0] and self._tail_positions is not None:
            return self._tail_positions[bisect_right(tail, offset) - 1]
        entry = self.offsets.floor(offset - self.base_offset)
        if entry is None:
            return 0
        if self._entry_header(entry) is None:
            self.rebuild_indexes()
            entry = self.offsets.floor(offset - self.base_offset)
        return entry[1] if entry else 0

    def _entry_header(self, entry: tuple[int, int]) -> BatchHeader | None:
        """The header that an index entry points to; None if the entry is wrong."""
        relative, position = entry
        try:
            header = parse_header(self.file.read(position, HEADER_SIZE))
        except StructError:
            return None
        if header.magic != MAGIC or header.last_offset != self.base_offset + relative:
            return None
        return header

    def headers(
        self, position: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `position` on, which must be a batch's."""
        stop = self.file.size if stop is None else stop
        chunk, start = b"", position
        while position < stop:
            if position - start + HEADER_SIZE > len(chunk):
                chunk, start = self.file.read(position, min(_SCAN_BYTES, stop - position)), position
            try:
                header = parse_header(chunk, position - start)
            except StructError:
                header = None
            if header is None or header.magic != MAGIC or header.size_bytes < HEADER_SIZE:
                raise StorageFault(
                    f"{self.file.path}: no batch header at byte {position} (offset >= "
                    f"{self.base_offset}), though it is below the end at {stop}"
                )
            yield position, header
            position += header.size_bytes

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file.read(position, header.size_bytes)

    def newest(self) -> tuple[int, int]:
        """The largest timestamp, -1 if there is none, and the last offset of the first batch that has it."""
        if self.max_timestamp_ms is None:
            timestamp_ms, relative = self.times.last() or (NO_TIMESTAMP, 0)
            self.max_timestamp_ms = timestamp_ms
            self.max_timestamp_offset = self.base_offset + relative
        return self.max_timestamp_ms, self.max_timestamp_offset

    def first_header(self) -> BatchHeader | None:
        return next((header for _, header in self.headers()), None)

    # Indexes ---------------------------------------------------------------------------------

    @property
    def offsets(self) -> SparseIndex:
        if self._offsets is None:
            self._open_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> SparseIndex:
        if self._times is None:
            self._open_indexes()
        assert self._times is not None
        return self._times

    def _open_indexes(self) -> None:
        """Take the files as they are, if they look right; rebuild them if not."""
        file = self.file
        self._offsets = SparseIndex.open(file.files, file.directory, self.base_offset, OFFSETS)
        self._times = SparseIndex.open(file.files, file.directory, self.base_offset, TIMES)
        if not self._indexes_agree():
            self.rebuild_indexes()

    def _indexes_agree(self) -> bool:
        """The last entries point to batches that confirm them; files that are not there have none."""
        assert self._offsets is not None and self._times is not None
        last = self._offsets.last()
        if last is None:
            if self.file.size > self._interval_bytes + _SCAN_BYTES:
                return False  # it should have had entries
        elif self._entry_header(last) is None:
            return False
        newest = self._times.last()
        if newest is None:
            return self.file.size == 0
        found = self._header_of(self.base_offset + newest[1])
        return found is not None and found.max_timestamp_ms == newest[0]

    def _header_of(self, last_offset: int) -> BatchHeader | None:
        """The batch that ends at `last_offset`, found without trusting what was not checked."""
        assert self._offsets is not None
        entry = self._offsets.floor(last_offset - self.base_offset)
        if entry is not None and self._entry_header(entry) is None:
            return None
        for _, header in self.headers(entry[1] if entry else 0):
            if header.last_offset >= last_offset:
                return header if header.last_offset == last_offset else None
        return None

    def rebuild_indexes(self) -> None:
        """From the batch headers of the whole file."""
        grows = self._tail_offsets is not None
        next_offset = self.next_offset
        self.start_over()
        for position, header in self.headers():
            self.note_header(position, header)
        self.next_offset = next_offset
        if not grows:
            with suppress(DiskFull):  # then they stay in memory
                self.seal()

    # The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files; they open again when needed."""
        self.file.close()
        for index in (self._offsets, self._times):
            if index is not None:
                index.close()

    def unlink(self) -> None:
        """Remove the files; slices of them stay readable."""
        self.file.unlink()
        self.offsets.unlink()
        self.times.unlink()
