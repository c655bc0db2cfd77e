"""Reads a closed segment again, a piece at a time, and checks every batch in it (O10)."""

from collections.abc import Iterable

from penstock.records.batch import NO_TIMESTAMP
from penstock.storage.files import FileSlice
from penstock.storage.recovery import REMEDY, Damage, valid_batches
from penstock.storage.segment import DamagedLog, Segment


class Scrub:
    """The check of one segment. `step` may run in any thread, one at a time."""

    __slots__ = (
        "_batches",
        "_end_offset",
        "_next_offset",
        "_piece",
        "_position",
        "base_offset",
        "done",
        "max_timestamp_ms",
    )

    def __init__(self, segment: Segment, has_gaps: bool) -> None:
        self._piece = FileSlice(segment.file, 0, segment.size_bytes)
        self._end_offset = segment.next_offset
        self._next_offset = segment.base_offset
        self._position = 0
        self._batches = valid_batches(
            self._piece, 0, segment.size_bytes, segment.base_offset, has_gaps
        )
        self.base_offset = segment.base_offset
        self.max_timestamp_ms = NO_TIMESTAMP  # so far
        self.done = False

    @property
    def next_offset(self) -> int:
        """Where the next scrub should begin, once this one is done."""
        return self._end_offset

    def step(self, max_bytes: int) -> int:
        """Check about that many bytes more; how many they were. Raises DamagedLog with file, byte and offset."""
        start = self._position
        for found in self._batches:
            if isinstance(found, Damage):
                self._fail(found.position, found.reason)
                break
            self._position = found[0] + found[1].size_bytes
            self._next_offset = found[1].next_offset
            self.max_timestamp_ms = max(self.max_timestamp_ms, found[1].max_timestamp_ms)
            if self._position - start >= max_bytes:
                return self._position - start
        if not self.done and self._next_offset != self._end_offset:
            self._fail(self._position, f"it should reach to offset {self._end_offset}")
        self.done = True
        return self._position - start

    def mend_indexes(self, closed: Iterable[Segment]) -> None:
        """Rebuild the indexes of the segment, if it is still there and they miss its largest timestamp."""
        for segment in closed:
            if (segment.base_offset, segment.next_offset) == (self.base_offset, self._end_offset):
                if segment.newest()[0] != self.max_timestamp_ms:
                    segment.rebuild_indexes()
                return

    def _fail(self, position: int, reason: str) -> None:
        """Unless the segment was truncated or replaced since, which is no damage."""
        self.done = True
        if not self._piece.is_stale:
            raise DamagedLog(
                f"{self._piece.file.path}: damaged at byte {position} (offset {self._next_offset}): "
                f"{reason}. {REMEDY}"
            )
