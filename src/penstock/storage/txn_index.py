"""The aborted transactions of a segment, by where their markers lie, in Kafka's file format."""

from struct import Struct
from typing import Final, NamedTuple

SUFFIX: Final = ".txnindex"
_ENTRY: Final = Struct(">hqqqq")  # version, producer id, first, last and last stable offset
_VERSION: Final = 0
ENTRY_BYTES: Final = _ENTRY.size


class AbortedEntry(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    last_stable_offset: int  # once the marker is written: below it all transactions are decided


def encode(entry: AbortedEntry) -> bytes:
    return _ENTRY.pack(_VERSION, *entry)


def decode(data: bytes) -> list[AbortedEntry]:
    """The whole entries; raises ValueError when one cannot be."""
    entries = []
    whole = len(data) - len(data) % ENTRY_BYTES
    for version, *fields in _ENTRY.iter_unpack(memoryview(data)[:whole]):
        entry = AbortedEntry(*fields)
        if version < 0 or not 0 <= entry.first_offset <= entry.last_offset:
            raise ValueError(f"not an aborted transaction: version {version}, {entry}")
        entries.append(entry)
    return entries
