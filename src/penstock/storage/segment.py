"""A segment: one file of record batches, and the sparse indexes that find them.

An entry of an index is believed only after the batch it points to agrees; else the index is rebuilt.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import error as StructError
from typing import Final, NamedTuple, TypeAlias

from penstock.model.errors import DiskFull, OutOfResources, StorageFault
from penstock.records.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
    stamp,
)
from penstock.records.builder import build_batch
from penstock.storage import txn_index
from penstock.storage.files import Buffer, OpenFiles, SegmentFile
from penstock.storage.index import OFFSETS, TIMES
from penstock.storage.indexes import Indexes
from penstock.storage.tail import Extent, Tail
from penstock.storage.txn_index import AbortedEntry, TxnIndex

LOG_SUFFIX: Final = ".log"
DELETED_SUFFIX: Final = ".deleted"
SPARE_SUFFIX: Final = ".tmp"  # not of the log yet: removed when it is opened
SUFFIXES: Final = (LOG_SUFFIX, OFFSETS.suffix, TIMES.suffix, txn_index.SUFFIX)
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1

# a whole batch with its base offset, last offset and max timestamp; a plain tuple, as it is made for each append
PlacedBatch: TypeAlias = tuple[Buffer, int, int, int]

_SCAN_BYTES: Final = 8 << 10  # read at once when small batches are walked
_LARGE_BATCH_BYTES: Final = _SCAN_BYTES // 4  # from here on it pays to read headers one by one


class DamagedLog(StorageFault):
    """One log is damaged; the rest of the directory may be sound."""


class _Cursor(NamedTuple):
    offset: int
    position: int
    header: BatchHeader | None  # of the batch there, where it is known


_NOWHERE: Final = _Cursor(-1, 0, None)


class Segment:
    """A run of whole record batches, in offset order, from `base_offset` up to `next_offset`.

    Not thread-safe: the Log that owns it is its only caller.
    """

    __slots__ = (
        "_aborted",
        "_cursor",
        "_indexes",
        "_interval_bytes",
        "_tag",
        "_tail",
        "_txns",
        "base_offset",
        "file",
        "next_offset",
    )

    def __init__(
        self, file: SegmentFile, interval_bytes: int, next_offset: int, tag: str = ""
    ) -> None:
        """A closed segment that is taken to reach to `next_offset`. `tag`: added to names of indexes."""
        self.base_offset = file.base_offset
        self.next_offset = next_offset
        self.file = file
        self._interval_bytes = interval_bytes
        self._tag = tag
        self._indexes: Indexes | None = None  # None: not looked at yet
        self._aborted: bool | None = None  # whether there are aborted transactions; likewise
        self._txns: TxnIndex | None = None
        self._tail: Tail | None = None  # only while it grows
        self._cursor = _NOWHERE  # where the last read ended: the next one often begins there

    @classmethod
    def begin(
        cls,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        interval_bytes: int,
        suffix: str = LOG_SUFFIX,
    ) -> "Segment":
        """A new, empty segment with its file."""
        file = SegmentFile(files, directory, base_offset, suffix)
        file.create()
        segment = cls(file, interval_bytes, base_offset)
        segment.start_over()
        segment._aborted = False
        return segment

    @property
    def size_bytes(self) -> int:
        return self.file.size

    # Growing ---------------------------------------------------------------------------------

    @property
    def grows(self) -> bool:
        """Whether batches may be added: not after `seal`."""
        return self._tail is not None

    def append(self, batches: Sequence[PlacedBatch], size_bytes: int) -> int:
        """Write batches of `size_bytes` in all with one call. Return how many got an index entry.

        Nothing is noted of them before their bytes are in the file.
        """
        file, tail, indexes = self.file, self._tail, self._indexes
        assert tail is not None, "a closed segment does not grow"  # before a byte is written
        assert indexes is not None
        position, entries = file.size, 0
        if len(batches) == 1:
            file.append(batches[0][0])
        else:
            file.append_all([batch[0] for batch in batches], size_bytes)
        for records, base_offset, last_offset, max_timestamp_ms in batches:
            batch_bytes = len(records)
            tail.add(base_offset, position)
            entries += indexes.note(position, batch_bytes, last_offset, max_timestamp_ms)
            position += batch_bytes
            self.next_offset = last_offset + 1
        return entries

    def note(self, position: int, header: BatchHeader) -> None:
        """Take note of a batch that the file has at `position` already."""
        assert self._tail is not None, "a closed segment does not grow"
        assert self._indexes is not None
        last_offset = header.last_offset
        self._tail.add(header.base_offset, position)
        self._indexes.note(position, header.size_bytes, last_offset, header.max_timestamp_ms)
        self.next_offset = last_offset + 1

    def start_over(self) -> None:
        """Forget what is known about the contents, to grow or be noted from the first byte."""
        file = self.file
        self.next_offset = self.base_offset
        self._indexes = Indexes.fresh(
            file.files, file.directory, self.base_offset, self._interval_bytes, self._tag
        )
        self._tail = Tail()
        self._cursor = _NOWHERE

    def resume_before(self, offset: int) -> int:
        """Forget the contents from somewhere before `offset` on, to be noted again.

        The position of the first batch to note, which the index knows.
        """
        indexes = self._indexes or self._saved_indexes()
        entry = indexes.offsets.floor(offset - self.base_offset - 1)
        header = self._entry_header(entry) if entry else None
        if entry is None or header is None:
            self.start_over()
            return 0
        indexes.resume(entry)
        if not self._times_agree(indexes, entry[1] + header.size_bytes):
            self.start_over()
            return 0
        self._indexes = indexes
        self.next_offset = header.base_offset
        self._tail = Tail()
        self._cursor = _NOWHERE
        return entry[1]

    def reopen(self) -> None:
        """Let a closed segment, trusted to its end, grow again."""
        start = self.resume_before(self.base_offset + MAX_RELATIVE_OFFSET)
        self._note_all(start)

    def truncate(self, position: int, next_offset: int) -> None:
        """Drop the batches from `position` on, the first of which begins at `next_offset`."""
        start = self.resume_before(next_offset)
        if self.aborted:
            self.txns.truncate(next_offset)
        self.file.truncate(position)
        self._note_all(start)

    def fill_gap(self, upto_offset: int, leader_epoch: int) -> None:
        """Let it reach to `upto_offset`, with a batch without records."""
        if self.next_offset < upto_offset:
            batch = filler(self.next_offset, upto_offset)
            stamp(batch, self.next_offset, leader_epoch)
            placed = (batch, self.next_offset, upto_offset - 1, NO_TIMESTAMP)
            self.append((placed,), len(batch))

    def put_in_place(self) -> None:
        """What was begun as a spare is of the log from now on."""
        try:
            self.file.rename(LOG_SUFFIX)
        except (DiskFull, OutOfResources) as error:
            raise StorageFault(str(error)) from error  # those before it are gone

    def _note_all(self, position: int) -> None:
        for found, header in self.headers(position):
            self.note(found, header)

    def index_room(self, limit_bytes: int) -> int:
        """How many more entries the indexes may get under `segment.index.bytes`."""
        return self.indexes.room(limit_bytes)

    def save_indexes(self) -> list[SegmentFile]:
        """Bring the index files up to date; those that are more than hints, to be synced."""
        self.indexes.save()
        return self._save_txns()

    def seal(self) -> list[SegmentFile]:
        """It grows no more: the indexes go to their files and leave the memory.

        The files are returned, to be synced. May be repeated when there was no room for them.
        """
        self._tail = None
        return [*self._save_txns(), *self.indexes.seal()]

    def _save_txns(self) -> list[SegmentFile]:
        file = self._txns.save() if self._txns is not None else None
        return [file] if file is not None else []

    # Reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto_offset: int) -> Extent | None:
        """Whole batches from the one that holds `offset`, or the first one after it, within `max_bytes`.

        The first is given even when it is larger: a reader must always progress. None of them
        reaches `upto_offset`; None when there is no such batch here.
        """
        if self._tail is not None:
            size, next_offset = self.file.size, self.next_offset
            found = self._tail.read(offset, max_bytes, upto_offset, size, next_offset)
            if found is not None:
                return found
        return self._read_file(offset, max_bytes, upto_offset)

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
        end, next_offset, after = start + header.size_bytes, header.next_offset, None
        if end < limit:
            place, known = self._place_before(limit, upto_offset)
            walk = self.headers(place, known) if place > end else self.headers(end)
            for position, header in walk:
                end, next_offset = position, max(next_offset, header.base_offset)
                if position + header.size_bytes > limit or header.next_offset > upto_offset:
                    after = header
                    break
                end, next_offset = position + header.size_bytes, header.next_offset
        next_offset = min(next_offset, upto_offset)
        self._cursor = _Cursor(next_offset, end, after)
        return Extent(start, end, next_offset)

    def _place_before(self, limit: int, upto_offset: int) -> tuple[int, BatchHeader | None]:
        """The last indexed batch with all before it within both limits: where it begins, its header."""
        offsets = self.indexes.offsets
        entry = offsets.floor_value(limit)
        if upto_offset < self.next_offset:
            below = offsets.floor(upto_offset - self.base_offset - 1)
            entry = min(entry, below) if entry and below else None
        if entry is None:
            return 0, None
        header = self._entry_header(entry)
        if header is None:
            self.rebuild_indexes()
            return 0, None
        return entry[1], header

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends after `offset`."""
        cursor = self._cursor
        if cursor.offset == offset and cursor.header is not None:
            return cursor.position, cursor.header
        if offset < self.next_offset:
            for position, header in self.headers(self._place_of(offset)):
                if header.next_offset > offset:
                    return position, header
        return None

    def _place_of(self, offset: int) -> int:
        """Where a batch begins at or before `offset`, not far from it."""
        if self._cursor.offset == offset:
            return self._cursor.position
        if self._tail is not None and (position := self._tail.floor(offset)) is not None:
            return position
        entry = self.indexes.offsets.floor(offset - self.base_offset)
        if entry is not None and self._entry_header(entry) is None:
            self.rebuild_indexes()
            entry = self.indexes.offsets.floor(offset - self.base_offset)
        return entry[1] if entry else 0

    def headers(
        self, position: int = 0, header: BatchHeader | None = None, *, stop: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `position` on, which must be a batch's; `header`: if it is known."""
        stop = self.file.size if stop is None else stop
        chunk, start, wanted = b"", position, _SCAN_BYTES
        while position < stop:
            if header is None:
                if position - start + HEADER_SIZE > len(chunk):
                    chunk, start = self.file.read_at(position, wanted), position
                header = _parse(chunk, position - start)
            if header is None or position + header.size_bytes > stop:
                raise DamagedLog(
                    f"{self.file.path}: no whole batch at byte {position}, though the file should "
                    f"hold them up to byte {stop} (offset {self.next_offset})"
                )
            yield position, header
            position += header.size_bytes
            wanted = HEADER_SIZE if header.size_bytes > _LARGE_BATCH_BYTES else _SCAN_BYTES
            header = None

    def last_batch_end(self) -> int:
        """One past the last offset of its last batch, by the batch itself."""
        end = self.base_offset
        for _, header in self.headers(self._place_of(self.base_offset + MAX_RELATIVE_OFFSET)):
            end = header.next_offset
        return end

    def last_end_below(self, offset: int) -> int:
        """Where the last batch ends that does not reach past `offset`."""
        entry = self.indexes.offsets.floor(offset - self.base_offset - 1)
        known = entry is not None and self._entry_header(entry) is not None
        end = self.base_offset
        for _, header in self.headers(entry[1] if entry is not None and known else 0):
            if header.next_offset > offset:
                break
            end = header.next_offset
        return end

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file.read_at(position, header.size_bytes)

    def first_header(self) -> BatchHeader | None:
        return next((header for _, header in self.headers()), None)

    def newest(self) -> tuple[int, int]:
        """The largest timestamp, -1 if there is none, and the last offset of the first batch that has it."""
        indexes = self.indexes
        return indexes.max_timestamp_ms, indexes.max_timestamp_offset

    def newest_ms(self) -> int:
        """The largest timestamp, or when the file was last written if there is none."""
        timestamp_ms = self.indexes.max_timestamp_ms
        return timestamp_ms if timestamp_ms >= 0 else self.file.modified_ms()

    # Indexes ---------------------------------------------------------------------------------

    @property
    def indexes(self) -> Indexes:
        """As the files have them, if they look right; else rebuilt."""
        if self._indexes is None:
            self._indexes = self._saved_indexes()
            if not self._indexes_agree(self._indexes):
                self.rebuild_indexes()
        return self._indexes

    def _saved_indexes(self) -> Indexes:
        file = self.file
        return Indexes.saved(file.files, file.directory, self.base_offset, self._interval_bytes)

    @property
    def txns(self) -> TxnIndex:
        """The index of aborted transactions, to be changed."""
        if self._txns is None:
            self._txns = TxnIndex(self.file.files, self.file.directory, self.base_offset)
            self._aborted = True
        return self._txns

    @property
    def aborted(self) -> Sequence[AbortedEntry]:
        """Transactions whose abort markers are here, in order."""
        if self._aborted is None:
            self._aborted = txn_index.exists(self.file.directory, self.base_offset)
        return self.txns.entries if self._aborted else ()

    def _indexes_agree(self, indexes: Indexes) -> bool:
        """Of a closed segment: the last entries are confirmed by the batches they point to."""
        last = indexes.offsets.last()
        if last is None and self.file.size > self._interval_bytes + _SCAN_BYTES:
            return False
        if not indexes.are_whole or (last is not None and self._entry_header(last) is None):
            return False
        return self._times_agree(indexes, self.file.size)

    def _times_agree(self, indexes: Indexes, end: int) -> bool:
        """The last time entry is confirmed by its batch, and no batch near `end` is newer."""
        last, newest = indexes.offsets.last(), indexes.times.last()
        if newest is None:
            return end == 0
        near = indexes.offsets.floor(newest[1])
        if near is not None and self._entry_header(near) is None:
            return False
        for _, header in self.headers(near[1] if near else 0, stop=end):
            relative = header.last_offset - self.base_offset
            if relative >= newest[1]:
                break
        else:
            return False
        after = self.headers(last[1] if last else 0, stop=end)
        return (header.max_timestamp_ms, relative) == newest and all(
            header.max_timestamp_ms <= newest[0] for _, header in after
        )

    def _entry_header(self, entry: tuple[int, int]) -> BatchHeader | None:
        """The header that an entry of the offset index points to; None if the entry is wrong."""
        relative, position = entry
        header = _parse(self.file.read_at(position, HEADER_SIZE), 0)
        if header is None or header.last_offset != self.base_offset + relative:
            return None
        return header

    def rebuild_indexes(self) -> None:
        """From the batch headers of the whole file."""
        tail, indexes, next_offset = self._tail, self._indexes, self.next_offset
        grows = tail is not None
        self.start_over()
        try:
            self._note_all(0)
        except BaseException:  # what is there counts on: the next one who asks tries again
            self._tail, self._indexes, self.next_offset = (
                tail,
                indexes if grows else None,
                next_offset,
            )
            self._cursor = _NOWHERE
            raise
        if not grows:
            with suppress(DiskFull, OutOfResources):  # then they stay in memory
                self.seal()
        self.next_offset = max(next_offset, self.next_offset)

    # The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files; they open again when needed."""
        self.file.close()
        if self._indexes is not None:
            self._indexes.close()
        if self._txns is not None:
            self._txns.close()

    def unlink(self) -> None:
        """Remove the files at once."""
        for path in self.retire():
            os.unlink(path)

    def retire(self) -> list[str]:
        """Rename the files, so that they belong to no log any more; their new paths. Slices stay readable."""
        self.close()
        stem = f"{self.file.directory}/{self.base_offset:020d}"
        retired = []
        for suffix in SUFFIXES:
            path = stem + suffix
            try:
                os.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFault(f"{path}: cannot be renamed: {error.strerror}") from error
            retired.append(path + DELETED_SUFFIX)
        self.file.suffix = LOG_SUFFIX + DELETED_SUFFIX
        return retired


def filler(base_offset: int, end: int) -> bytearray:
    """A batch without records: the offsets up to `end` were here, and compaction took them out.

    With it every segment ends where the next one begins, so that a lost or short file is noticed.
    """
    return build_batch([], base_offset=base_offset, last_offset_delta=end - 1 - base_offset)


def _parse(data: bytes, at: int) -> BatchHeader | None:
    """What may be a batch header."""
    try:
        header = parse_header(data, at)
    except StructError:
        return None
    return header if header.magic == MAGIC and header.size_bytes >= HEADER_SIZE else None
