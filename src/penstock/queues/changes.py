"""What a window has changed since its last update, and which updates are not committed yet.

An answer that acknowledges a change waits until the update with the change's number is committed.
"""

from penstock.queues.record_states import StateBatch, merge_adjacent
from penstock.queues.window_page import WindowPage


class ChangeTracker:
    __slots__ = (
        "_batches",
        "_dirty_pages",
        "_in_flight",
        "_pending",
        "_reported_start",
        "counts_failures",
        "number",
        "uncommitted",
    )

    def __init__(self, reported_start: int, *, counts_failures: bool) -> None:
        self.counts_failures = counts_failures  # which count is persisted
        self.number = 1  # of the next update
        self.uncommitted = 0  # changes that no committed update contains
        self._dirty_pages: dict[int, WindowPage] = {}
        self._batches: list[StateBatch] = []  # of offsets that have no page
        self._pending = 0  # changes since the last update
        self._in_flight: dict[int, int] = {}  # changes by update, in ascending order
        self._reported_start = reported_start

    def add(self, page: WindowPage, i: int, j: int) -> None:
        dirty = page.dirty
        if not dirty:
            self._dirty_pages[page.base] = page
            dirty.append((i, j))
        elif dirty[-1][1] == i:
            dirty[-1] = (dirty[-1][0], j)
        else:
            dirty.append((i, j))
        self._count(j - i)

    def add_batch(self, batch: StateBatch) -> None:
        """Note a batch of final offsets. It counts as one change: its size costs nothing."""
        self._batches.append(batch)
        self._count(1)

    def _count(self, changes: int) -> None:
        self._pending += changes
        self.uncommitted += changes

    def page_dropped(self, page: WindowPage) -> None:
        """Keep the changes of a page that no longer exists. They are final."""
        if self._dirty_pages.pop(page.base, None) is not None:
            self._batches += page.take_changes(self.counts_failures)

    @property
    def newest_number(self) -> int | None:
        """The update that contains all changes so far. None: it is committed."""
        if self._pending:
            return self.number
        return next(reversed(self._in_flight), None)

    def has_changes(self, start: int) -> bool:
        return bool(self._dirty_pages or self._batches) or start != self._reported_start

    def take(self, start: int) -> tuple[int, tuple[StateBatch, ...]]:
        """Return the number of a new update and its batches, in offset order."""
        batches = self._batches
        for page in self._dirty_pages.values():
            batches += page.take_changes(self.counts_failures)
        self._batches = []
        self._dirty_pages = {}
        self._reported_start = start
        number = self.number
        self.number += 1
        self._in_flight[number] = self._pending
        self._pending = 0
        batches.sort()
        return number, clip_batches(batches, start)

    def committed(self, number: int) -> None:
        """The update with this number, and all before it, are committed."""
        for known in [known for known in self._in_flight if known <= number]:
            self.uncommitted -= self._in_flight.pop(known)


def clip_batches(batches: list[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """Return sorted batches without what is below `start`, neighbours joined."""
    kept = [b if b.first >= start else b._replace(first=start) for b in batches if b.end > start]
    return tuple(merge_adjacent(kept))
