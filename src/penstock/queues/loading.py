"""Build the pages of a window from its persisted state."""

from typing import Final

from penstock.queues.changes import ChangeTracker
from penstock.queues.page_table import UNLIMITED, PageTable
from penstock.queues.record_states import FINAL_STATES, RecordState, StateBatch
from penstock.queues.window_page import PAGE_SIZE
from penstock.queues.window_settings import MAX_COUNT
from penstock.queues.window_state import DamagedState, WindowState

MAX_UNSETTLED_OFFSETS: Final = 1 << 26


def load_table(state: WindowState, log_end: int, changes: ChangeTracker) -> PageTable:
    """Return the pages of a state. Offsets that the log does not have (any more) are forgotten.

    The log can end before them after an unclean election; its next records are others.
    """
    _check_size(state)
    table = PageTable(min(state.start_offset, log_end), changes)
    for batch in state.batches:
        if batch.end > log_end:
            first = max(batch.first, log_end)
            changes.add_batch(StateBatch(first, batch.end, RecordState.AVAILABLE, 0))
        if batch.first < log_end:
            _extend(table, batch.first, RecordState.AVAILABLE, 0, counts=changes.counts_failures)
            _extend(
                table,
                min(batch.end, log_end),
                batch.state,
                batch.delivery_count,
                counts=changes.counts_failures,
            )
    table.advance_start()
    return table


def _check_size(state: WindowState) -> None:
    """Reject a state whose pages would need absurd memory."""
    if not state.batches:
        return
    end = state.batches[-1].end
    settled = sum(batch.end - batch.first for batch in state.batches if batch.state in FINAL_STATES)
    unsettled = end - state.start_offset - settled
    if unsettled > MAX_UNSETTLED_OFFSETS:
        raise DamagedState(
            f"{unsettled} of the offsets {state.start_offset} to {end} are not settled; "
            f"at most {MAX_UNSETTLED_OFFSETS} can be"
        )


def _extend(table: PageTable, end: int, state: RecordState, count: int, *, counts: bool) -> None:
    """Move the cursor to `end`. Offsets that are not settled get their counts."""
    if state in FINAL_STATES:
        table.extend_settled(end, state, UNLIMITED)
        return
    if state is RecordState.ACQUIRED:
        state = RecordState.AVAILABLE
    count = min(count, MAX_COUNT)
    while table.cursor < end:
        page = table.cursor_page()
        i, j = table.cursor - page.base, min(PAGE_SIZE, end - page.base)
        page.set_acquired_counts(i, j, count)
        if counts:
            page.set_failed_counts(i, j, count)
        table.extend(page, j, state)
