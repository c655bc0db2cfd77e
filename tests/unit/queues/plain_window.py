"""The window in plain form: a dict of offset to record, and the rules of the specification as loops."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.record_states import AckType, Delivery, RecordState
from penstock.queues.window_results import Blocked, Settlement
from penstock.queues.window_settings import NEVER_MS, WindowSettings

FINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
Stored = dict[int, tuple[RecordState, int]]


@dataclass
class PlainRecord:
    state: RecordState
    acquired: int = 1
    failed: int = 0
    owner: object = None
    since_ms: int = 0
    deadline_ms: int = 0
    due_ms: int = 0

    @property
    def is_settled(self) -> bool:
        return self.state in FINAL


def runs(offsets: Iterable[int], counts: Callable[[int], tuple[int, int]]) -> list[Delivery]:
    """Join offsets that follow each other and have the same counts."""
    found: list[Delivery] = []
    for offset in offsets:
        delivery = Delivery(offset, offset + 1, *counts(offset))
        if found and found[-1].end == offset and found[-1][2:] == delivery[2:]:
            delivery = Delivery(found[-1].first, *delivery[1:])
            found.pop()
        found.append(delivery)
    return found


class PlainWindow:
    def __init__(self, settings: WindowSettings, start: int, page_size: int) -> None:
        self.settings = settings
        self.page_size = page_size
        self.start = self.cursor = start
        self.records: dict[int, PlainRecord] = {}  # from the start up to the cursor
        self.pages: set[int] = set()
        self.dirty: set[int] = set()
        self.stored: Stored = {}
        self.reported_start = start
        self.pending = 0  # changes since the last update
        self.updates: list[int] = []  # changes of the updates that are not committed

    # Acquire --------------------------------------------------------------------------------------

    def acquire(
        self,
        owner: object,
        limit: int,
        readable: int,
        now_ms: int,
        gaps: Sequence[tuple[int, int]],
        batch_ends: Sequence[int],
    ) -> tuple[list[Delivery], Blocked | None]:
        self.end_delays(now_ms)
        room, blocked = self.room(owner)
        if room <= 0 or limit <= 0:
            return [], blocked if limit > 0 else None
        wanted = min(limit, room)
        taken = [
            offset
            for offset in sorted(self.records)
            if offset < readable and self.records[offset].state is RecordState.AVAILABLE
        ][:wanted]
        for offset in taken:
            self.records[offset].acquired = min(255, self.records[offset].acquired + 1)
        is_full = False
        left = wanted - len(taken)
        if left:
            new, is_full = self.take_new(left, readable, gaps)
            left -= len(new)
            if batch_ends and not left:
                ends = [end for end in batch_ends if end >= self.cursor]
                if ends:
                    end = min(ends[0], readable)
                    more, full = self.take_new(room - wanted, end, gaps)
                    new += more
                    is_full = is_full or full
            taken += new
        for offset in taken:
            self.lock(offset, owner, now_ms)
        self.advance()
        if is_full:
            reason: Blocked | None = Blocked.WINDOW
        else:
            reason = None if left or wanted == limit else blocked
        return runs(taken, self.counts), reason

    def room(self, owner: object) -> tuple[int, Blocked | None]:
        settings = self.settings
        if self.uncommitted >= settings.max_uncommitted_offsets:
            return 0, Blocked.UNCOMMITTED
        used = self.count(RecordState.ACQUIRED)
        used += min(self.count(RecordState.ARCHIVING), settings.max_locks // 4)
        room = settings.max_locks - used
        if settings.max_locks_per_owner is not None:
            own = settings.max_locks_per_owner - len(self.held(owner))
            if own < room:
                return own, Blocked.OWNER_LOCKS
        return room, Blocked.LOCKS

    def take_new(
        self, count: int, readable: int, gaps: Sequence[tuple[int, int]]
    ) -> tuple[list[int], bool]:
        taken: list[int] = []
        while self.cursor < readable:
            gap = next((g for g in gaps if g[0] <= self.cursor < g[1]), None)
            if gap is not None:
                end = min(gap[1], readable)
                self.archive_new(end, self.max_pages)
                if self.cursor < end:
                    return taken, True
            elif len(taken) >= count:
                break
            elif not self.open_page(self.max_pages):
                return taken, True
            else:
                self.records[self.cursor] = PlainRecord(RecordState.ACQUIRED)
                taken.append(self.cursor)
                self.cursor += 1
        return taken, False

    @property
    def max_pages(self) -> int:
        return max(1, self.settings.max_window_offsets // self.page_size)

    def open_page(self, max_pages: int) -> bool:
        """Whether the page at the cursor exists, or can be made."""
        number = self.cursor // self.page_size
        self.pages = {n for n in self.pages if not self.is_settled(n)}
        if number not in self.pages and len(self.pages) >= max_pages:
            return False
        self.pages.add(number)
        return True

    def is_settled(self, number: int) -> bool:
        offsets = range(number * self.page_size, (number + 1) * self.page_size)
        return all(
            o < self.start or (o in self.records and self.records[o].is_settled) for o in offsets
        )

    def archive_new(self, end: int, max_pages: int) -> None:
        first, size = self.cursor, self.page_size
        while self.cursor < end:
            if self.cursor % size == 0 and end - self.cursor >= size:
                stop = self.cursor + size  # no page is needed
            elif self.open_page(max_pages):
                stop = min(end, (self.cursor // size + 1) * size)
            else:
                break
            for offset in range(self.cursor, stop):
                self.records[offset] = PlainRecord(RecordState.ARCHIVED)
                self.dirty.add(offset)
            self.cursor = stop
        self.pending += self.cursor > first

    def lock(self, offset: int, owner: object, now_ms: int) -> None:
        record = self.records[offset]
        record.state = RecordState.ACQUIRED
        record.owner = owner
        record.since_ms = now_ms
        duration_ms = self.settings.lock_duration_ms
        record.deadline_ms = NEVER_MS if duration_ms is None else now_ms + duration_ms

    def end_delays(self, now_ms: int) -> None:
        for record in self.records.values():
            if record.state is RecordState.DELAYED and record.due_ms <= now_ms:
                record.state = RecordState.AVAILABLE

    # Settle ---------------------------------------------------------------------------------------

    def settle(
        self, owner: object, settlements: Sequence[Settlement], now_ms: int
    ) -> tuple[int, list[Delivery], bool]:
        self.check(owner, settlements)
        count, archiving = 0, []
        was_below = any(first < self.start for first, _, _ in settlements)
        is_changed = False
        for first, end, ack_type in settlements:
            offsets = range(max(first, self.start), end)
            count += len(offsets)
            if ack_type is AckType.RENEW:
                for offset in offsets:
                    self.lock(offset, owner, now_ms)
            else:
                is_changed = is_changed or len(offsets) > 0
                archiving += self.leave_state(offsets, ack_type, now_ms)
        self.advance()
        return count, runs(archiving, self.counts), is_changed or was_below

    def check(self, owner: object, settlements: Sequence[Settlement]) -> None:
        known_end = 0
        for first, end, _ in settlements:
            if first < known_end or end <= first:
                raise BrokerError("", ErrorCode.INVALID_REQUEST)
            known_end = end
            if end > self.cursor:
                raise BrokerError("", ErrorCode.INVALID_RECORD_STATE)
            for offset in range(max(first, self.start), end):
                record = self.records[offset]
                if record.state is not RecordState.ACQUIRED or record.owner != owner:
                    raise BrokerError("", ErrorCode.INVALID_RECORD_STATE)

    def leave_state(self, offsets: Iterable[int], ack_type: AckType, now_ms: int) -> list[int]:
        """Give acquired offsets their next state. Return those that need a dead letter."""
        archived = RecordState.ARCHIVING if self.settings.has_dead_letters else RecordState.ARCHIVED
        for offset in offsets:
            record = self.records[offset]
            self.dirty.add(offset)
            self.pending += 1
            record.owner = None
            if ack_type is AckType.ACCEPT:
                record.state = RecordState.ACKNOWLEDGED
            elif ack_type is AckType.GAP:
                record.state = RecordState.ARCHIVED
            elif ack_type is AckType.REJECT:
                record.state = archived
            else:
                self.release(offset, ack_type, archived, now_ms)
        return [o for o in offsets if self.records[o].state is RecordState.ARCHIVING]

    def release(self, offset: int, ack_type: AckType, archived: RecordState, now_ms: int) -> None:
        record, settings = self.records[offset], self.settings
        if ack_type is AckType.RETURN:
            record.acquired = max(0, record.acquired - 1)
        elif ack_type is AckType.FAIL and settings.counts_failures:
            record.failed = min(255, record.failed + 1)
        count = record.failed if settings.counts_failures else record.acquired
        limit = settings.delivery_limit
        if ack_type is not AckType.RETURN and limit is not None and count >= limit:
            record.state = archived
        elif settings.retry_delay is not None and ack_type in settings.retry_delay.ack_types:
            record.state = RecordState.DELAYED
            record.due_ms = now_ms + settings.retry_delay.delay_ms(count)
        else:
            record.state = RecordState.AVAILABLE

    def expire(self, now_ms: int) -> tuple[int, list[Delivery], bool]:
        return self.leave_all(
            lambda record: NEVER_MS > record.deadline_ms <= now_ms, AckType.FAIL, now_ms
        )

    def leave(
        self, owner: object, now_ms: int, ack_type: AckType
    ) -> tuple[int, list[Delivery], bool]:
        return self.leave_all(lambda record: record.owner == owner, ack_type, now_ms)

    def leave_all(
        self, chosen: Callable[[PlainRecord], bool], ack_type: AckType, now_ms: int
    ) -> tuple[int, list[Delivery], bool]:
        offsets = [
            offset
            for offset in sorted(self.records)
            if self.records[offset].state is RecordState.ACQUIRED and chosen(self.records[offset])
        ]
        archiving = self.leave_state(offsets, ack_type, now_ms)
        self.advance()
        return len(offsets), runs(archiving, self.counts), bool(offsets)

    def finish_archiving(self, intervals: Sequence[tuple[int, int]]) -> int:
        offsets = [o for first, end in intervals for o in range(max(first, self.start), end)]
        for offset in offsets:
            record = self.records.get(offset)
            if record is None or record.state is not RecordState.ARCHIVING:
                raise ValueError
        for offset in offsets:
            self.archive(offset)
        self.advance()
        return len(offsets)

    def archive(self, offset: int) -> None:
        self.records[offset].state = RecordState.ARCHIVED
        self.dirty.add(offset)
        self.pending += 1

    def skip(self, first: int, end: int) -> int:
        if not 0 <= first <= end or first > self.cursor:
            raise ValueError
        count = max(0, end - self.cursor)
        for offset in range(max(first, self.start), min(end, self.cursor)):
            if self.records[offset].state in (RecordState.AVAILABLE, RecordState.DELAYED):
                self.archive(offset)
                count += 1
        self.archive_new(end, 2**63)
        self.advance()
        return count

    def trim(self, log_start: int) -> int:
        count = 0
        for offset in range(self.start, min(log_start, self.cursor)):
            record = self.records[offset]
            if not record.is_settled:
                count += 1
                record.state = RecordState.ARCHIVED
        if log_start > self.cursor:
            self.cursor = log_start
            self.records.clear()
            self.pages.clear()
        self.start = max(self.start, log_start)
        self.advance()
        return count

    def advance(self) -> None:
        while self.start < self.cursor and (
            self.start not in self.records or self.records[self.start].is_settled
        ):
            self.start += 1
        for offset in [offset for offset in self.records if offset < self.start]:
            del self.records[offset]

    # Persist --------------------------------------------------------------------------------------

    @property
    def uncommitted(self) -> int:
        return self.pending + sum(self.updates)

    def update(self) -> Stored | None:
        """The whole of what the log has after this update; None: nothing is written."""
        if not self.pending and self.start == self.reported_start:
            return None
        for offset in self.dirty:
            if offset in self.records:
                self.stored[offset] = self.persisted(self.records[offset])
        self.stored = {o: v for o, v in self.stored.items() if o >= self.start}
        self.dirty.clear()
        self.reported_start = self.start
        self.updates.append(self.pending)
        self.pending = 0
        return dict(self.stored)

    def persisted(self, record: PlainRecord) -> tuple[RecordState, int]:
        if record.is_settled:
            return record.state, 0
        in_flight = record.state is RecordState.ACQUIRED
        acquired = max(0, record.acquired - in_flight)
        count = record.failed if self.settings.counts_failures else acquired
        is_archiving = record.state is RecordState.ARCHIVING
        return RecordState.ARCHIVING if is_archiving else RecordState.AVAILABLE, count

    @classmethod
    def load(
        cls, settings: WindowSettings, page_size: int, start: int, stored: Stored, log_end: int
    ) -> "PlainWindow":
        """Continue from what is stored below the log end."""
        window = cls(settings, min(start, log_end), page_size)
        window.reported_start = start
        known = {o: v for o, v in stored.items() if v != (RecordState.AVAILABLE, 0)}
        window.cursor = max((o + 1 for o in known if o < log_end), default=window.start)
        for offset in range(window.start, window.cursor):
            state, count = known.get(offset, (RecordState.AVAILABLE, 0))
            count = min(count, 255)
            failed = count if settings.counts_failures else 0
            window.records[offset] = PlainRecord(state, count, failed)
        window.stored = {o: v for o, v in stored.items() if o < log_end}
        window.pages = {o // page_size for o, r in window.records.items() if not r.is_settled}
        if window.cursor % page_size and window.cursor > window.start:
            window.pages.add(window.cursor // page_size)
        window.pages = {n for n in window.pages if not window.is_settled(n)}
        window.advance()
        return window

    # Look -----------------------------------------------------------------------------------------

    def counts(self, offset: int) -> tuple[int, int]:
        record = self.records[offset]
        return record.acquired, record.failed

    def count(self, state: RecordState) -> int:
        return sum(record.state is state for record in self.records.values())

    def held(self, owner: object) -> list[int]:
        return [
            offset
            for offset, record in self.records.items()
            if record.state is RecordState.ACQUIRED and record.owner == owner
        ]
