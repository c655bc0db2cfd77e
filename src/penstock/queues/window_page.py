"""1,024 consecutive offsets of a window: one state byte for each, counts only where they are needed.

A page exists only while it has an offset that is not settled. Ranges are changed by slice assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.queues.record_states import (
    Delivery,
    RecordState,
    StateBatch,
    merge_intervals,
    run_end,
)

if TYPE_CHECKING:
    from penstock.queues.locks import AcquisitionLock

PAGE_BITS: Final = 10
PAGE_SIZE: Final = 1 << PAGE_BITS
FILL: Final = {state: bytes((state,)) * PAGE_SIZE for state in RecordState}

_ONCE: Final = b"\x01" * PAGE_SIZE
_INCREMENT: Final = bytes(min(count + 1, 255) for count in range(256))
_DECREMENT: Final = bytes(max(count - 1, 0) for count in range(256))
_PERSISTED: Final = {
    RecordState.ACQUIRED: RecordState.AVAILABLE,
    RecordState.DELAYED: RecordState.AVAILABLE,
}
_SETTLED: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class WindowPage:
    """Indexes `i` and `j` are relative to `base`. The window that owns the page is its only caller."""

    __slots__ = (
        "acquired_counts",
        "base",
        "dirty",
        "failed_counts",
        "is_ready",
        "lock_firsts",
        "locks",
        "states",
        "unsettled",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.states = bytearray(FILL[RecordState.UNTOUCHED])
        self.acquired_counts: bytearray | None = None  # None: every touched offset once
        self.failed_counts: bytearray | None = None  # None: no offset has failed
        self.unsettled = PAGE_SIZE
        self.is_ready = False  # the window looks for available offsets here
        self.dirty: list[tuple[int, int]] = []  # intervals that changed since the last update
        self.locks: list[AcquisitionLock] = []  # in offset order; they do not overlap
        self.lock_firsts: list[int] = []  # the `first` of each lock, for bisect

    def fill(self, i: int, j: int, state: RecordState) -> None:
        self.states[i:j] = FILL[state][: j - i]

    def set_acquired_counts(self, i: int, j: int, count: int) -> None:
        if self.acquired_counts is None:
            self.acquired_counts = bytearray(_ONCE)
        self.acquired_counts[i:j] = bytes((count,)) * (j - i)

    def set_failed_counts(self, i: int, j: int, count: int) -> None:
        if self.failed_counts is None:
            self.failed_counts = bytearray(PAGE_SIZE)
        self.failed_counts[i:j] = bytes((count,)) * (j - i)

    def count_acquisition(self, i: int, j: int) -> None:
        counts = self.acquired_counts
        if counts is None:
            counts = self.acquired_counts = bytearray(_ONCE)
        counts[i:j] = counts[i:j].translate(_INCREMENT)

    def uncount_acquisition(self, i: int, j: int) -> None:
        counts = self.acquired_counts
        if counts is None:
            counts = self.acquired_counts = bytearray(_ONCE)
        counts[i:j] = counts[i:j].translate(_DECREMENT)

    def count_failure(self, i: int, j: int) -> None:
        counts = self.failed_counts
        if counts is None:
            counts = self.failed_counts = bytearray(PAGE_SIZE)
        counts[i:j] = counts[i:j].translate(_INCREMENT)

    def counts_end(self, i: int, j: int) -> int:
        """Return the end of the run of equal counts that begins at `i`, at most `j`."""
        if self.acquired_counts is not None:
            j = run_end(self.acquired_counts, i, j)
        if self.failed_counts is not None:
            j = run_end(self.failed_counts, i, j)
        return j

    def counts_at(self, i: int) -> tuple[int, int]:
        acquired = 1 if self.acquired_counts is None else self.acquired_counts[i]
        return acquired, 0 if self.failed_counts is None else self.failed_counts[i]

    def add_deliveries(self, i: int, j: int, deliveries: list[Delivery]) -> None:
        """Append the offsets with their counts; join them with the last delivery if possible."""
        while i < j:
            end = self.counts_end(i, j)
            acquired, failed = self.counts_at(i)
            delivery = Delivery(self.base + i, self.base + end, acquired, failed)
            if deliveries:
                last = deliveries[-1]
                if last.end == delivery.first and last[2:] == delivery[2:]:
                    delivery = Delivery(last.first, *delivery[1:])
                    deliveries.pop()
            deliveries.append(delivery)
            i = end

    def take_changes(self, counts_failures: bool) -> list[StateBatch]:
        """Return the persisted states of the dirty intervals, and mark the page clean."""
        batches: list[StateBatch] = []
        for i, j in merge_intervals(self.dirty):
            self.add_batches(i, j, counts_failures, batches)
        self.dirty = []
        return batches

    def add_batches(self, i: int, j: int, counts_failures: bool, batches: list[StateBatch]) -> None:
        """Append the persisted states of offsets that have been touched."""
        while i < j:
            end = run_end(self.states, i, j)
            state = RecordState(self.states[i])
            if state in _SETTLED:
                batches.append(StateBatch(self.base + i, self.base + end, state, 0))
            else:
                self._add_unsettled(i, end, state, counts_failures, batches)
            i = end

    def _add_unsettled(
        self, i: int, j: int, state: RecordState, counts_failures: bool, batches: list[StateBatch]
    ) -> None:
        persisted = _PERSISTED.get(state, state)
        while i < j:
            end = self.counts_end(i, j)
            acquired, failed = self.counts_at(i)
            if state is RecordState.ACQUIRED:
                acquired = max(0, acquired - 1)  # a delivery in flight is not persisted
            count = failed if counts_failures else acquired
            batches.append(StateBatch(self.base + i, self.base + end, persisted, count))
            i = end
