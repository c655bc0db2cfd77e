"""Who waits for a partition to grow, and how they are woken: once per dirty partition and loop tick.

Nothing here knows requests. A waiter counts the bytes that it still lacks and fires once, whether by
data, by a change that concerns it (deleted, moved, failed), by its deadline, or by being cancelled.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Grows(Protocol):
    """What a waiter waits for."""

    waiters: "set[Waiter] | None"


class Waiter:
    """One parked request over some partitions. `fire` is called exactly once, unless cancelled."""

    __slots__ = ("_fire", "_partitions", "_timer", "lacking_bytes")

    def __init__(
        self,
        partitions: list[Grows],
        lacking_bytes: int,
        timeout_s: float,
        fire: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lacking_bytes = lacking_bytes
        self._fire: Callable[[], None] | None = fire
        self._partitions = partitions
        for partition in partitions:
            if partition.waiters is None:
                partition.waiters = set()
            partition.waiters.add(self)
        self._timer = loop.call_later(timeout_s, self.fire)

    def fire(self) -> None:
        fire = self._fire
        self.cancel()
        if fire is not None:
            fire()

    def cancel(self) -> None:
        self._fire = None
        self._timer.cancel()
        for partition in self._partitions:
            if partition.waiters is not None:
                partition.waiters.discard(self)
        self._partitions = []


class Commits:
    """Appends of one partition whose answer waits until the high watermark passes them, in order."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def wait_for(self, next_offset: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((next_offset, future))
        return future

    def passed(self, high_watermark: int) -> None:
        """Release everyone whose records are now below the high watermark."""
        done = 0
        for next_offset, future in self._waiting:
            if next_offset > high_watermark:
                break
            done += 1
            if not future.done():
                future.set_result(None)
        del self._waiting[:done]

    def fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
