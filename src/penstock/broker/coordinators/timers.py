"""Timers on the monotonic clock: a heap with lazy deletion, re-checked at firing.

Moving a timer to later, which every heartbeat does, costs one dictionary entry and never touches the heap.
What is dead in the heap is swept out when it is most of it.
"""

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from penstock.model.clock import Clock

Key = TypeVar("Key", bound=Hashable)
What = TypeVar("What")

_DEAD_ALLOWED: Final = 64  # in the heap, beside as many as are alive


class Handle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What timers need of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Handle: ...


class _Timer(Generic[What]):
    __slots__ = ("at_ms", "place", "queued_ms", "what")

    def __init__(self, at_ms: int, what: What) -> None:
        self.at_ms = at_ms
        self.queued_ms = at_ms  # under which time it is in the heap; never later than `at_ms`
        self.place = -1  # the number of its entry there: any other of its key is dead
        self.what = what


class Timers(Generic[Key, What]):
    """`fire(key, what)` is called once for each timer whose time has come, in order of their times.

    What it sets is never fired in the same turn, whatever its time: the loop gets its turn before that.
    """

    def __init__(
        self,
        loop: Scheduler,
        clock: Clock,
        fire: Callable[[Key, What], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._fire = fire
        self._timers: dict[Key, _Timer[What]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._order = count()
        self._wake: Handle | None = None
        self._wake_ms = 0

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, key: Key) -> bool:
        return key in self._timers

    def set(self, key: Key, at_ms: int, what: What) -> None:
        """Fire at `at_ms`, instead of whenever it was set to before."""
        timer = self._timers.get(key)
        if timer is None:
            timer = self._timers[key] = _Timer(at_ms, what)
            self._queue(key, timer)
            return
        timer.at_ms = at_ms
        timer.what = what
        if at_ms < timer.queued_ms:
            self._queue(key, timer)

    def cancel(self, key: Key) -> None:
        if self._timers.pop(key, None) is not None:
            self._bury()

    def close(self) -> None:
        self._timers.clear()
        self._heap.clear()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _queue(self, key: Key, timer: _Timer[What]) -> None:
        self._place(key, timer)
        self._bury()
        if self._wake is None or timer.at_ms < self._wake_ms:
            self._arm(timer.at_ms)

    def _place(self, key: Key, timer: _Timer[What]) -> None:
        timer.queued_ms, timer.place = timer.at_ms, next(self._order)
        heapq.heappush(self._heap, (timer.at_ms, timer.place, key))

    def _bury(self) -> None:
        """Make the heap anew of what is alive, once that is less than half of it."""
        if len(self._heap) > 2 * len(self._timers) + _DEAD_ALLOWED:
            self._heap = [(t.queued_ms, t.place, key) for key, t in self._timers.items()]
            heapq.heapify(self._heap)

    def _arm(self, at_ms: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = at_ms
        delay_ms = max(at_ms - self._clock.monotonic_ms(), 0)
        self._wake = self._loop.call_later(delay_ms / 1000, self._run)

    def _run(self) -> None:
        self._wake = None
        now_ms = self._clock.monotonic_ms()
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap))
        for _, place, key in due:
            timer = self._timers.get(key)
            if timer is None or timer.place != place:
                continue  # cancelled, or in the heap under another time
            if timer.at_ms > now_ms:  # it was moved to later since
                self._place(key, timer)
                continue
            del self._timers[key]
            self._fire(key, timer.what)
        if self._heap and (self._wake is None or self._heap[0][0] < self._wake_ms):
            self._arm(self._heap[0][0])  # what fired may have set one that is later than others
