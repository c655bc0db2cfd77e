"""Timers on the monotonic clock: a heap with lazy deletion, re-checked at firing.

Moving a timer to later, which every heartbeat does, costs one dictionary entry and never touches the heap.
"""

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, Protocol, TypeVar

from penstock.model.clock import Clock

Key = TypeVar("Key", bound=Hashable)
What = TypeVar("What")


class Handle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What timers need of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Handle: ...


class _Timer(Generic[What]):
    __slots__ = ("at_ms", "queued_ms", "what")

    def __init__(self, at_ms: int, what: What) -> None:
        self.at_ms = at_ms
        self.queued_ms = at_ms  # under which time it is in the heap; never later than `at_ms`
        self.what = what


class Timers(Generic[Key, What]):
    """`fire(key, what)` is called once for each timer whose time has come, in order of their times."""

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
            self._timers[key] = _Timer(at_ms, what)
            self._queue(key, at_ms)
            return
        timer.at_ms = at_ms
        timer.what = what
        if at_ms < timer.queued_ms:
            timer.queued_ms = at_ms
            self._queue(key, at_ms)

    def cancel(self, key: Key) -> None:
        self._timers.pop(key, None)

    def close(self) -> None:
        self._timers.clear()
        self._heap.clear()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _queue(self, key: Key, at_ms: int) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._order), key))
        if self._wake is None or at_ms < self._wake_ms:
            self._arm(at_ms)

    def _arm(self, at_ms: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = at_ms
        delay_ms = max(at_ms - self._clock.monotonic_ms(), 0)
        self._wake = self._loop.call_later(delay_ms / 1000, self._run)

    def _run(self) -> None:
        self._wake = None
        now_ms = self._clock.monotonic_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            timer = self._timers.get(key)
            if timer is None or timer.queued_ms != queued_ms:
                continue  # cancelled, or in the heap under another time
            if timer.at_ms > now_ms:  # it was moved to later since
                timer.queued_ms = timer.at_ms
                heapq.heappush(self._heap, (timer.at_ms, next(self._order), key))
                continue
            del self._timers[key]
            self._fire(key, timer.what)
        if self._heap and (self._wake is None or self._heap[0][0] < self._wake_ms):
            self._arm(self._heap[0][0])  # what fired may have set one that is later than others
