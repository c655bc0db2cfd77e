"""The rules of a window, one scenario each."""

import tracemalloc

import pytest

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.record_states import AckType, Delivery, RecordState, StateBatch
from penstock.queues.window import Window
from penstock.queues.window_page import PAGE_SIZE
from penstock.queues.window_results import Acquired, Blocked, OldestLock, Settled, Settlement
from penstock.queues.window_settings import RetryDelay, WindowSettings
from penstock.queues.window_state import DamagedState, WindowState

ACCEPT, RELEASE, REJECT = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT
GAP, RENEW, FAIL, RETURN = AckType.GAP, AckType.RENEW, AckType.FAIL, AckType.RETURN
END = 10**12
STATE = WindowState(state_epoch=3, leader_epoch=7, start_offset=0)


def new_window(settings: WindowSettings | None = None, start: int = 0) -> Window:
    state = WindowState(state_epoch=3, leader_epoch=7, start_offset=start)
    settings = settings or WindowSettings()
    return Window.load(settings, state, leader_epoch=7, log_start=0, log_end=END)


def acquire(
    window: Window, limit: int, owner: str = "a", *, readable: int = END, now_ms: int = 0
) -> list[tuple[int, int, int]]:
    """First offset, end offset, delivery count."""
    found = window.acquire(owner, limit, readable, now_ms)
    return [(first, end, acquired) for first, end, acquired, _ in found.deliveries]


def settle(
    window: Window, first: int, end: int, ack_type: AckType, owner: str = "a", now_ms: int = 0
) -> Settled:
    return window.settle(owner, [Settlement(first, end, ack_type)], now_ms)


def refusal(window: Window, *settlements: Settlement, owner: str = "a") -> tuple[ErrorCode, str]:
    """The error of a settle; it must not change anything."""
    before = window.snapshot()
    with pytest.raises(BrokerError) as caught:
        window.settle(owner, settlements, 0)
    assert window.snapshot() == before
    return caught.value.code, str(caught.value)


# Acquire -----------------------------------------------------------------------------------------


def test_offsets_are_acquired_in_order_up_to_the_readable_end() -> None:
    window = new_window(start=100)
    assert acquire(window, 10) == [(100, 110, 1)]
    assert acquire(window, 10, readable=112) == [(110, 112, 1)]
    assert acquire(window, 10, readable=112) == []
    assert (window.start_offset, window.cursor) == (100, 112)


def test_a_range_over_page_boundaries_is_one_delivery() -> None:
    window = new_window(WindowSettings(max_locks=10_000), start=PAGE_SIZE - 3)
    assert acquire(window, 3000) == [(PAGE_SIZE - 3, PAGE_SIZE + 2997, 1)]


def test_a_released_record_keeps_its_place_and_counts_its_deliveries() -> None:
    window = new_window()
    acquire(window, 10)
    settle(window, 4, 6, RELEASE)
    assert acquire(window, 5, "b") == [(4, 6, 2), (10, 13, 1)]


def test_records_below_the_cursor_wait_until_they_are_readable_again() -> None:
    """A new leader's high watermark may be behind what the old leader delivered."""
    batch = StateBatch(5, 10, RecordState.AVAILABLE, 1)
    state = WindowState(state_epoch=0, leader_epoch=0, start_offset=0, batches=(batch,))
    window = Window.load(WindowSettings(), state, leader_epoch=1, log_start=0, log_end=20)
    assert acquire(window, 100, readable=7) == [(0, 5, 1), (5, 7, 2)]
    assert acquire(window, 100, readable=20) == [(7, 10, 2), (10, 20, 1)]


def test_gaps_at_the_cursor_are_archived_and_not_delivered() -> None:
    window = new_window()
    found = window.acquire("a", 10, 30, 0, gaps=[(0, 2), (5, 8), (14, 15)])
    assert [(d.first, d.end) for d in found.deliveries] == [(2, 5), (8, 14), (15, 16)]
    assert window.start_offset == 2
    update = window.update()
    assert update is not None
    assert update.batches == (
        StateBatch(5, 8, RecordState.ARCHIVED, 0),
        StateBatch(14, 15, RecordState.ARCHIVED, 0),
    )


def test_a_gap_at_the_end_is_passed_without_a_record() -> None:
    window = new_window()
    found = window.acquire("a", 10, 30, 0, gaps=[(10, 30)])
    assert found.offset_count == 10
    assert window.cursor == 30
    settle(window, 0, 10, ACCEPT)
    assert window.start_offset == 30


def test_batch_optimised_acquire_completes_the_last_record_batch() -> None:
    window = new_window(WindowSettings(max_locks=30))
    found = window.acquire("a", 10, END, 0, batch_ends=[7, 14, 21])
    assert [(d.first, d.end) for d in found.deliveries] == [(0, 14)]
    found = window.acquire("a", 7, END, 0, batch_ends=[14, 21, 50])
    assert [(d.first, d.end) for d in found.deliveries] == [(14, 21)], "it is complete as it is"
    found = window.acquire("a", 2, END, 0, batch_ends=[50])
    assert found == Acquired((Delivery(21, 30, 1, 0),), None), "max locks is a hard limit"


# Limits ------------------------------------------------------------------------------------------


def test_max_locks_blocks_until_records_are_settled() -> None:
    window = new_window(WindowSettings(max_locks=10))
    assert window.acquire("a", 20, END, 0) == Acquired((Delivery(0, 10, 1, 0),), Blocked.LOCKS)
    assert window.acquire("b", 20, END, 0) == Acquired((), Blocked.LOCKS)
    settle(window, 3, 5, ACCEPT)
    assert acquire(window, 20, "b") == [(10, 12, 1)]


def test_max_locks_per_owner_leaves_the_rest_to_others() -> None:
    window = new_window(WindowSettings(max_locks_per_owner=4))
    assert window.acquire("a", 9, END, 0).blocked is Blocked.OWNER_LOCKS
    assert window.acquire("a", 9, END, 0) == Acquired((), Blocked.OWNER_LOCKS)
    assert acquire(window, 4, "b") == [(4, 8, 1)]


def test_an_acquire_of_nothing_names_no_reason() -> None:
    window = new_window()
    assert window.acquire("a", 0, END, 0) == Acquired((), None)
    assert window.acquire("a", -5, END, 0) == Acquired((), None)
    assert window.acquire("a", 5, 0, 0) == Acquired((), None)


def test_the_cursor_waits_when_the_window_is_full() -> None:
    settings = WindowSettings(max_locks=10**6, max_window_offsets=2 * PAGE_SIZE)
    window = new_window(settings)
    found = window.acquire("a", 5000, END, 0)
    assert (found.offset_count, found.blocked) == (2 * PAGE_SIZE, Blocked.WINDOW)
    settle(window, PAGE_SIZE, 2 * PAGE_SIZE, ACCEPT)  # a page that is wholly settled is dropped
    assert acquire(window, 5000) == [(2 * PAGE_SIZE, 3 * PAGE_SIZE, 1)]
    assert window.acquire("a", 1, END, 0).blocked is Blocked.WINDOW


def test_a_full_window_does_not_pass_gaps_either() -> None:
    window = new_window(WindowSettings(max_locks=10**6, max_window_offsets=PAGE_SIZE))
    gap = (PAGE_SIZE, PAGE_SIZE + 5)
    found = window.acquire("a", 5000, END, 0, gaps=[gap])
    assert (found.offset_count, found.blocked) == (PAGE_SIZE, Blocked.WINDOW)
    assert window.cursor == PAGE_SIZE


def test_acquire_waits_for_the_state_log() -> None:
    window = new_window(WindowSettings(max_uncommitted_offsets=5))
    acquire(window, 10)
    settle(window, 0, 5, ACCEPT)
    assert window.acquire("a", 1, END, 0) == Acquired((), Blocked.UNCOMMITTED)
    update = window.update()
    assert update is not None
    assert window.acquire("a", 1, END, 0).blocked is Blocked.UNCOMMITTED
    window.committed(update.number)
    assert window.uncommitted_count == 0
    assert acquire(window, 1) == [(10, 11, 1)]


def test_acquire_waits_when_too_many_intervals_are_delayed() -> None:
    settings = WindowSettings(max_delayed_intervals=2, retry_delay=RetryDelay(10, 10))
    window = new_window(settings)
    acquire(window, 10)
    settle(window, 0, 1, RELEASE)
    settle(window, 5, 6, RELEASE)
    assert window.acquire("a", 1, END, 9) == Acquired((), Blocked.RETRIES)
    assert acquire(window, 1, now_ms=10) == [(0, 1, 2)]


def test_dead_letters_use_at_most_a_quarter_of_the_locks() -> None:
    window = new_window(WindowSettings(max_locks=8, has_dead_letters=True))
    for _ in range(5):
        for first, end, _count in acquire(window, 8):
            settle(window, first, end, REJECT)
    assert window.archiving_count == 8 + 4 * 6
    assert len(acquire(window, 100)) == 1
    assert window.acquired_count == 6


# Settle ------------------------------------------------------------------------------------------


def test_accepted_records_move_the_start() -> None:
    window = new_window()
    acquire(window, 10)
    settle(window, 5, 10, ACCEPT)
    assert window.start_offset == 0
    settle(window, 0, 5, ACCEPT)
    assert (window.start_offset, window.cursor, window.settled_count) == (10, 10, 0)
    assert window.window_offsets == PAGE_SIZE


def test_one_request_settles_ranges_in_different_ways() -> None:
    window = new_window()
    acquire(window, 10)
    types = [(0, 2, ACCEPT), (2, 3, GAP), (3, 6, RELEASE), (6, 7, RENEW), (8, 10, REJECT)]
    found = window.settle("a", [Settlement(*each) for each in types], 0)
    assert found == Settled(9, (), 1)
    assert (window.start_offset, window.available_count, window.acquired_count) == (3, 3, 2)


def test_a_rejected_record_is_archived() -> None:
    window = new_window()
    acquire(window, 3)
    assert settle(window, 0, 3, REJECT).archiving == ()
    assert window.start_offset == 3


def test_a_record_below_the_start_is_ignored_but_the_answer_waits_for_the_state_log() -> None:
    window = new_window()
    acquire(window, 10)
    assert settle(window, 0, 5, ACCEPT).update_number == 1
    assert settle(window, 0, 5, ACCEPT) == Settled(0, (), 1), "the first answer may be lost"
    update = window.update()
    assert settle(window, 0, 5, ACCEPT) == Settled(0, (), 1)
    assert update is not None
    window.committed(update.number)
    assert settle(window, 0, 5, ACCEPT) == Settled(0, (), None)


def test_a_settle_of_what_another_member_holds_is_rejected() -> None:
    window = new_window()
    acquire(window, 5, "a")
    acquire(window, 5, "b")
    code, text = refusal(window, Settlement(3, 8, ACCEPT))
    assert code is ErrorCode.INVALID_RECORD_STATE
    assert text == "offset 5 is not acquired: another member holds it, not a"


@pytest.mark.parametrize(
    ("first", "end", "reason"),
    [
        (3, 6, "offset 5 is not acquired: it is available"),
        (7, 9, "offset 7 is not acquired: it is acknowledged"),
        (8, 11, "offset 10 is not acquired: the window ends at 10"),
        (50, 60, "offset 50 is not acquired: the window ends at 10"),
        (0, 2**63, "offset 10 is not acquired: the window ends at 10"),
    ],
)
def test_a_settle_of_what_is_not_acquired_is_rejected(first: int, end: int, reason: str) -> None:
    window = new_window()
    acquire(window, 10)
    settle(window, 5, 6, RELEASE)
    settle(window, 7, 8, ACCEPT)
    assert refusal(window, Settlement(first, end, ACCEPT)) == (
        ErrorCode.INVALID_RECORD_STATE,
        reason,
    )


def test_a_settle_of_a_dropped_page_is_rejected() -> None:
    window = new_window(WindowSettings(max_locks=10_000))
    acquire(window, 3 * PAGE_SIZE)
    settle(window, PAGE_SIZE, 2 * PAGE_SIZE, ACCEPT)
    code, text = refusal(window, Settlement(PAGE_SIZE + 5, PAGE_SIZE + 6, ACCEPT))
    assert (code, text) == (
        ErrorCode.INVALID_RECORD_STATE,
        f"offset {PAGE_SIZE + 5} is not acquired: it is settled",
    )


@pytest.mark.parametrize(
    "intervals", [[(-1, 3)], [(3, 3)], [(5, 2)], [(0, 4), (3, 6)], [(4, 6), (0, 2)]]
)
def test_intervals_that_are_not_sorted_are_rejected(intervals: list[tuple[int, int]]) -> None:
    window = new_window()
    acquire(window, 10)
    settlements = [Settlement(first, end, ACCEPT) for first, end in intervals]
    code, text = refusal(window, *settlements)
    assert code is ErrorCode.INVALID_REQUEST
    assert "must be sorted, not empty, and must not overlap" in text


def test_a_settle_changes_nothing_if_its_last_part_is_rejected() -> None:
    window = new_window()
    acquire(window, 10)
    parts = [Settlement(0, 5, ACCEPT), Settlement(6, 8, RELEASE), Settlement(9, 12, ACCEPT)]
    assert refusal(window, *parts)[0] is ErrorCode.INVALID_RECORD_STATE
    assert window.held_by("a") == 10


# Locks -------------------------------------------------------------------------------------------


def test_an_expired_lock_makes_its_records_available() -> None:
    window = new_window(WindowSettings(lock_duration_ms=100))
    acquire(window, 5, now_ms=0)
    acquire(window, 5, now_ms=50)
    assert window.next_wakeup_ms() == 100
    assert window.expire(99).offset_count == 0
    assert window.expire(100).offset_count == 5
    assert window.next_wakeup_ms() == 150
    assert acquire(window, 10, "b", readable=10, now_ms=100) == [(0, 5, 2)]
    assert refusal(window, Settlement(0, 1, ACCEPT))[0] is ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_starts_again_and_is_not_a_delivery() -> None:
    window = new_window(WindowSettings(lock_duration_ms=100))
    acquire(window, 10)
    assert settle(window, 3, 6, RENEW, now_ms=90) == Settled(3, (), None)
    assert window.expire(150).offset_count == 7
    assert window.held_by("a") == 3
    assert window.expire(190).offset_count == 3
    assert acquire(window, 10, now_ms=190) == [(0, 10, 2)]


def test_locks_without_a_duration_never_expire() -> None:
    window = new_window(WindowSettings(lock_duration_ms=None))
    acquire(window, 5)
    assert window.next_wakeup_ms() is None
    assert window.expire(2**63).offset_count == 0


def test_a_shorter_lock_duration_applies_to_new_locks_at_once() -> None:
    window = new_window(WindowSettings(lock_duration_ms=1000))
    acquire(window, 5)
    window.configure(WindowSettings(lock_duration_ms=10))
    acquire(window, 5)
    assert window.expire(10).offset_count == 5
    assert window.oldest_lock() == OldestLock(0, "a", 0)


def test_the_oldest_lock_names_offset_owner_and_time() -> None:
    window = new_window()
    assert window.oldest_lock() is None
    acquire(window, 5, "slow", now_ms=7)
    acquire(window, 5, "quick", now_ms=8)
    settle(window, 0, 2, ACCEPT, "slow")
    assert window.oldest_lock() == OldestLock(2, "slow", 7)
    settle(window, 2, 5, ACCEPT, "slow")
    assert window.oldest_lock() == OldestLock(5, "quick", 8)


def test_an_owner_that_leaves_releases_what_it_holds() -> None:
    window = new_window()
    acquire(window, 5, "a")
    acquire(window, 5, "b")
    settle(window, 1, 2, ACCEPT, "a")
    assert window.leave("a", 0).offset_count == 4
    assert window.leave("a", 0) == Settled(0, (), None)
    assert (window.held_by("a"), window.held_by("b")) == (0, 5)
    assert acquire(window, 9, "c", readable=10) == [(0, 1, 2), (2, 5, 2)]


def test_a_returned_record_was_not_delivered() -> None:
    """Kafka does not count what a closed share session had fetched and not processed."""
    window = new_window(WindowSettings(delivery_limit=2))
    for _ in range(5):
        assert acquire(window, 3, readable=3) == [(0, 3, 1)]
        window.leave("a", 0, RETURN)


def test_an_owner_cannot_leave_by_accepting() -> None:
    with pytest.raises(ValueError, match="ACCEPT does not"):
        new_window().leave("a", 0, ACCEPT)


# Limit, dead letters, retries --------------------------------------------------------------------


def test_a_record_is_archived_when_it_was_delivered_as_often_as_the_limit() -> None:
    window = new_window(WindowSettings(delivery_limit=3))
    for count in (1, 2, 3):
        assert acquire(window, 1) == [(0, 1, count)]
        settle(window, 0, 1, RELEASE)
    assert window.start_offset == 1


def test_a_queue_counts_failures_but_no_returns_to_the_queue() -> None:
    settings = WindowSettings(delivery_limit=2, counts_failures=True, lock_duration_ms=None)
    window = new_window(settings)
    for _ in range(5):
        acquire(window, 1)
        settle(window, 0, 1, RELEASE)
    (delivery,) = window.acquire("a", 1, END, 0).deliveries
    assert delivery == Delivery(0, 1, 6, 0)
    window.leave("a", 0)
    (delivery,) = window.acquire("a", 1, END, 0).deliveries
    assert delivery == Delivery(0, 1, 7, 1)
    settle(window, 0, 1, FAIL)
    assert window.start_offset == 1


def test_counts_stop_at_255() -> None:
    window = new_window(WindowSettings(delivery_limit=None))
    for _ in range(300):
        acquire(window, 1)
        settle(window, 0, 1, RELEASE)
    assert acquire(window, 1) == [(0, 1, 255)]


def test_a_dead_letter_is_written_before_its_record_is_archived() -> None:
    window = new_window(WindowSettings(delivery_limit=2, has_dead_letters=True))
    acquire(window, 5)
    settle(window, 3, 4, RELEASE)
    acquire(window, 1)
    assert settle(window, 3, 4, RELEASE).archiving == (Delivery(3, 4, 2, 0),)
    assert settle(window, 0, 3, REJECT).archiving == (Delivery(0, 3, 1, 0),)
    assert window.start_offset == 0
    assert window.archiving() == (Delivery(0, 3, 1, 0), Delivery(3, 4, 2, 0))
    assert window.finish_archiving([(0, 4)]) == Settled(4, (), 1)
    assert window.start_offset == 4


def test_only_archiving_records_can_be_archived() -> None:
    window = new_window(WindowSettings(has_dead_letters=True))
    acquire(window, 5)
    settle(window, 1, 3, REJECT)
    with pytest.raises(ValueError, match="offsets 1 to 4 are not all archiving"):
        window.finish_archiving([(1, 2), (1, 4)])
    assert window.archiving_count == 2
    window.finish_archiving([(1, 3)])
    with pytest.raises(ValueError, match="are not all archiving"):
        window.finish_archiving([(1, 3)])
    window.trim(5)
    assert window.finish_archiving([(1, 3)]).offset_count == 0, "the log start has passed them"


def test_a_released_record_waits_for_its_retry_delay() -> None:
    window = new_window(WindowSettings(retry_delay=RetryDelay(10, 25)))
    acquire(window, 3, now_ms=100)
    settle(window, 1, 2, RELEASE, now_ms=100)
    assert (window.delayed_count, window.next_wakeup_ms()) == (1, 110)
    assert acquire(window, 9, readable=3, now_ms=109) == []
    assert acquire(window, 9, readable=3, now_ms=110) == [(1, 2, 2)]
    settle(window, 1, 2, RELEASE, now_ms=110)
    assert window.next_wakeup_ms() == 130, "twice the delay"
    window.acquire("a", 9, 3, 130)
    settle(window, 1, 2, RELEASE, now_ms=130)
    assert window.next_wakeup_ms() == 155, "the largest delay"


# Skip and trim -----------------------------------------------------------------------------------


def test_a_skip_archives_what_nobody_has() -> None:
    window = new_window()
    acquire(window, 10)
    settle(window, 2, 5, RELEASE)
    assert window.skip([(0, 20)]).offset_count == 3 + 10
    assert (window.available_count, window.held_by("a"), window.cursor) == (0, 7, 20)
    settle(window, 0, 2, ACCEPT)
    settle(window, 5, 10, ACCEPT)
    assert window.start_offset == 20


def test_a_purge_of_a_billion_records_costs_no_memory() -> None:
    window = new_window()
    acquire(window, 10)
    assert window.skip([(0, 10**9 + 5)]).offset_count == 10**9 - 5
    assert window.cursor == 10**9 + 5
    assert window.window_offsets == 2 * PAGE_SIZE
    assert acquire(window, 3) == [(10**9 + 5, 10**9 + 8, 1)]


@pytest.mark.parametrize("interval", [(-1, 5), (5, 3), (11, 20)])
def test_a_skip_that_leaves_a_hole_is_an_error(interval: tuple[int, int]) -> None:
    window = new_window()
    acquire(window, 10)
    with pytest.raises(ValueError, match="the window ends at 10"):
        window.skip([interval])


def test_a_trim_forgets_what_the_log_no_longer_has() -> None:
    window = new_window()
    acquire(window, 10)
    assert window.trim(6).offset_count == 6
    assert (window.start_offset, window.held_by("a")) == (6, 4)
    assert settle(window, 0, 7, ACCEPT).offset_count == 1
    assert window.trim(3).offset_count == 0
    window.trim(5000)
    assert (window.start_offset, window.cursor, window.held_by("a")) == (5000, 5000, 0)
    assert window.next_wakeup_ms() is None
    assert acquire(window, 2) == [(5000, 5002, 1)]


# Persist and load --------------------------------------------------------------------------------


def test_an_update_has_what_changed_since_the_last_one() -> None:
    window = new_window()
    assert window.update() is None
    acquire(window, 20)
    assert window.update() is None, "an acquisition is not persisted"
    settle(window, 0, 4, ACCEPT)
    settle(window, 6, 8, RELEASE)
    settle(window, 8, 9, REJECT)
    update = window.update()
    assert update is not None
    assert (update.state_epoch, update.leader_epoch, update.start_offset) == (3, 7, 4)
    assert update.batches == (
        StateBatch(6, 8, RecordState.AVAILABLE, 1),
        StateBatch(8, 9, RecordState.ARCHIVED, 0),
    )
    assert (update.settled_count, update.cursor) == (1, 20)
    assert window.update() is None


def test_an_update_is_one_batch_for_each_contiguous_range() -> None:
    window = new_window(WindowSettings(max_locks=10_000))
    acquire(window, 4000)
    for first in range(3000, 1, -100):
        settle(window, first, first + 100, ACCEPT)
    update = window.update()
    assert update is not None
    assert update.batches == (StateBatch(100, 3100, RecordState.ACKNOWLEDGED, 0),)


def test_a_record_that_was_acquired_again_is_persisted_without_that_delivery() -> None:
    window = new_window()
    acquire(window, 5)
    settle(window, 2, 3, RELEASE)
    acquire(window, 1)
    update = window.update()
    assert update is not None
    assert update.batches == (StateBatch(2, 3, RecordState.AVAILABLE, 1),)


def test_a_new_leader_continues_from_the_committed_state() -> None:
    window = new_window(WindowSettings(has_dead_letters=True))
    acquire(window, 20)
    settle(window, 2, 4, ACCEPT)
    settle(window, 5, 6, RELEASE)
    settle(window, 7, 8, REJECT)
    update = window.update()
    assert update is not None
    state = STATE.apply(update)
    settle(window, 9, 10, ACCEPT)  # never committed
    other = Window.load(
        WindowSettings(has_dead_letters=True), state, leader_epoch=8, log_start=1, log_end=50
    )
    assert other.archiving() == (Delivery(7, 8, 1, 0),)
    assert (other.start_offset, other.cursor) == (1, 8)
    assert acquire(other, 9) == [(1, 2, 1), (4, 5, 1), (5, 6, 2), (6, 7, 1), (8, 13, 1)]


def test_a_load_of_a_snapshot_continues_where_the_window_was() -> None:
    window = new_window(WindowSettings(max_locks=10_000))
    acquire(window, 5000)
    settle(window, 1, 4000, ACCEPT)
    settle(window, 4500, 4501, RELEASE)
    state = window.snapshot()
    assert state.batches == (
        StateBatch(0, 1, RecordState.AVAILABLE, 0),
        StateBatch(1, 4000, RecordState.ACKNOWLEDGED, 0),
        StateBatch(4000, 4500, RecordState.AVAILABLE, 0),
        StateBatch(4500, 4501, RecordState.AVAILABLE, 1),
        StateBatch(4501, 5000, RecordState.AVAILABLE, 0),
    )
    other = Window.load(WindowSettings(), state, leader_epoch=7, log_start=0, log_end=END)
    assert (other.start_offset, other.cursor, other.available_count) == (0, 5000, 1001)
    assert other.snapshot() == state


def test_records_that_the_log_lost_are_delivered_again_when_they_are_others() -> None:
    batch = StateBatch(5, 30, RecordState.ACKNOWLEDGED, 0)
    state = WindowState(state_epoch=0, leader_epoch=0, start_offset=2, batches=(batch,))
    window = Window.load(WindowSettings(), state, leader_epoch=1, log_start=0, log_end=10)
    assert window.cursor == 10
    assert acquire(window, 99, readable=12) == [(2, 5, 1), (10, 12, 1)]
    update = window.update()
    assert update is not None
    assert update.batches == (StateBatch(10, 30, RecordState.AVAILABLE, 0),)
    assert state.apply(update).batches == (StateBatch(5, 10, RecordState.ACKNOWLEDGED, 0),)


def test_a_leader_with_an_old_epoch_cannot_load() -> None:
    with pytest.raises(BrokerError, match="this leader has epoch 6") as caught:
        Window.load(WindowSettings(), STATE, leader_epoch=6, log_start=0, log_end=9)
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_a_state_that_needs_absurd_memory_is_damaged() -> None:
    batch = StateBatch(10**15, 10**15 + 1, RecordState.ARCHIVED, 0)
    state = WindowState(state_epoch=0, leader_epoch=0, start_offset=0, batches=(batch,))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedState, match="are not settled; at most"):
            Window.load(WindowSettings(), state, leader_epoch=0, log_start=0, log_end=2 * 10**15)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_state_with_a_huge_settled_range_costs_no_memory() -> None:
    batch = StateBatch(1, 10**15, RecordState.ACKNOWLEDGED, 0)
    state = WindowState(state_epoch=0, leader_epoch=0, start_offset=0, batches=(batch,))
    window = Window.load(WindowSettings(), state, leader_epoch=0, log_start=0, log_end=10**15)
    assert (window.cursor, window.window_offsets) == (10**15, PAGE_SIZE)


# Memory ------------------------------------------------------------------------------------------


def test_one_record_that_is_never_acknowledged_costs_one_page() -> None:
    """A million records follow it."""
    window = new_window()
    acquire(window, 1, "stuck")
    tracemalloc.start()
    try:
        for _ in range(500):
            ((first, end, _count),) = acquire(window, 2000 - 1)
            settle(window, first, end, ACCEPT)
            update = window.update()
            assert update is not None
            window.committed(update.number)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()
    assert window.cursor - window.start_offset > 999_000
    assert window.window_offsets == 2 * PAGE_SIZE
    assert window.snapshot().batches[1].state is RecordState.ACKNOWLEDGED


def test_acquire_and_settle_within_one_millisecond_keep_no_deadlines() -> None:
    """A member that holds nothing leaves nothing behind."""
    window = new_window()
    acquire(window, 1, "stuck")
    for now_ms in range(20_000):
        acquire(window, 1, now_ms=now_ms)
        window.settle("a", [Settlement(now_ms + 1, now_ms + 2, ACCEPT)], now_ms)
        window.committed(window.update().number)  # type: ignore[union-attr]  # always one
    assert len(window._locks._deadlines) < 100


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"delivery_limit": 0}, "delivery limit 0"),
        ({"delivery_limit": 256}, "delivery limit 256: 1 to 255 are allowed"),
        ({"max_locks": 0}, "max locks 0"),
        ({"max_locks_per_owner": -1}, "max locks per owner -1"),
        ({"lock_duration_ms": 0}, "lock duration 0"),
    ],
)
def test_settings_without_sense_are_rejected(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        WindowSettings(**settings)  # type: ignore[arg-type]  # one of the fields


def test_a_retry_delay_needs_an_order() -> None:
    with pytest.raises(ValueError, match="0 < min <= max"):
        RetryDelay(20, 10)


def test_a_window_cannot_change_what_it_counts() -> None:
    with pytest.raises(ValueError, match="which count it persists"):
        new_window().configure(WindowSettings(counts_failures=True))
