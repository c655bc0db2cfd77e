"""A sparse index file, in Kafka's format. It is a hint: whoever uses an entry checks it.

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

    def __init__(self, file: SegmentFile, count: int, entry: Struct, field: int) -> None:
        self._file = file
        self._count = count
        self._entry = entry
        self._field = field

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:  # type: ignore[override] # bisect asks for no slices
        size = self._entry.size
        field: int = self._entry.unpack(self._file.read_at(number * size, size))[self._field]
        return field


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
        number = bisect_right(self._column(0, self._keys), key) - 1
        return self[number] if number >= 0 else None

    def floor_value(self, value: int) -> tuple[int, int] | None:
        """The last entry whose value is at most `value`."""
        number = bisect_right(self._column(1, self._values), value) - 1
        return self[number] if number >= 0 else None

    def _column(self, field: int, loaded: "array[int] | None") -> Sequence[int]:
        if loaded is not None:
            return loaded
        return _Column(self._file, self._saved, self._layout.entry, field)

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
        return file

    def close(self) -> None:
        self._file.close()
