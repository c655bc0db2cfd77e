"""One acquisition: available offsets below the cursor first, in offset order; then offsets from the cursor on."""

from bisect import bisect_left
from collections.abc import Sequence

from penstock.queues.locks import LockTable, Owner
from penstock.queues.page_table import PageTable
from penstock.queues.record_states import Delivery, RecordState, run_end
from penstock.queues.window_page import PAGE_SIZE, WindowPage


class Acquisition:
    __slots__ = ("_deadline_ms", "_locks", "_now_ms", "_owner", "_table", "deliveries", "is_full")

    def __init__(
        self, table: PageTable, locks: LockTable, owner: Owner, *, now_ms: int, deadline_ms: int
    ) -> None:
        self._table = table
        self._locks = locks
        self._owner = owner
        self._now_ms = now_ms
        self._deadline_ms = deadline_ms
        self.deliveries: list[Delivery] = []
        self.is_full = False  # the cursor needs a page more than there may be

    def take_available(self, count: int, readable: int) -> int:
        """Acquire released offsets. Return how many of `count` are left to acquire."""
        while count > 0:
            found = self._table.first_available(readable)
            if found is None:
                break
            page, i = found
            j = run_end(page.states, i, min(PAGE_SIZE, i + count, readable - page.base))
            page.fill(i, j, RecordState.ACQUIRED)
            page.count_acquisition(i, j)
            self._table.recount(page, RecordState.AVAILABLE, RecordState.ACQUIRED, j - i)
            self._deliver(page, i, j)
            count -= j - i
        return count

    def take_new(
        self, count: int, readable: int, gaps: Sequence[tuple[int, int]], max_pages: int
    ) -> int:
        """Acquire offsets from the cursor on, and archive gaps that it meets. Return what is left."""
        table = self._table
        place = 0
        while table.cursor < readable:
            while place < len(gaps) and gaps[place][1] <= table.cursor:
                place += 1
            gap = gaps[place] if place < len(gaps) else (readable, readable)
            if gap[0] <= table.cursor:
                if not table.archive_new(min(gap[1], readable), max_pages):
                    self.is_full = True
                    break
                continue
            if count <= 0:
                break
            if table.is_full(max_pages):
                self.is_full = True
                break
            page = table.cursor_page()
            i = table.cursor - page.base
            j = min(PAGE_SIZE, i + count, min(gap[0], readable) - page.base)
            table.extend(page, j, RecordState.ACQUIRED)
            self._deliver(page, i, j)
            count -= j - i
        return count

    def complete_batch(
        self,
        room: int,
        readable: int,
        gaps: Sequence[tuple[int, int]],
        batch_ends: Sequence[int],
        max_pages: int,
    ) -> None:
        """Acquire the rest of the record batch at the cursor, as far as there is room."""
        place = bisect_left(batch_ends, self._table.cursor)
        if place < len(batch_ends):
            self.take_new(room, min(readable, batch_ends[place]), gaps, max_pages)

    def _deliver(self, page: WindowPage, i: int, j: int) -> None:
        self._locks.add(
            page,
            page.base + i,
            page.base + j,
            owner=self._owner,
            since_ms=self._now_ms,
            deadline_ms=self._deadline_ms,
        )
        page.add_deliveries(i, j, self.deliveries)
