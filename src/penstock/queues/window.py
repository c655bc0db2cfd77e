"""The window of one partition for one group: which offsets are available, acquired and settled.

The window does no I/O and has no clock: `now_ms` and the readable end are arguments. A change must be
persisted before it is acknowledged: `Settled.update_number` names the update that the answer waits for.

Invariants: start <= every unsettled offset < cursor; an acquired offset is in exactly one lock; a settled
offset stays settled; the start never moves back.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.acquiring import Acquisition
from penstock.queues.changes import ChangeTracker
from penstock.queues.loading import load_table
from penstock.queues.locks import LockTable, Owner
from penstock.queues.page_table import UNLIMITED, PageTable
from penstock.queues.record_states import (
    RELEASING,
    AckType,
    Delivery,
    RecordState,
    StateBatch,
    merge_adjacent,
    run_end,
)
from penstock.queues.retries import RetryQueue
from penstock.queues.settling import SettleWork
from penstock.queues.window_page import PAGE_BITS, PAGE_SIZE, WindowPage
from penstock.queues.window_results import Acquired, Blocked, OldestLock, Settled, Settlement
from penstock.queues.window_settings import NEVER_MS, WindowSettings
from penstock.queues.window_state import StateUpdate, WindowState

_ACQUIRED: Final = int(RecordState.ACQUIRED)
_DUE: Final = bytes(
    RecordState.AVAILABLE if state == RecordState.DELAYED else state for state in range(256)
)
_ARCHIVING_SHARE: Final = (
    4  # dead letters that cannot be written use at most a quarter of the locks
)


class Window:
    """Not thread-safe. `settings` may be replaced at any time by `configure`."""

    def __init__(
        self, settings: WindowSettings, table: PageTable, *, state_epoch: int, leader_epoch: int
    ) -> None:
        self.settings = settings
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self._table = table
        self._locks = LockTable()
        self._retries = RetryQueue()
        self._changes = table.changes

    @classmethod
    def load(
        cls,
        settings: WindowSettings,
        state: WindowState,
        *,
        leader_epoch: int,
        log_start: int,
        log_end: int,
    ) -> "Window":
        """Return the window that a new leader continues. What was acquired is available again."""
        state.check()
        if state.leader_epoch > leader_epoch:
            raise BrokerError(
                f"the state was written by leader epoch {state.leader_epoch}; "
                f"this leader has epoch {leader_epoch}",
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        changes = ChangeTracker(state.start_offset, counts_failures=settings.counts_failures)
        table = load_table(state, log_end, changes)
        window = cls(settings, table, state_epoch=state.state_epoch, leader_epoch=leader_epoch)
        window.trim(log_start)
        return window

    def configure(self, settings: WindowSettings) -> None:
        """Replace the settings. Existing locks keep their deadlines."""
        if settings.counts_failures != self.settings.counts_failures:
            raise ValueError("a window cannot change which count it persists")
        self.settings = settings

    # Acquire --------------------------------------------------------------------------------------

    def acquire(
        self,
        owner: Owner,
        limit: int,
        readable: int,
        now_ms: int,
        *,
        gaps: Sequence[tuple[int, int]] = (),
        batch_ends: Sequence[int] = (),
    ) -> Acquired:
        """Acquire at most `limit` offsets below `readable` for an owner.

        `gaps` are sorted intervals at or past the cursor without a record to deliver: control batches,
        aborted records. `batch_ends` are the end offsets of record batches: with them the last record
        batch is acquired wholly, past `limit` but not past the limits of the window.
        """
        self._end_delays(now_ms)
        room, blocked = self._room(owner)
        if room <= 0 or limit <= 0:
            return Acquired((), blocked if limit > 0 else None)
        taking = Acquisition(
            self._table, self._locks, owner, now_ms=now_ms, deadline_ms=self._deadline_ms(now_ms)
        )
        count = min(limit, room)
        left = taking.take_available(count, readable)
        if left:
            max_pages = max(1, self.settings.max_window_offsets >> PAGE_BITS)
            left = taking.take_new(left, readable, gaps, max_pages)
            if batch_ends and not left:
                taking.complete_batch(room - count, readable, gaps, batch_ends, max_pages)
        self._table.advance_start()
        if taking.is_full:
            blocked = Blocked.WINDOW
        elif left or count == limit:
            blocked = None
        return Acquired(tuple(taking.deliveries), blocked)

    def _room(self, owner: Owner) -> tuple[int, Blocked | None]:
        """Return how many offsets the owner may acquire now, and which limit that is."""
        settings, table = self.settings, self._table
        if self._changes.uncommitted >= settings.max_uncommitted_offsets:
            return 0, Blocked.UNCOMMITTED
        if len(self._retries) >= settings.max_delayed_intervals:
            return 0, Blocked.RETRIES
        archiving = min(table.archiving, settings.max_locks // _ARCHIVING_SHARE)
        room = settings.max_locks - table.acquired - archiving
        if settings.max_locks_per_owner is not None:
            own_room = settings.max_locks_per_owner - self._locks.held_by(owner)
            if own_room < room:
                return own_room, Blocked.OWNER_LOCKS
        return room, Blocked.LOCKS

    def _deadline_ms(self, now_ms: int) -> int:
        duration_ms = self.settings.lock_duration_ms
        return NEVER_MS if duration_ms is None else now_ms + duration_ms

    def _end_delays(self, now_ms: int) -> None:
        for first, end in self._retries.take_due(now_ms):
            for page, i, j in self._table.pieces(first, end):
                count = page.states.count(RecordState.DELAYED, i, j)
                page.states[i:j] = page.states[i:j].translate(_DUE)
                self._table.recount(page, RecordState.DELAYED, RecordState.AVAILABLE, count)

    # Settle ---------------------------------------------------------------------------------------

    def settle(self, owner: Owner, settlements: Iterable[Settlement], now_ms: int) -> Settled:
        """Settle acquired offsets of an owner: all of them, or none and an error.

        The settlements are sorted. Offsets below the start are ignored: the log no longer has them.
        """
        work = self._work(now_ms)
        pieces = self._check(owner, settlements, work)
        for page, i, j, ack_type in pieces:
            work.settle(page, i, j, ack_type, owner)
        return work.finish()

    def _work(self, now_ms: int) -> SettleWork:
        return SettleWork(self._table, self._locks, self._retries, self.settings, now_ms)

    def _check(
        self, owner: Owner, settlements: Iterable[Settlement], work: SettleWork
    ) -> list[tuple[WindowPage, int, int, AckType]]:
        pieces: list[tuple[WindowPage, int, int, AckType]] = []
        known_end, start, cursor = 0, self._table.start, self._table.cursor
        for first, end, ack_type in settlements:
            if not known_end <= first < end:
                raise BrokerError(
                    f"offsets {first} to {end} after offset {known_end}: "
                    "intervals must be sorted, not empty, and must not overlap",
                    ErrorCode.INVALID_REQUEST,
                )
            known_end = end
            if end > cursor:
                raise _not_acquired(max(first, cursor), f"the window ends at {cursor}")
            position = max(first, start)
            if position > first:
                work.must_persist = True  # an earlier request may have settled them just now
            while position < end:
                page = self._table.pages.get(position >> PAGE_BITS)
                if page is None:
                    raise _not_acquired(position, "it is settled")
                stop = min(end, page.base + PAGE_SIZE)
                self._check_held(page, position, stop, owner)
                pieces.append((page, position - page.base, stop - page.base, ack_type))
                position = stop
        return pieces

    def _check_held(self, page: WindowPage, first: int, end: int, owner: Owner) -> None:
        i, j = first - page.base, end - page.base
        if page.states.count(_ACQUIRED, i, j) != j - i:
            while page.states[i] == RecordState.ACQUIRED:
                i += 1
            state = RecordState(page.states[i])
            raise _not_acquired(page.base + i, f"it is {state.name.lower()}")
        foreign = self._locks.first_foreign(page, first, end, owner)
        if foreign is not None:
            raise _not_acquired(foreign, f"another member holds it, not {owner}")

    def expire(self, now_ms: int) -> Settled:
        """Release the locks whose deadline has passed. That counts as a failure."""
        work = self._work(now_ms)
        for lock in self._locks.take_expired(now_ms):
            work.release_lock(lock, AckType.FAIL)
        return work.finish()

    def leave(self, owner: Owner, now_ms: int, ack_type: AckType = AckType.FAIL) -> Settled:
        """Release all that an owner holds: it is gone. RETURN undoes the deliveries."""
        if ack_type not in RELEASING:
            raise ValueError(f"an owner that leaves releases its locks; {ack_type.name} does not")
        work = self._work(now_ms)
        for lock in self._locks.of_owner(owner):
            work.release_lock(lock, ack_type)
        return work.finish()

    def finish_archiving(self, intervals: Iterable[tuple[int, int]]) -> Settled:
        """The dead letters of these offsets are written: archive them."""
        work = self._work(0)
        pieces: list[tuple[WindowPage, int, int]] = []
        for first, end in intervals:
            found = list(self._table.pieces(first, end))
            known = sum(page.states.count(RecordState.ARCHIVING, i, j) for page, i, j in found)
            if known != max(0, end - max(first, self._table.start)):
                raise ValueError(f"offsets {first} to {end} are not all archiving")
            pieces += found
        for page, i, j in pieces:
            work.change(page, i, j, RecordState.ARCHIVING, RecordState.ARCHIVED)
        return work.finish()

    def skip(self, intervals: Iterable[tuple[int, int]]) -> Settled:
        """Archive offsets that no owner shall get: expired, purged, aborted, filtered out.

        Acquired and archiving offsets are left alone. An interval past the cursor must begin there.
        """
        work = self._work(0)
        for first, end in intervals:
            if not 0 <= first <= end or first > self._table.cursor:
                raise ValueError(
                    f"skip of offsets {first} to {end}; the window ends at {self._table.cursor}"
                )
            for page, i, j in list(self._table.pieces(first, end)):
                work.skip(page, i, j)
            if end > self._table.cursor:
                work.count += end - self._table.cursor
                self._table.archive_new(end, UNLIMITED)
        return work.finish()

    def trim(self, log_start: int) -> Settled:
        """The log has no offset below `log_start` any more: forget them, and the locks on them."""
        table = self._table
        work = self._work(0)
        for page, i, j in list(table.pieces(table.start, log_start)):
            self._locks.drop(page, page.base + j)
            work.count += table.forget_below(page, i, j)
        if log_start > table.cursor:
            table.restart_at(log_start)
        table.start = max(table.start, log_start)
        return work.finish()

    # Persist --------------------------------------------------------------------------------------

    def update(self) -> StateUpdate | None:
        """Return what the state log must learn since the last call. None: nothing.

        Updates are written in the order of their numbers. One that fails is written again.
        """
        table = self._table
        if not self._changes.has_changes(table.start):
            return None
        number, batches = self._changes.take(table.start)
        return StateUpdate(
            number=number,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=table.start,
            batches=batches,
            settled_count=self.settled_count,
            cursor=table.cursor,
        )

    def committed(self, number: int) -> None:
        """The update with this number, and all before it, are in the state log."""
        self._changes.committed(number)

    def snapshot(self) -> WindowState:
        """Return the whole state, as `load` takes it. Offsets of dropped pages are acknowledged."""
        table = self._table
        batches: list[StateBatch] = []
        position = table.start
        for page in table.pages.values():
            if page.base > position:
                settled = StateBatch(position, page.base, RecordState.ACKNOWLEDGED, 0)
                batches.append(settled)
            end = min(PAGE_SIZE, table.cursor - page.base)
            page.add_batches(
                max(0, position - page.base), end, self.settings.counts_failures, batches
            )
            position = page.base + end
        if position < table.cursor:
            batches.append(StateBatch(position, table.cursor, RecordState.ACKNOWLEDGED, 0))
        return WindowState(
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=table.start,
            batches=tuple(merge_adjacent(batches)),
            cursor=table.cursor,
        )

    # Describe -------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._table.start

    @property
    def cursor(self) -> int:
        return self._table.cursor

    @property
    def available_count(self) -> int:
        """How many offsets below the cursor can be acquired now."""
        return self._table.available

    @property
    def acquired_count(self) -> int:
        return self._table.acquired

    @property
    def archiving_count(self) -> int:
        return self._table.archiving

    @property
    def delayed_count(self) -> int:
        return self._table.delayed

    @property
    def settled_count(self) -> int:
        """How many offsets from the start up to the cursor are settled."""
        return self._table.cursor - self._table.start - self._table.unsettled

    @property
    def uncommitted_count(self) -> int:
        return self._changes.uncommitted

    @property
    def window_offsets(self) -> int:
        """How many offsets are in pages."""
        return len(self._table.pages) << PAGE_BITS

    def held_by(self, owner: Owner) -> int:
        return self._locks.held_by(owner)

    def next_wakeup_ms(self) -> int | None:
        """Return when the next lock expires or the next retry delay ends."""
        times = (self._locks.next_deadline_ms(), self._retries.next_due_ms)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def archiving(self) -> tuple[Delivery, ...]:
        """Return the offsets whose dead letters are to be written, after a load all of them."""
        deliveries: list[Delivery] = []
        for page in self._table.pages.values():
            i = page.states.find(RecordState.ARCHIVING)
            while i >= 0:
                j = run_end(page.states, i, PAGE_SIZE)
                page.add_deliveries(i, j, deliveries)
                i = page.states.find(RecordState.ARCHIVING, j)
        return tuple(deliveries)

    def oldest_lock(self) -> OldestLock | None:
        """Return the first acquired offset and who holds it."""
        for page in self._table.pages.values():
            for lock in page.locks:
                i = page.states.find(_ACQUIRED, lock.first - page.base)
                return OldestLock(page.base + i, lock.owner, lock.since_ms)
        return None


def _not_acquired(offset: int, reason: str) -> BrokerError:
    return BrokerError(f"offset {offset} is not acquired: {reason}", ErrorCode.INVALID_RECORD_STATE)
