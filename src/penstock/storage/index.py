"""A sparse index file, in Kafka's format. It is a hint: whoever uses an entry checks it.

A growing index lives in memory and reaches its file when the segment is flushed, rolled or closed;
that of a closed segment is searched in its file; of an open file a small part is kept.
"""

import os
from array import array
from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple

from penstock.storage.files import OpenFiles, SegmentFile


class Layout(NamedTuple):
    suffix: str
    entry: Struct
    key_type: str  # of the array module
    value_type: str

    @property
    def entry_bytes(self) -> int:
        return self.entry.size


# relative offset of a batch's last record -> position of the batch
OFFSETS: Final = Layout(".index", Struct(">II"), "I", "I")
# largest timestamp so far -> relative offset of the last record of the first batch that has it
TIMES: Final = Layout(".timeindex", Struct(">qI"), "q", "I")


_BLOCK_ENTRIES: Final = 128


class _Block(NamedTuple):
    """Entries that follow each other in a file, as columns; the last belongs to the next block, unless there is none."""

    first: int
    columns: "tuple[array[int], array[int]]"

    def holds(self, field: int, wanted: int) -> bool:
        """Whether `wanted` lies between two of them, or after all there are."""
        column = self.columns[field]
        ends_here = len(column) <= _BLOCK_ENTRIES
        return (self.first == 0 or column[0] <= wanted) and (ends_here or wanted < column[-1])


class SparseIndex:
    """Pairs of which both the keys and the values grow."""

    __slots__ = ("_file", "_keys", "_layout", "_saved", "_stale", "_values")

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        layout: Layout,
        *,
        tag: str = "",
    ) -> None:
        """An empty index, to grow; what its file may hold is replaced by the first `save`."""
        self._layout = layout
        self._file = SegmentFile(files, directory, base_offset, layout.suffix + tag)
        self._keys: array[int] | None = array(layout.key_type)  # None: they are in the file
        self._values: array[int] | None = array(layout.value_type)
        self._saved = 0  # entries that the file has
        self._stale = False  # and it has more than those

    @classmethod
    def open(
        cls, files: OpenFiles, directory: str, base_offset: int, layout: Layout
    ) -> "SparseIndex":
        """The index as its file has it; a file that is not there has no entries."""
        index = cls(files, directory, base_offset, layout)
        try:
            size = os.stat(index._file.path).st_size
        except FileNotFoundError:
            size = 0
        index._file.size = size
        index._saved = size // layout.entry_bytes
        index._stale = size % layout.entry_bytes != 0
        if index._saved:
            index._keys = index._values = None
        return index

    @property
    def grows(self) -> bool:
        return self._keys is not None

    @property
    def is_whole(self) -> bool:
        return not self._stale

    def __len__(self) -> int:
        return self._saved if self._keys is None else len(self._keys)

    @property
    def size_bytes(self) -> int:
        return len(self) * self._layout.entry_bytes

    def _load(self) -> "tuple[array[int], array[int]]":
        """Take the entries into memory, to grow."""
        if self._keys is None or self._values is None:
            self._keys, self._values = array(self._layout.key_type), array(self._layout.value_type)
            data = self._file.read_at(0, self._saved * self._layout.entry_bytes)
            for key, value in self._layout.entry.iter_unpack(data):
                self._keys.append(key)
                self._values.append(value)
        return self._keys, self._values

    def add(self, key: int, value: int) -> None:
        if self._keys is None or self._values is None:
            self._load()
        self._keys.append(key)  # type: ignore[union-attr] # it is loaded
        self._values.append(value)  # type: ignore[union-attr] # likewise

    def last(self) -> tuple[int, int] | None:
        return self[len(self) - 1] if len(self) else None

    def __getitem__(self, number: int) -> tuple[int, int]:
        if self._keys is not None and self._values is not None:
            return self._keys[number], self._values[number]
        size = self._layout.entry_bytes
        key, value = self._layout.entry.unpack(self._file.read_at(number * size, size))
        return key, value

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        return self._floor(0, self._keys, key)

    def floor_value(self, value: int) -> tuple[int, int] | None:
        """The last entry whose value is at most `value`."""
        return self._floor(1, self._values, value)

    def _floor(
        self, field: int, loaded: "array[int] | None", wanted: int
    ) -> tuple[int, int] | None:
        if loaded is not None:
            number = bisect_right(loaded, wanted) - 1
            return self[number] if number >= 0 else None
        columns = self._block_with(field, wanted).columns
        number = bisect_right(columns[field], wanted) - 1
        return (columns[0][number], columns[1][number]) if number >= 0 else None

    def _block_with(self, field: int, wanted: int) -> _Block:
        """Readers go on where they were: mostly it is the block of the last search, kept as long as the file is open."""
        handle = self._file.open()
        block: _Block | None = handle.kept
        if block is None or not block.holds(field, wanted):
            block = handle.kept = self._read_block(self._find_block(field, wanted))
        return block

    def _find_block(self, field: int, wanted: int) -> int:
        low, high = 0, (self._saved - 1) // _BLOCK_ENTRIES
        while low < high:
            middle = (low + high + 1) // 2
            if self[middle * _BLOCK_ENTRIES][field] <= wanted:
                low = middle
            else:
                high = middle - 1
        return low * _BLOCK_ENTRIES

    def _read_block(self, first: int) -> _Block:
        layout = self._layout
        count = min(_BLOCK_ENTRIES + 1, self._saved - first)
        data = self._file.read_at(first * layout.entry_bytes, count * layout.entry_bytes)
        keys, values = array(layout.key_type), array(layout.value_type)
        for key, value in layout.entry.iter_unpack(data):
            keys.append(key)
            values.append(value)
        return _Block(first, (keys, values))

    def truncate(self, value: int) -> None:
        """Drop the entries whose value is above `value`, and grow from there."""
        keys, values = self._load()
        count = bisect_right(values, value)
        del keys[count:], values[count:]
        self._stale = self._stale or count < self._saved
        self._saved = min(self._saved, count)

    def save(self) -> SegmentFile | None:
        """Make the file equal to what is in memory. No entries, no file."""
        keys, values = self._keys, self._values
        if keys is None or values is None:
            return self._file
        if self._saved == 0:
            if len(keys):
                self._file.replace()
            elif self._stale:
                self._file.unlink()
        elif self._stale:
            self._file.truncate(self._saved * self._layout.entry_bytes)
        self._stale = False
        if self._saved < len(keys):
            pack = self._layout.entry.pack
            fresh = zip(keys[self._saved :], values[self._saved :], strict=True)
            self._file.append(b"".join(pack(key, value) for key, value in fresh))
            self._saved = len(keys)
        return self._file if self._saved else None

    def seal(self) -> SegmentFile | None:
        """Save, and keep nothing in memory."""
        file = self.save()
        if file is not None:
            self._keys = self._values = None
            if file.handle is not None:
                file.handle.kept = None
        return file

    def close(self) -> None:
        self._file.close()
