"""The histories of a window find each of these bugs."""

from heapq import heappop
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.queues import loading, window, window_state
from penstock.queues.acquiring import Acquisition
from penstock.queues.changes import ChangeTracker
from penstock.queues.locks import AcquisitionLock, LockTable, Owner
from penstock.queues.page_table import PageTable
from penstock.queues.record_states import AckType, RecordState, StateBatch
from penstock.queues.retries import RetryQueue
from penstock.queues.settling import SettleWork
from penstock.queues.window_page import WindowPage
from penstock.queues.window_state import WindowState
from tests.unit.queues.window_machine import LARGE, WindowMachine

SEARCH = settings(
    max_examples=1500,  # the first that breaks a rule ends the search
    stateful_step_count=60,
    deadline=None,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

_is_full = PageTable.is_full
_take_available = Acquisition.take_available
_take_new = Acquisition.take_new
_release_run = SettleWork._release_run
_add_unsettled = WindowPage._add_unsettled
_load_table = loading.load_table
_extend = loading._extend
_override = window_state._override
_extend_settled = PageTable.extend_settled


def do_nothing(*_: Any, **__: Any) -> int:
    return 0


def an_expired_lock_comes_twice(self: LockTable, now_ms: int) -> list[AcquisitionLock]:
    found: list[AcquisitionLock] = []
    while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
        heappop(self._deadlines)
        found += self._by_deadline[deadline_ms]
    return found


def page_dropped_without_changes(self: ChangeTracker, page: WindowPage) -> None:
    self._dirty_pages.pop(page.base, None)


def has_changes_but_for_the_start(self: ChangeTracker, _: int) -> bool:
    return bool(self._dirty_pages or self._batches)


def release_once_more(
    self: SettleWork, page: WindowPage, i: int, j: int, ack_type: AckType
) -> None:
    if page.counts_at(i)[0] == self._settings.delivery_limit:
        ack_type = AckType.RETURN
    _release_run(self, page, i, j, ack_type)


def take_new_with_gaps(
    self: Acquisition, count: int, readable: int, _: object, max_pages: int
) -> int:
    return _take_new(self, count, readable, (), max_pages)


def take_uncommitted(self: Acquisition, count: int, _: int) -> int:
    return _take_available(self, count, LARGE)


def last_available(self: PageTable, readable: int) -> tuple[WindowPage, int] | None:
    for page in reversed(self.pages.values()):
        i = page.states.rfind(RecordState.AVAILABLE)
        if i >= 0 and page.base + i < readable:
            return page, i
    return None


def skip_acquired(self: SettleWork, page: WindowPage, i: int, j: int) -> None:
    for index in range(i, j):
        state = RecordState(page.states[index])
        if state in (RecordState.AVAILABLE, RecordState.DELAYED, RecordState.ARCHIVING):
            self.change(page, index, index + 1, state, RecordState.ARCHIVED)


def load_without_dead_letters(
    table: PageTable, end: int, state: RecordState, count: int, *, counts: bool
) -> None:
    is_archiving = state is RecordState.ARCHIVING
    _extend(table, end, RecordState.ARCHIVED if is_archiving else state, count, counts=counts)


def load_past_the_log(state: WindowState, _: int, changes: ChangeTracker) -> PageTable:
    return _load_table(state, LARGE, changes)


def persist_what_is_in_flight(
    self: WindowPage,
    i: int,
    j: int,
    _: RecordState,
    counts_failures: bool,
    batches: list[StateBatch],
) -> None:
    _add_unsettled(self, i, j, RecordState.AVAILABLE, counts_failures, batches)


def take_all_delayed(self: RetryQueue, _: int) -> list[tuple[int, int]]:
    due = [entry[1:] for entry in self._heap]
    self._heap.clear()
    return due


def renew_nothing(self: SettleWork, page: WindowPage, first: int, end: int, owner: Owner) -> None:
    self._locks.add(
        page, first, end, owner=owner, since_ms=self._now_ms, deadline_ms=self._now_ms + 1
    )


def one_page_more(self: PageTable, max_pages: int) -> bool:
    return _is_full(self, max_pages + 1)


def older_update_wins(old: tuple[StateBatch, ...], new: tuple[StateBatch, ...]) -> list[StateBatch]:
    return _override(new, old)


def settle_like_the_first(self: LockTable, page: WindowPage, first: int, end: int) -> None:
    lock = page.locks[0]
    self._uncount(lock, end - first)
    if lock.count <= 0:
        self._remove(lock)


def archive_to_the_page_end(self: PageTable, end: int, state: RecordState, max_pages: int) -> None:
    if state is RecordState.ARCHIVED and end % 16 == 1:
        end += 1
    _extend_settled(self, end, state, max_pages)


PLANTED: dict[str, tuple[object, str, Any]] = {
    "a release keeps its lock": (LockTable, "cut", LockTable.settle),
    "a settle takes the wrong lock": (LockTable, "settle", settle_like_the_first),
    "an expired lock comes twice": (LockTable, "take_expired", an_expired_lock_comes_twice),
    "a foreign member may settle": (LockTable, "first_foreign", lambda *_: None),
    "a trim keeps locks": (LockTable, "drop", do_nothing),
    "a delivery is not counted": (WindowPage, "count_acquisition", do_nothing),
    "a returned delivery is counted": (WindowPage, "uncount_acquisition", do_nothing),
    "a failure is not counted": (WindowPage, "count_failure", do_nothing),
    "a delivery in flight is persisted": (WindowPage, "_add_unsettled", persist_what_is_in_flight),
    "a dropped page forgets its changes": (
        ChangeTracker, "page_dropped", page_dropped_without_changes),
    "the start is not persisted": (ChangeTracker, "has_changes", has_changes_but_for_the_start),
    "an acknowledgement is answered at once": (
        ChangeTracker, "newest_number", property(lambda _: None)),
    "a commit frees no room": (ChangeTracker, "committed", do_nothing),
    "one delivery more than the limit": (SettleWork, "_release_run", release_once_more),
    "no dead letters": (SettleWork, "_archived", property(lambda _: RecordState.ARCHIVED)),
    "a skip takes dead letters": (SettleWork, "skip", skip_acquired),
    "a renewed lock expires at once": (SettleWork, "lock", renew_nothing),
    "gaps are delivered": (Acquisition, "take_new", take_new_with_gaps),
    "a batch is not completed": (Acquisition, "complete_batch", do_nothing),
    "an uncommitted record is delivered": (Acquisition, "take_available", take_uncommitted),
    "a released record loses its place": (PageTable, "first_available", last_available),
    "a page more than the limit": (PageTable, "is_full", one_page_more),
    "a record behind a gap is archived": (PageTable, "extend_settled", archive_to_the_page_end),
    "the start stays": (PageTable, "advance_start", do_nothing),
    "a retry does not wait": (RetryQueue, "take_due", take_all_delayed),
    "a retry waits for ever": (RetryQueue, "take_due", lambda *_: []),
    "a new leader forgets dead letters": (loading, "_extend", load_without_dead_letters),
    "a new leader trusts offsets past the log": (window, "load_table", load_past_the_log),
    "an older update wins": (window_state, "_override", older_update_wins),
}  # fmt: skip

BROKEN: tuple[type[BaseException], ...] = (
    AssertionError,
    BaseExceptionGroup,
    IndexError,
    KeyError,
    ValueError,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    owner, attribute, bug = PLANTED[name]
    with mock.patch.object(owner, attribute, bug), pytest.raises(BROKEN):
        run_state_machine_as_test(WindowMachine, settings=SEARCH)
