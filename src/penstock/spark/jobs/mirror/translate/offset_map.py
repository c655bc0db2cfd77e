"""Map the offsets of a partition to those of its copy, exactly, whatever gaps there are.

Records that follow each other at both ends are one row. Rows are stored in chunks. Full chunks
never change, and the last one is rewritten until it is full, so a compacted log keeps each row
about once.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

CHUNK_ROWS: Final = 256
_KNOWN_CHUNKS: Final = 512  # many groups are near each other


class Row(NamedTuple):
    """So many records, one after the other at both ends."""

    source: int
    target: int
    records: int

    @property
    def source_end(self) -> int:
        return self.source + self.records

    @property
    def target_end(self) -> int:
        return self.target + self.records


def rows_of(offsets: Sequence[int], first_target: int) -> list[Row]:
    """Of records with these offsets, in order, which lie at the target from `first_target` on without a gap."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        return [Row(offsets[0], first_target, len(offsets))]
    return joined(Row(offset, first_target + n, 1) for n, offset in enumerate(offsets))


def joined(rows: Iterable[Row]) -> list[Row]:
    """As few as say the same; they come in the order of the source."""
    found: list[Row] = []
    for row in rows:
        if found and (found[-1].source_end, found[-1].target_end) == row[:2]:
            found[-1] = found[-1]._replace(records=found[-1].records + row.records)
        else:
            assert not found or found[-1].source_end <= row.source, "in the order of the source"
            found.append(row)
    return found


class Chunk(NamedTuple):
    """Rows of a stretch of the source that ends at `next_offset`: what comes before it is copied, or not to be copied."""

    next_offset: int
    rows: tuple[Row, ...]
    marks: tuple[
        tuple[int, int], ...
    ] = ()  # offsets and fingerprints of some records of the source


def encode(chunk: Chunk) -> bytes:
    """Numbers are small: each row tells how far after the one before it is, at either end."""
    numbers, source, target = [], 0, 0
    for row in chunk.rows:
        numbers += [row.source - source, row.target - target, row.records]
        source, target = row.source_end, row.target_end
    facts: dict[str, object] = {"next": chunk.next_offset, "rows": numbers}
    if chunk.marks:
        facts["marks"] = chunk.marks
    return json.dumps(facts, separators=(",", ":")).encode()


@lru_cache(_KNOWN_CHUNKS)
def decode(data: bytes) -> Chunk:
    facts = json.loads(data)
    numbers, rows, source, target = facts["rows"], [], 0, 0
    for at in range(0, len(numbers), 3):
        row = Row(source + numbers[at], target + numbers[at + 1], numbers[at + 2])
        rows.append(row)
        source, target = row.source_end, row.target_end
    marks = tuple((offset, mark) for offset, mark in facts.get("marks", ()))
    return Chunk(facts["next"], tuple(rows), marks)


class OffsetMap:
    """Of one partition: chunks by their numbers. They are kept as they were read, for there may be many."""

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}
        self._ends: dict[int, int] = {}
        self._order: list[int] | None = None  # numbers, and the ends in that order
        self._bounds: list[int] = []

    def put(self, number: int, data: bytes | None) -> None:
        """As the log has it; None: it is not needed any more."""
        self._order = None
        if data is None:
            self._data.pop(number, None)
            self._ends.pop(number, None)
        else:
            self._data[number] = data
            self._ends[number] = decode(data).next_offset

    @property
    def position(self) -> int | None:
        """Where copying goes on; None: nothing was copied yet."""
        return self._ends[max(self._ends)] if self._ends else None

    @property
    def marks(self) -> dict[int, int]:
        """Fingerprints of some of the last records that were copied, by offset; the last chunk has them."""
        return dict(decode(self._data[max(self._data)]).marks) if self._data else {}

    def extended(
        self, rows: Iterable[Row], next_offset: int, marks: Mapping[int, int]
    ) -> dict[int, bytes]:
        """The chunks to write, by number, when these rows were copied and `next_offset` was reached."""
        last = max(self._data, default=0)
        tail = decode(self._data[last]).rows if last in self._data else ()
        known = joined([*tail, *rows])
        pieces = [tuple(known[at : at + CHUNK_ROWS]) for at in range(0, len(known), CHUNK_ROWS)]
        if not pieces or len(pieces[-1]) == CHUNK_ROWS:
            pieces.append(())  # the next one begins
        ends = [piece[-1].source_end for piece in pieces[:-1]] + [next_offset]
        chunks = [Chunk(end, piece) for end, piece in zip(ends, pieces, strict=True)]
        chunks[-1] = chunks[-1]._replace(marks=tuple(marks.items()))
        return {last + n: encode(chunk) for n, chunk in enumerate(chunks)}

    def lookup(self, offset: int) -> int | None:
        """Where a reader that would read the source from `offset` on must read the copy; None: from its beginning.

        Beyond what was copied that is just after the last record that was.
        """
        numbers = self.numbers()
        for at in range(bisect_right(self._bounds, offset), len(numbers)):
            for row in decode(self._data[numbers[at]]).rows:
                if offset < row.source_end:
                    return row.target + max(0, offset - row.source)
        for number in reversed(numbers):
            if rows := decode(self._data[number]).rows:
                return rows[-1].target_end
        return None

    def numbers(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._data)
            self._bounds = [self._ends[number] for number in self._order]
        return self._order

    def dead(self, target_start: int) -> list[int]:
        """Numbers of chunks that tell only of records which the copy has no more; never the last one."""
        found = []
        for number in self.numbers()[:-1]:
            rows = decode(self._data[number]).rows
            if max((row.target_end for row in rows), default=0) > target_start:
                break
            found.append(number)
        return found
