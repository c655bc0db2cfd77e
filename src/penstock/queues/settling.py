"""Change the states of acquired offsets, and collect what the caller must do about it."""

from typing import Final

from penstock.queues.locks import AcquisitionLock, LockTable, Owner
from penstock.queues.page_table import PageTable
from penstock.queues.record_states import (
    RELEASING,
    AckType,
    Delivery,
    RecordState,
    run_end,
)
from penstock.queues.retries import RetryQueue
from penstock.queues.window_page import WindowPage
from penstock.queues.window_results import Settled
from penstock.queues.window_settings import NEVER_MS, WindowSettings

_ACQUIRED: Final = int(RecordState.ACQUIRED)
_READY: Final = (RecordState.AVAILABLE, RecordState.DELAYED)


class SettleWork:
    """One call of a window's operation. Indexes `i` and `j` are relative to the page."""

    __slots__ = (
        "_archiving",
        "_locks",
        "_now_ms",
        "_retries",
        "_settings",
        "_table",
        "count",
        "must_persist",
    )

    def __init__(
        self,
        table: PageTable,
        locks: LockTable,
        retries: RetryQueue,
        settings: WindowSettings,
        now_ms: int,
    ) -> None:
        self._table = table
        self._locks = locks
        self._retries = retries
        self._settings = settings
        self._now_ms = now_ms
        self._archiving: list[Delivery] = []
        self.count = 0
        self.must_persist = False  # the answer waits for what was changed, now or before

    def finish(self) -> Settled:
        self._table.advance_start()
        number = self._table.changes.newest_number if self.must_persist else None
        return Settled(self.count, tuple(self._archiving), number)

    def settle(self, page: WindowPage, i: int, j: int, ack_type: AckType, owner: Owner) -> None:
        """Settle acquired offsets that the owner holds."""
        first, end = page.base + i, page.base + j
        if ack_type is AckType.ACCEPT:
            self._locks.settle(page, first, end)
            self.change(page, i, j, RecordState.ACQUIRED, RecordState.ACKNOWLEDGED)
        elif ack_type in RELEASING:
            self._locks.cut(page, first, end)
            self._release(page, i, j, ack_type)
        elif ack_type is AckType.RENEW:
            self._locks.cut(page, first, end)
            self.lock(page, first, end, owner)
            self.count += j - i
        else:
            self._locks.settle(page, first, end)
            archived = RecordState.ARCHIVED if ack_type is AckType.GAP else self._archived
            self.change(page, i, j, RecordState.ACQUIRED, archived)

    def lock(self, page: WindowPage, first: int, end: int, owner: Owner) -> None:
        duration_ms = self._settings.lock_duration_ms
        self._locks.add(
            page,
            first,
            end,
            owner=owner,
            since_ms=self._now_ms,
            deadline_ms=NEVER_MS if duration_ms is None else self._now_ms + duration_ms,
        )

    @property
    def _archived(self) -> RecordState:
        """The state of a record that is not delivered again."""
        return RecordState.ARCHIVING if self._settings.has_dead_letters else RecordState.ARCHIVED

    def change(self, page: WindowPage, i: int, j: int, old: RecordState, new: RecordState) -> None:
        self.count += j - i
        self.must_persist = True
        if new is RecordState.ARCHIVING:
            page.add_deliveries(i, j, self._archiving)
        self._table.change(page, i, j, old, new)

    def release_lock(self, lock: AcquisitionLock, ack_type: AckType) -> None:
        """Release what is left of a lock."""
        page = lock.page
        self._locks.remove(lock)
        i, end = lock.first - page.base, lock.end - page.base
        while (i := page.states.find(_ACQUIRED, i, end)) >= 0:
            j = run_end(page.states, i, end)
            self._release(page, i, j, ack_type)
            i = j

    def _release(self, page: WindowPage, i: int, j: int, ack_type: AckType) -> None:
        """Release acquired offsets that are in no lock any more."""
        if ack_type is AckType.RETURN:
            page.uncount_acquisition(i, j)
        elif ack_type is AckType.FAIL and self._settings.counts_failures:
            page.count_failure(i, j)
        while i < j:
            end = page.counts_end(i, j)
            self._release_run(page, i, end, ack_type)
            i = end

    def _release_run(self, page: WindowPage, i: int, j: int, ack_type: AckType) -> None:
        """Release offsets with the same counts."""
        settings = self._settings
        count = page.counts_at(i)[settings.counts_failures]
        limit = settings.delivery_limit
        if limit is not None and count >= limit and ack_type is not AckType.RETURN:
            new = self._archived
        elif settings.retry_delay is not None and ack_type in settings.retry_delay.ack_types:
            due_ms = self._now_ms + settings.retry_delay.delay_ms(count)
            self._retries.add(due_ms, page.base + i, page.base + j)
            new = RecordState.DELAYED
        else:
            new = RecordState.AVAILABLE
        self.change(page, i, j, RecordState.ACQUIRED, new)

    def skip(self, page: WindowPage, i: int, j: int) -> None:
        """Archive the available and delayed offsets."""
        while i < j:
            end = run_end(page.states, i, j)
            state = RecordState(page.states[i])
            if state in _READY:
                self.change(page, i, end, state, RecordState.ARCHIVED)
            i = end
