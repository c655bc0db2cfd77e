"""Where the last batches of a growing segment begin, so that readers at its end need no disk."""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

_KEPT_BATCHES: Final = 128  # at least, once there are as many
_LIMIT: Final = 2 * _KEPT_BATCHES


class Extent(NamedTuple):
    """Whole batches: where they lie, and the offset to go on from."""

    position: int
    end: int
    next_offset: int


class Tail:
    """Base offsets and positions of the latest batches, in order."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")

    def add(self, base_offset: int, position: int) -> None:
        offsets = self._offsets
        offsets.append(base_offset)
        self._positions.append(position)
        if len(offsets) >= _LIMIT:
            del offsets[:-_KEPT_BATCHES], self._positions[:-_KEPT_BATCHES]

    def floor(self, offset: int) -> int | None:
        """Position of the last batch that begins at or before `offset`, if it is here."""
        number = bisect_right(self._offsets, offset) - 1
        return self._positions[number] if number >= 0 else None

    def read(
        self, offset: int, max_bytes: int, upto_offset: int, end: int, next_offset: int
    ) -> Extent | None:
        """What `Segment.read` answers, when memory alone can tell; the segment ends at `end`, `next_offset`."""
        offsets, positions = self._offsets, self._positions
        first = bisect_left(offsets, offset)
        if first == len(offsets) or offsets[first] != offset:
            return None  # older, inside a batch, or in a gap
        if upto_offset < next_offset:
            last = bisect_left(offsets, upto_offset)
            if last == len(offsets) or offsets[last] != upto_offset:
                return None
            end, next_offset = positions[last], upto_offset
        start = positions[first]
        if end - start > max_bytes:
            last = max(bisect_right(positions, start + max_bytes) - 1, first + 1)
            if last < len(offsets) and positions[last] < end:
                end, next_offset = positions[last], offsets[last]
        return Extent(start, end, next_offset)
