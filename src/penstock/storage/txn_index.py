"""The aborted transactions of a segment, by where their markers lie, in Kafka's file format."""

import os
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from penstock.model.errors import DiskFull
from penstock.records.crc32c import crc32c
from penstock.storage.files import OpenFiles, SegmentFile

SUFFIX: Final = ".txnindex"
_ENTRY: Final = Struct(">hqqqq")  # version, producer id, first, last and last stable offset
_VERSION: Final = 0


class AbortedEntry(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    last_stable_offset: int  # once the marker was written: below it all transactions are decided


class Digest(NamedTuple):
    """What the entries of a segment are known to be, so that a lost file is noticed."""

    entries: int
    crc: int


NO_ENTRIES: Final = Digest(0, crc32c(b""))


def digest(entries: Iterable[AbortedEntry], next_offset: int) -> Digest:
    """Of the entries whose markers are below `next_offset`."""
    below = [entry for entry in entries if entry.last_offset < next_offset]
    return Digest(len(below), crc32c(encode(below)))


def encode(entries: Iterable[AbortedEntry]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode(data: bytes) -> list[AbortedEntry]:
    """The entries up to the first that cannot be one."""
    entries: list[AbortedEntry] = []
    whole = len(data) - len(data) % _ENTRY.size
    for version, *fields in _ENTRY.iter_unpack(memoryview(data)[:whole]):
        entry = AbortedEntry(*fields)
        last = entries[-1].last_offset if entries else -1
        if version < 0 or not 0 <= entry.first_offset <= entry.last_offset > last:
            break
        entries.append(entry)
    return entries


def exists(directory: str, base_offset: int) -> bool:
    return os.path.exists(f"{directory}/{base_offset:020d}{SUFFIX}")


class TxnIndex:
    """Entries in the order of their markers. They reach the file with `save`; replay gives back the rest."""

    __slots__ = ("_file", "_saved", "_stale", "entries")

    def __init__(self, files: OpenFiles, directory: str, base_offset: int) -> None:
        """As its file has it; without a file there are no entries."""
        self._file = SegmentFile(files, directory, base_offset, SUFFIX)
        try:
            self._file.size = os.stat(self._file.path).st_size
        except FileNotFoundError:
            self.entries: list[AbortedEntry] = []
        else:
            self.entries = decode(self._file.read_at(0, self._file.size))
            self._file.close()
        self._saved = len(self.entries)
        self._stale = self._file.size > self._saved * _ENTRY.size

    def add(self, entry: AbortedEntry) -> None:
        self.entries.append(entry)

    def keep(self, entries: list[AbortedEntry]) -> None:
        """Have only these, of those it has."""
        if entries != self.entries:
            self.entries = entries
            self._saved, self._stale = 0, True

    def truncate(self, next_offset: int) -> None:
        """Forget the transactions whose markers are at or past `next_offset`."""
        self.keep([entry for entry in self.entries if entry.last_offset < next_offset])

    def keep_saved(self, entries: list[AbortedEntry]) -> None:
        """Have only these, also in the file.

        On a full disk there is no file: it is made again from the batches.
        """
        self.keep(entries)
        self._remove_stale()
        with suppress(DiskFull):
            self.save()

    def _remove_stale(self) -> None:
        if self._stale:
            self._file.unlink()
            self._file.size, self._stale = 0, False

    def save(self) -> SegmentFile | None:
        """Make the file equal; the file, if there is any."""
        self._remove_stale()
        if self._saved < len(self.entries):
            if self._file.size == 0:
                self._file.replace()
            self._file.append(encode(self.entries[self._saved :]))
            self._saved = len(self.entries)
        return self._file if self._file.size else None

    def close(self) -> None:
        self._file.close()
