"""Sparse indexes of a segment, in Kafka's file formats. They are hints: whoever uses an entry checks it.

A growing index lives in memory and reaches its file when the segment is flushed, rolled or closed;
that of a closed segment is searched in its file and owns no memory.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
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


class _Column(Sequence[int]):
    """One column of an index file, as something to bisect."""

    __slots__ = ("_count", "_entry", "_field", "_file")

    def __init__(self, file: SegmentFile, entry: Struct, field: int) -> None:
        self._file = file
        self._entry = entry
        self._field = field
        self._count = file.size // entry.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:  # type: ignore[override] # bisect asks for no slices
        size = self._entry.size
        field: int = self._entry.unpack(self._file.read(number * size, size))[self._field]
        return field


class SparseIndex:
    """Pairs of which both the keys and the values grow."""

    __slots__ = ("_file", "_keys", "_layout", "_saved", "_stale", "_values")

    def __init__(
        self, files: OpenFiles, directory: str, base_offset: int, layout: Layout, size: int = 0
    ) -> None:
        """An index that grows; `size` bytes of its file are there and taken to be right."""
        self._layout = layout
        whole = size - size % layout.entry_bytes
        self._file = SegmentFile(files, directory, base_offset, layout.suffix, whole)
        self._saved = whole // layout.entry_bytes
        self._keys: array[int] | None = None
        self._values: array[int] | None = None
        self._stale = False  # the file has more than `_saved` says
        if not size:
            self.clear()

    @classmethod
    def open(
        cls, files: OpenFiles, directory: str, base_offset: int, layout: Layout
    ) -> "SparseIndex":
        """The index as its file has it; a file that is not there has no entries."""
        path = f"{directory}/{base_offset:020d}{layout.suffix}"
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
        return cls(files, directory, base_offset, layout, size)

    def __len__(self) -> int:
        return self._saved if self._keys is None else len(self._keys)

    @property
    def size_bytes(self) -> int:
        return len(self) * self._layout.entry_bytes

    @property
    def path(self) -> str:
        return self._file.path

    def clear(self) -> None:
        """Begin anew; the file keeps what it has until the next `save`."""
        self._stale = self._file.size > 0
        self._keys = array(self._layout.key_type)
        self._values = array(self._layout.value_type)
        self._saved = 0

    def load(self) -> None:
        """Take the entries into memory, to grow."""
        if self._keys is not None:
            return
        data = self._file.read(0, self._saved * self._layout.entry_bytes)
        whole = len(data) - len(data) % self._layout.entry_bytes
        saved, stale = self._saved, self._stale
        self.clear()
        for key, value in self._layout.entry.iter_unpack(memoryview(data)[:whole]):
            self.add(key, value)
        self._saved, self._stale = min(saved, len(self)), stale

    def add(self, key: int, value: int) -> None:
        assert self._keys is not None and self._values is not None, "the segment is closed"
        self._keys.append(key)
        self._values.append(value)

    def last(self) -> tuple[int, int] | None:
        return self[len(self) - 1] if len(self) else None

    def __getitem__(self, number: int) -> tuple[int, int]:
        if self._keys is not None and self._values is not None:
            return self._keys[number], self._values[number]
        size = self._layout.entry_bytes
        key, value = self._layout.entry.unpack(self._file.read(number * size, size))
        return key, value

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        keys: Sequence[int] = (
            self._keys if self._keys is not None else _Column(self._file, self._layout.entry, 0)
        )
        number = bisect_right(keys, key) - 1
        return self[number] if number >= 0 else None

    def floor_value(self, value: int) -> tuple[int, int] | None:
        """The last entry whose value is at most `value`."""
        number = self._count_upto(value) - 1
        return self[number] if number >= 0 else None

    def truncate(self, value: int) -> None:
        """Drop the entries whose value is above `value`."""
        self.load()
        assert self._keys is not None and self._values is not None
        count = self._count_upto(value)
        del self._keys[count:], self._values[count:]
        self._stale = self._stale or count < self._saved
        self._saved = min(self._saved, count)

    def _count_upto(self, value: int) -> int:
        values: Sequence[int] = (
            self._values if self._values is not None else _Column(self._file, self._layout.entry, 1)
        )
        return bisect_right(values, value)

    def save(self) -> SegmentFile | None:
        """Make the file equal to what is in memory. No entries, no file."""
        if self._keys is None or self._values is None:
            return self._file
        if self._saved == 0 and (self._stale or len(self._keys)):
            self._file.replace() if len(self._keys) else self._file.unlink()
        elif self._stale:
            self._file.truncate(self._saved * self._layout.entry_bytes)
        self._stale = False
        if self._saved < len(self._keys):
            pack = self._layout.entry.pack
            fresh = zip(self._keys[self._saved :], self._values[self._saved :], strict=True)
            self._file.append(b"".join(pack(key, value) for key, value in fresh))
            self._saved = len(self._keys)
        return self._file if self._saved else None

    def seal(self) -> SegmentFile | None:
        """Save, and keep nothing in memory."""
        file = self.save()
        self._keys = self._values = None
        return file

    def close(self) -> None:
        self._file.close()

    def rename(self, suffix: str) -> None:
        self._file.rename(suffix)

    def unlink(self) -> None:
        self._file.unlink()
