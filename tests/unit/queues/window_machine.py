"""Random histories of a window beside its plain form: same results, same states, invariants after each step."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.model.errors import BrokerError
from penstock.queues import acquiring, loading, page_table, window, window_page
from penstock.queues.record_states import AckType, Delivery, RecordState
from penstock.queues.window import Window
from penstock.queues.window_results import Settled, Settlement
from penstock.queues.window_settings import RetryDelay, WindowSettings
from penstock.queues.window_state import StateUpdate, WindowState
from tests.unit.queues.plain_window import PlainWindow, Stored

OWNERS = ("a", "b", "c")
LARGE = 10**9
FINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)

SETTINGS = (
    WindowSettings(lock_duration_ms=20, delivery_limit=2, max_locks=40, has_dead_letters=True),
    WindowSettings(lock_duration_ms=30, delivery_limit=3, max_locks=1000, max_locks_per_owner=9),
    WindowSettings(
        lock_duration_ms=50,
        max_window_offsets=64,
        max_uncommitted_offsets=30,
        has_dead_letters=True,
    ),
    WindowSettings(
        lock_duration_ms=None,
        delivery_limit=2,
        counts_failures=True,
        has_dead_letters=True,
        max_locks=1000,
        retry_delay=RetryDelay(10, 25),
    ),
    WindowSettings(
        lock_duration_ms=20,
        delivery_limit=None,
        retry_delay=RetryDelay(5, 40, frozenset({AckType.FAIL})),
    ),
)
sizes = st.one_of(st.integers(1, 12), st.sampled_from([16, 17, 40, 100]))
offsets_apart = st.integers(0, 40)
ack_types = st.sampled_from(AckType)


def small_pages(bits: int) -> ExitStack:
    """Pages of a few offsets: many boundaries in short histories."""
    stack = ExitStack()
    for module in (acquiring, loading, page_table, window, window_page):
        for name, value in (("PAGE_SIZE", 1 << bits), ("PAGE_BITS", bits)):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, value))
    fill = {state: bytes((state,)) * (1 << bits) for state in RecordState}
    stack.enter_context(mock.patch.object(window_page, "FILL", fill))
    stack.enter_context(mock.patch.object(window_page, "_ONCE", b"\x01" * (1 << bits)))
    return stack


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or which error it raises."""
    try:
        return call()
    except BrokerError as error:
        return error.code
    except ValueError:
        return ValueError


def joined(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Deliveries in offset order; locks are released in the order in which they were made."""
    result: list[Delivery] = []
    for delivery in sorted(deliveries):
        if result and result[-1].end == delivery.first and result[-1][2:] == delivery[2:]:
            delivery = Delivery(result.pop().first, *delivery[1:])
        result.append(delivery)
    return result


class WindowMachine(RuleBasedStateMachine):
    page_bits = 4

    def __init__(self) -> None:
        super().__init__()
        self.patches = small_pages(self.page_bits)
        self.now_ms = 0
        self.begin(WindowSettings(), 0)

    def teardown(self) -> None:
        self.patches.close()

    @initialize(settings=st.sampled_from(SETTINGS), start=st.sampled_from([0, 5, 16, 1000]))
    def begin(self, settings: WindowSettings, start: int) -> None:
        self.settings = settings
        state = WindowState(state_epoch=1, leader_epoch=1, start_offset=start, cursor=start)
        self.log_start, self.log_end = 0, start + 20
        self.leader_epoch = 1
        self.window = Window.load(
            settings, state, leader_epoch=1, log_start=0, log_end=self.log_end
        )
        self.plain = PlainWindow(settings, start, 1 << self.page_bits)
        self.committed = state  # what a new leader reads
        self.committed_plain: Stored = {}
        self.in_flight: list[tuple[StateUpdate, Stored]] = []
        self.answered: set[int] = set()  # accepted, and the answer was given
        self.waiting: list[tuple[int, set[int]]] = []  # accepted, to be answered after an update

    # The world ------------------------------------------------------------------------------------

    @rule(count=sizes)
    def produce(self, count: int) -> None:
        self.log_end += count

    @rule(ms=st.sampled_from([1, 7, 20, 60]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    # Acquire --------------------------------------------------------------------------------------

    @rule(
        owner=st.sampled_from(OWNERS),
        limit=sizes,
        behind=st.sampled_from([0, 0, 3, 25]),
        gaps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40)), max_size=2),
        batches=st.lists(st.integers(1, 20), max_size=3),
    )
    def acquire(
        self,
        owner: str,
        limit: int,
        behind: int,
        gaps: list[tuple[int, int]],
        batches: list[int],
    ) -> None:
        readable = max(0, self.log_end - behind)
        position = self.window.cursor
        intervals: list[tuple[int, int]] = []
        for apart, size in gaps:
            intervals.append((position + apart, position + apart + size))
            position = intervals[-1][1] + 1
        ends: list[int] = []
        position = self.window.cursor
        for size in batches:
            position += size
            ends.append(position)
        found = self.window.acquire(
            owner, limit, readable, self.now_ms, gaps=intervals, batch_ends=ends
        )
        expected = self.plain.acquire(owner, limit, readable, self.now_ms, intervals, ends)
        assert (list(found.deliveries), found.blocked) == expected
        for delivery in found.deliveries:
            assert delivery.end <= readable, "only readable offsets are delivered"
            resurrected = self.answered.intersection(range(delivery.first, delivery.end))
            assert not resurrected, f"offsets {resurrected} were acknowledged"

    # Settle ---------------------------------------------------------------------------------------

    @rule(data=st.data(), owner=st.sampled_from(OWNERS), count=st.integers(1, 3))
    def settle_held(self, data: st.DataObject, owner: str, count: int) -> None:
        held = self.plain.held(owner)
        if not held:
            return
        settlements: list[Settlement] = []
        known_end = 0
        for _ in range(count):
            rest = [offset for offset in held if offset >= known_end]
            if not rest:
                break
            first = data.draw(st.sampled_from(rest), "first")
            longest = next(n for n in range(LARGE) if first + n not in held)
            end = first + data.draw(st.integers(1, longest), "length")
            settlements.append(Settlement(first, end, data.draw(ack_types, "ack type")))
            known_end = end
        self.settle(owner, settlements)

    @rule(
        owner=st.sampled_from(OWNERS),
        limit=sizes,
        part=st.sampled_from([1, 1, 2, 3]),
        ack_type=st.sampled_from([AckType.REJECT, AckType.FAIL, AckType.RELEASE]),
    )
    def deliver_in_vain(self, owner: str, limit: int, part: int, ack_type: AckType) -> None:
        """Records come back, often more than once."""
        self.acquire(owner, limit, 0, [], [])
        held = self.plain.held(owner)
        chosen = [offset for offset in held if offset % part == 0]
        self.settle(owner, [Settlement(offset, offset + 1, ack_type) for offset in chosen])

    @rule(data=st.data(), owner=st.sampled_from(OWNERS), ack_type=ack_types)
    def settle_of_another(self, data: st.DataObject, owner: str, ack_type: AckType) -> None:
        others = sorted(o for other in OWNERS if other != owner for o in self.plain.held(other))
        if others:
            first = data.draw(st.sampled_from(others))
            self.settle(owner, [Settlement(first, first + 1, ack_type)])

    @rule(owner=st.sampled_from(OWNERS), other=st.sampled_from(OWNERS))
    def acquire_all(self, owner: str, other: str) -> None:
        """What one owner leaves, another gets in the same moment."""
        self.produce(40)
        self.acquire(owner, 100, 0, [], [])
        self.leave(owner, AckType.RELEASE)
        self.acquire(other, 100, 0, [], [])

    @rule()
    def let_locks_expire(self) -> None:
        self.time_passes(60)
        self.expire()

    @rule(
        owner=st.sampled_from(OWNERS),
        parts=st.lists(
            st.tuples(st.integers(-40, 60), st.integers(-1, 30)), min_size=1, max_size=2
        ),
        ack_type=ack_types,
    )
    def settle_anything(self, owner: str, parts: list[tuple[int, int]], ack_type: AckType) -> None:
        start = self.window.start_offset
        self.settle(owner, [Settlement(start + a, start + a + n, ack_type) for a, n in parts])

    def settle(self, owner: str, settlements: list[Settlement]) -> None:
        start = self.window.start_offset
        found = outcome(lambda: self.window.settle(owner, settlements, self.now_ms))
        expected = outcome(lambda: self.plain.settle(owner, settlements, self.now_ms))
        if self.compare(found, expected, in_order=True):
            accepted = {
                offset
                for first, end, ack_type in settlements
                if ack_type is AckType.ACCEPT
                for offset in range(max(first, start), end)
            }
            self.answer_after(found.update_number, accepted)

    def answer_after(self, number: int | None, accepted: set[int]) -> None:
        if number is None:
            assert not accepted, "the answer to an acknowledgement waits for the state log"
        else:
            self.waiting.append((number, accepted))

    def compare(self, found: Any, expected: Any, *, in_order: bool = False) -> bool:
        """Whether the operation was done."""
        if not isinstance(found, Settled):
            assert found == expected
            return False
        assert isinstance(expected, tuple), f"done instead of {expected}"
        count, archiving, is_changed = expected
        assert found.offset_count == count
        assert list(found.archiving) == archiving or not in_order
        assert joined(found.archiving) == archiving
        known = bool(self.plain.pending or self.in_flight)
        assert (found.update_number is not None) == (is_changed and known)
        return True

    @rule()
    def expire(self) -> None:
        self.compare(self.window.expire(self.now_ms), self.plain.expire(self.now_ms))

    @rule(
        owner=st.sampled_from(OWNERS),
        ack_type=st.sampled_from([AckType.RELEASE, AckType.FAIL, AckType.RETURN]),
    )
    def leave(self, owner: str, ack_type: AckType) -> None:
        found = self.window.leave(owner, self.now_ms, ack_type)
        self.compare(found, self.plain.leave(owner, self.now_ms, ack_type))
        assert self.window.held_by(owner) == 0

    @rule(data=st.data())
    @precondition(lambda self: self.plain.count(RecordState.ARCHIVING))
    def finish_archiving(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.window.archiving()))
        end = data.draw(st.integers(chosen.first + 1, chosen.end + 1), "end")
        found = outcome(lambda: self.window.finish_archiving([(chosen.first, end)]))
        expected = outcome(lambda: self.plain.finish_archiving([(chosen.first, end)]))
        assert (found.offset_count if isinstance(found, Settled) else found) == expected

    @rule(apart=st.integers(-3, 60), size=st.sampled_from([-1, 0, 1, 5, 16, 33, 80]))
    def skip(self, apart: int, size: int) -> None:
        first = self.window.start_offset + apart
        end = min(first + size, self.log_end)
        found = outcome(lambda: self.window.skip([(first, end)]))
        expected = outcome(lambda: self.plain.skip(first, end))
        assert (found.offset_count if isinstance(found, Settled) else found) == expected

    @rule(apart=st.integers(-3, 60))
    def trim(self, apart: int) -> None:
        log_start = min(self.window.start_offset + apart, self.log_end)
        found = self.window.trim(log_start)
        self.log_start = max(self.log_start, log_start)
        assert found.offset_count == self.plain.trim(log_start)

    # Persist --------------------------------------------------------------------------------------

    @rule()
    def write_update(self) -> None:
        update = self.window.update()
        stored = self.plain.update()
        assert (update is None) == (stored is None)
        if update is not None and stored is not None:
            assert all(batch.first >= update.start_offset for batch in update.batches)
            self.in_flight.append((update, stored))

    @rule(count=st.integers(1, 3))
    @precondition(lambda self: self.in_flight)
    def commit(self, count: int) -> None:
        for update, stored in self.in_flight[:count]:
            self.store(update, stored)
            self.window.committed(update.number)
            del self.plain.updates[0]
            for number, accepted in self.waiting:
                if number <= update.number:
                    self.answered |= accepted
            self.waiting = [wait for wait in self.waiting if wait[0] > update.number]
        del self.in_flight[:count]

    def store(self, update: StateUpdate, stored: Stored) -> None:
        self.committed = self.committed.apply(update)
        self.committed_plain = stored
        assert self.committed.start_offset == update.start_offset
        expected = {o: v for o, v in stored.items() if v != (RecordState.AVAILABLE, 0)}
        assert expanded(self.committed) == expected

    @rule()
    def write_and_commit(self) -> None:
        self.write_update()
        self.commit(len(self.in_flight))

    @rule()
    def hand_over(self) -> None:
        """A new leader reads all that the old one knew."""
        self.write_and_commit()
        self.take_over(0, 0)

    @rule(written=st.integers(0, 3), lost=st.sampled_from([0, 0, 0, 15]))
    def take_over(self, written: int, lost: int) -> None:
        """Another leader reads the state. It may have more than the old leader was told."""
        for update, stored in self.in_flight[:written]:
            self.store(update, stored)
        self.in_flight, self.waiting = [], []
        state, self.leader_epoch = self.committed, self.leader_epoch + 1
        if lost:  # an unclean election: the next records at these offsets are others
            self.log_end = max(self.log_start, self.log_end - lost)
            self.answered = {offset for offset in self.answered if offset < self.log_end}
        self.window = Window.load(
            self.settings,
            state,
            leader_epoch=self.leader_epoch,
            log_start=self.log_start,
            log_end=self.log_end,
        )
        self.plain = PlainWindow.load(
            self.settings,
            1 << self.page_bits,
            state.start_offset,
            self.committed_plain,
            self.log_end,
        )
        self.plain.pending = sum(batch.end > self.log_end for batch in state.batches)
        self.plain.trim(self.log_start)

    @rule()
    def reload_snapshot(self) -> None:
        """A snapshot holds what a load needs: all states but the locks."""
        state = self.window.snapshot()
        state.check()
        assert state.start_offset == self.plain.start
        for offset, (stored, count) in expanded(state).items():
            record = self.plain.records[offset]
            expected = self.plain.persisted(record)
            assert (stored, count) == expected or (stored in FINAL and record.is_settled)

    # Rules that hold after each step ---------------------------------------------------------------

    @invariant()
    def same_as_plain(self) -> None:
        assert (self.window.start_offset, self.window.cursor) == (
            self.plain.start,
            self.plain.cursor,
        )
        table = self.window._table
        for offset in range(self.plain.start, self.plain.cursor):
            record = self.plain.records[offset]
            page = table.pages.get(offset >> self.page_bits)
            if page is None:
                assert record.is_settled, f"offset {offset} has no page"
                continue
            i = offset - page.base
            assert page.states[i] == record.state, f"offset {offset}"
            if not record.is_settled:
                assert page.counts_at(i) == (record.acquired, record.failed), f"offset {offset}"
        assert self.window.uncommitted_count == self.plain.uncommitted

    @invariant()
    def counters_are_sums(self) -> None:
        plain = self.plain
        assert self.window.available_count == plain.count(RecordState.AVAILABLE)
        assert self.window.acquired_count == plain.count(RecordState.ACQUIRED)
        assert self.window.archiving_count == plain.count(RecordState.ARCHIVING)
        assert self.window.delayed_count == plain.count(RecordState.DELAYED)
        settled = sum(record.is_settled for record in plain.records.values())
        assert self.window.settled_count == settled

    @invariant()
    def pages_hold_what_is_unsettled(self) -> None:
        table = self.window._table
        numbers = list(table.pages)
        assert numbers == sorted(numbers), "pages are in offset order"
        for page in table.pages.values():
            left = sum(state not in FINAL for state in page.states)
            assert page.unsettled == left > 0, f"page {page.base}"
            assert page.base + (1 << self.page_bits) > table.start
            touched = [i for i, s in enumerate(page.states) if s != RecordState.UNTOUCHED]
            assert not touched or page.base + touched[-1] < table.cursor
            has_available = RecordState.AVAILABLE in page.states
            assert page.is_ready or not has_available, f"page {page.base} is not found"

    @invariant()
    def an_acquired_offset_is_in_one_lock(self) -> None:
        window = self.window
        held: dict[int, object] = {}
        owner_counts: dict[object, int] = {}
        for page in window._table.pages.values():
            assert page.lock_firsts == [lock.first for lock in page.locks]
            for left, right in pairwise(page.locks):
                assert left.end <= right.first, "locks overlap"
            for lock in page.locks:
                states = page.states[lock.first - page.base : lock.end - page.base]
                assert lock.count == states.count(RecordState.ACQUIRED) > 0
                assert RecordState.AVAILABLE not in states
                owner_counts[lock.owner] = owner_counts.get(lock.owner, 0) + lock.count
                for offset in range(lock.first, lock.end):
                    if page.states[offset - page.base] == RecordState.ACQUIRED:
                        held[offset] = lock.owner
                        record = self.plain.records[offset]
                        assert lock.deadline_ms == record.deadline_ms, f"offset {offset}"
                        assert lock.since_ms == record.since_ms, f"offset {offset}"
        plain_held = {offset: owner for owner in OWNERS for offset in self.plain.held(owner)}
        assert held == plain_held
        assert owner_counts == {o: t.count for o, t in window._locks.owners.items()}
        assert sum(owner_counts.values()) == window.acquired_count

    @invariant()
    def limits_hold(self) -> None:
        assert self.window.acquired_count <= self.settings.max_locks
        if self.settings.max_locks_per_owner is not None:
            for owner in OWNERS:
                assert self.window.held_by(owner) <= self.settings.max_locks_per_owner


def expanded(state: WindowState) -> Stored:
    return {
        offset: (batch.state, batch.delivery_count)
        for batch in state.batches
        for offset in range(batch.first, batch.end)
    }


class LargePageMachine(WindowMachine):
    page_bits = 10
