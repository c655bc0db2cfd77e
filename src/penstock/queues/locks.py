"""Acquisition locks: which owner holds which acquired offsets, and until when.

A lock lies within one page. The locks of a window do not overlap, and an acquired offset is in exactly
one of them. A lock may cover settled offsets between its acquired ones, but no available offset.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Final, TypeAlias

from penstock.queues.record_states import RecordState
from penstock.queues.window_page import WindowPage
from penstock.queues.window_settings import NEVER_MS

Owner: TypeAlias = Hashable  # a share group member, an AMQP consumer

_ACQUIRED: Final = int(RecordState.ACQUIRED)
_STALE_DEADLINES: Final = 64


class AcquisitionLock:
    """`count` is the number of acquired offsets from `first` up to `end`."""

    __slots__ = ("count", "deadline_ms", "end", "first", "owner", "page", "since_ms")

    def __init__(
        self,
        page: WindowPage,
        first: int,
        end: int,
        count: int,
        *,
        owner: Owner,
        since_ms: int,
        deadline_ms: int,
    ) -> None:
        self.page = page
        self.first = first
        self.end = end
        self.count = count
        self.owner = owner
        self.since_ms = since_ms
        self.deadline_ms = deadline_ms


class OwnerLocks:
    """The locks of one owner, in the order in which they were made."""

    __slots__ = ("count", "locks")

    def __init__(self) -> None:
        self.count = 0  # acquired offsets
        self.locks: dict[AcquisitionLock, None] = {}


class LockTable:
    """All locks of a window: by page and offset, by owner, by deadline."""

    __slots__ = ("_by_deadline", "_deadlines", "owners")

    def __init__(self) -> None:
        self.owners: dict[Owner, OwnerLocks] = {}
        self._by_deadline: dict[int, dict[AcquisitionLock, None]] = {}
        self._deadlines: list[int] = []  # a heap of distinct deadlines; some may have no lock left

    def held_by(self, owner: Owner) -> int:
        """Return how many offsets the owner has acquired."""
        owned = self.owners.get(owner)
        return 0 if owned is None else owned.count

    def add(
        self,
        page: WindowPage,
        first: int,
        end: int,
        *,
        owner: Owner,
        since_ms: int,
        deadline_ms: int,
    ) -> None:
        """Lock offsets that are all acquired now. Extend the lock before them if it is the same."""
        place = bisect_left(page.lock_firsts, first)
        if place:
            last = page.locks[place - 1]
            same = last.deadline_ms == deadline_ms and last.since_ms == since_ms
            if same and last.end == first and last.owner == owner:
                last.end = end
                last.count += end - first
                self.owners[owner].count += end - first
                return
        lock = AcquisitionLock(
            page,
            first,
            end,
            end - first,
            owner=owner,
            since_ms=since_ms,
            deadline_ms=deadline_ms,
        )
        self._insert(lock, place)
        self.owners[owner].count += end - first

    def first_foreign(self, page: WindowPage, first: int, end: int, owner: Owner) -> int | None:
        """Return the first of these acquired offsets that another owner holds."""
        place = bisect_right(page.lock_firsts, first) - 1
        lock = page.locks[place]
        while lock.owner == owner:
            if lock.end >= end:
                return None
            place += 1
            lock = page.locks[place]
        return max(first, lock.first)

    def settle(self, page: WindowPage, first: int, end: int) -> None:
        """Take acquired offsets that become final out of their locks. They need not be split."""
        place = bisect_right(page.lock_firsts, first) - 1
        while first < end:
            lock = page.locks[place]
            stop = lock.end if lock.end < end else end
            self._uncount(lock, stop - first)
            if lock.count:
                place += 1
            else:
                self._remove(lock)
            first = stop

    def cut(self, page: WindowPage, first: int, end: int) -> None:
        """Take acquired offsets that another owner may get out of their locks."""
        for lock in self._overlapping(page, first, end):
            begin, stop = max(first, lock.first), min(end, lock.end)
            left = page.states.count(_ACQUIRED, lock.first - page.base, begin - page.base)
            right = lock.count - left - (stop - begin)
            self._uncount(lock, stop - begin)
            if left:
                if right:
                    self._split(lock, left, stop, right)
                lock.end = begin
            elif right:
                page.lock_firsts[bisect_left(page.lock_firsts, lock.first)] = stop
                lock.first = stop
            else:
                self._remove(lock)

    def drop(self, page: WindowPage, end: int) -> int:
        """Forget the locks of a page below `end`. Return how many acquired offsets they had."""
        dropped = 0
        for lock in self._overlapping(page, page.base, end):
            stop = min(end, lock.end)
            count = page.states.count(_ACQUIRED, lock.first - page.base, stop - page.base)
            dropped += count
            self._uncount(lock, count)
            if not lock.count:
                self._remove(lock)
            else:
                page.lock_firsts[bisect_left(page.lock_firsts, lock.first)] = stop
                lock.first = stop
        return dropped

    def remove(self, lock: AcquisitionLock) -> None:
        """Forget a lock. The caller changes the states of its acquired offsets."""
        self._uncount(lock, lock.count)
        self._remove(lock)

    def next_deadline_ms(self) -> int | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0] not in self._by_deadline:
            heappop(deadlines)
        return deadlines[0] if deadlines and deadlines[0] != NEVER_MS else None

    def take_expired(self, now_ms: int) -> list[AcquisitionLock]:
        """Return the locks whose deadline has passed, the oldest deadline first. Remove them next."""
        found: list[AcquisitionLock] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            while self._deadlines and self._deadlines[0] == deadline_ms:
                heappop(self._deadlines)  # twice, if all its locks were removed in between
            found += self._by_deadline[deadline_ms]
        return found

    def of_owner(self, owner: Owner) -> list[AcquisitionLock]:
        owned = self.owners.get(owner)
        return [] if owned is None else list(owned.locks)

    @staticmethod
    def _overlapping(page: WindowPage, first: int, end: int) -> list[AcquisitionLock]:
        begin = max(0, bisect_right(page.lock_firsts, first) - 1)
        if begin < len(page.locks) and page.locks[begin].end <= first:
            begin += 1
        return page.locks[begin : bisect_left(page.lock_firsts, end)]

    def _split(self, lock: AcquisitionLock, left: int, stop: int, right: int) -> None:
        """Give the offsets from `stop` on a lock of their own."""
        rest = AcquisitionLock(
            lock.page,
            stop,
            lock.end,
            right,
            owner=lock.owner,
            since_ms=lock.since_ms,
            deadline_ms=lock.deadline_ms,
        )
        lock.count = left
        self._insert(rest, bisect_left(lock.page.lock_firsts, stop))

    def _insert(self, lock: AcquisitionLock, place: int) -> None:
        page = lock.page
        page.lock_firsts.insert(place, lock.first)
        page.locks.insert(place, lock)
        owned = self.owners.get(lock.owner)
        if owned is None:
            owned = self.owners[lock.owner] = OwnerLocks()
        owned.locks[lock] = None
        bucket = self._by_deadline.get(lock.deadline_ms)
        if bucket is None:
            bucket = self._by_deadline[lock.deadline_ms] = {}
            heappush(self._deadlines, lock.deadline_ms)
        bucket[lock] = None

    def _uncount(self, lock: AcquisitionLock, count: int) -> None:
        lock.count -= count
        self.owners[lock.owner].count -= count

    def _remove(self, lock: AcquisitionLock) -> None:
        page = lock.page
        place = bisect_left(page.lock_firsts, lock.first)
        del page.lock_firsts[place], page.locks[place]
        owned = self.owners[lock.owner]
        del owned.locks[lock]
        if not owned.locks:
            del self.owners[lock.owner]
        bucket = self._by_deadline[lock.deadline_ms]
        del bucket[lock]
        if not bucket:
            del self._by_deadline[lock.deadline_ms]
            if len(self._deadlines) > 2 * len(self._by_deadline) + _STALE_DEADLINES:
                self._deadlines = sorted(self._by_deadline)  # a sorted list is a heap
