"""The offsets of a window: pages between the start offset and the cursor, and what is implied between them.

An offset below the start is settled. An offset from the start up to the cursor is in a page, or it is
settled. Pages are made in offset order, and dropped once they are wholly settled.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from penstock.queues.changes import ChangeTracker
from penstock.queues.record_states import FINAL_STATES, RecordState, StateBatch
from penstock.queues.window_page import PAGE_BITS, PAGE_SIZE, WindowPage

UNLIMITED: Final = 2**63

_AVAILABLE: Final = int(RecordState.AVAILABLE)


class PageTable:
    """`available`, `acquired`, `archiving` and `delayed` count the unsettled offsets below the cursor."""

    __slots__ = (
        "_ready",
        "acquired",
        "archiving",
        "available",
        "changes",
        "cursor",
        "delayed",
        "pages",
        "start",
    )

    def __init__(self, start: int, changes: ChangeTracker) -> None:
        self.start = start
        self.cursor = start
        self.pages: dict[int, WindowPage] = {}  # by page number, in ascending order
        self.changes = changes
        self.available = 0
        self.acquired = 0
        self.archiving = 0
        self.delayed = 0
        self._ready: list[int] = []  # a heap of the numbers of pages with available offsets

    @property
    def unsettled(self) -> int:
        return self.available + self.acquired + self.archiving + self.delayed

    def pieces(self, first: int, end: int) -> Iterator[tuple[WindowPage, int, int]]:
        """Yield the parts of an interval that have pages: page and indexes, in order."""
        first, end = max(first, self.start), min(end, self.cursor)
        if first >= end:
            return
        numbers = range(first >> PAGE_BITS, ((end - 1) >> PAGE_BITS) + 1)
        if len(numbers) > len(self.pages):
            found = [number for number in self.pages if number in numbers]
        else:
            found = [number for number in numbers if number in self.pages]
        for number in found:
            page = self.pages[number]
            yield page, max(0, first - page.base), min(PAGE_SIZE, end - page.base)

    # Below the cursor -----------------------------------------------------------------------------

    def change(self, page: WindowPage, i: int, j: int, old: RecordState, new: RecordState) -> None:
        """Change offsets that are all in state `old`, and note that to be persisted."""
        page.fill(i, j, new)
        self.changes.add(page, i, j)
        self.recount(page, old, new, j - i)

    def recount(self, page: WindowPage, old: RecordState, new: RecordState, count: int) -> None:
        """Count offsets whose state has changed; drop the page if all of it is settled now."""
        self._count(old, -count)
        if new is RecordState.ACKNOWLEDGED or new is RecordState.ARCHIVED:
            page.unsettled -= count
            if not page.unsettled:
                self._drop(page)
        else:
            self._count(new, count)
            if new is RecordState.AVAILABLE:
                self.mark_ready(page)

    def _count(self, state: RecordState, count: int) -> None:
        if state is RecordState.ACQUIRED:
            self.acquired += count
        elif state is RecordState.AVAILABLE:
            self.available += count
        elif state is RecordState.ARCHIVING:
            self.archiving += count
        elif state is RecordState.DELAYED:
            self.delayed += count

    def _drop(self, page: WindowPage) -> None:
        del self.pages[page.base >> PAGE_BITS]
        self.changes.page_dropped(page)

    def mark_ready(self, page: WindowPage) -> None:
        if not page.is_ready:
            page.is_ready = True
            heappush(self._ready, page.base >> PAGE_BITS)

    def first_available(self, readable: int) -> tuple[WindowPage, int] | None:
        """Return the page and index of the first available offset below the cursor and `readable`."""
        while self._ready:
            number = self._ready[0]
            page = self.pages.get(number)
            if page is not None:
                i = page.states.find(_AVAILABLE)
                if i >= 0:
                    return (page, i) if page.base + i < readable else None
                page.is_ready = False
            heappop(self._ready)
        return None

    # At the cursor --------------------------------------------------------------------------------

    def is_full(self, max_pages: int) -> bool:
        """Whether the cursor needs a new page, and there are `max_pages` pages."""
        return len(self.pages) >= max_pages and self.cursor >> PAGE_BITS not in self.pages

    def cursor_page(self) -> WindowPage:
        """Return the page at the cursor; make it if it does not exist."""
        number = self.cursor >> PAGE_BITS
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = WindowPage(number << PAGE_BITS)
            below = self.cursor - page.base
            page.fill(0, below, RecordState.ARCHIVED)
            page.unsettled -= below
        return page

    def extend(self, page: WindowPage, j: int, state: RecordState) -> None:
        """Give a state to the offsets from the cursor up to index `j` of its page; move the cursor."""
        i = self.cursor - page.base
        page.fill(i, j, state)
        self.cursor = page.base + j
        self.recount(page, RecordState.UNTOUCHED, state, j - i)

    def extend_settled(self, end: int, state: RecordState, max_pages: int) -> None:
        """Move the cursor to `end` over settled offsets, or to where a page would be one too many.

        A page that is wholly within the interval is not made.
        """
        while self.cursor < end:
            if self.cursor % PAGE_SIZE == 0 and end - self.cursor >= PAGE_SIZE:
                self.cursor = end & -PAGE_SIZE
                continue
            if self.is_full(max_pages):
                break
            page = self.cursor_page()
            self.extend(page, min(PAGE_SIZE, end - page.base), state)

    def archive_new(self, end: int, max_pages: int) -> bool:
        """Archive the offsets from the cursor up to `end`. False: there are `max_pages` pages."""
        first = self.cursor
        self.extend_settled(end, RecordState.ARCHIVED, max_pages)
        if self.cursor > first:
            self.changes.add_batch(StateBatch(first, self.cursor, RecordState.ARCHIVED, 0))
        return self.cursor == end

    # The start ------------------------------------------------------------------------------------

    def advance_start(self) -> None:
        """Move the start over settled offsets."""
        page = self.pages.get(self.start >> PAGE_BITS)
        if page is not None and page.states[self.start - page.base] not in FINAL_STATES:
            return
        page = next(iter(self.pages.values()), None)
        if page is None:
            self.start = self.cursor
        else:
            i = max(0, self.start - page.base)
            self.start = page.base + PAGE_SIZE - len(page.states[i:].lstrip(FINAL_STATES))

    def forget_below(self, page: WindowPage, i: int, j: int) -> int:
        """Archive whatever is not settled. Return how many offsets that was. No lock covers them."""
        forgotten = 0
        part = page.states[i:j]
        page.fill(i, j, RecordState.ARCHIVED)
        for state in UNSETTLED:
            count = part.count(state)
            if count:
                forgotten += count
                self.recount(page, state, RecordState.ARCHIVED, count)
        return forgotten

    def restart_at(self, offset: int) -> None:
        """Move start and cursor to an offset at or past the cursor. All below it is settled."""
        for page in list(self.pages.values()):
            self._drop(page)
        self.start = self.cursor = offset


UNSETTLED: Final = (
    RecordState.AVAILABLE,
    RecordState.ACQUIRED,
    RecordState.ARCHIVING,
    RecordState.DELAYED,
)
