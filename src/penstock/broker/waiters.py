"""Who waits for a partition to grow, and how they hear of it: once per dirty partition and loop tick.

Nothing here knows requests. A waiter counts the bytes that it still lacks and fires once, whether by
data, by a change that concerns it (deleted, moved, failed), by its deadline, or by being cancelled.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Watcher(Protocol):
    """Hears what happens to the partitions that it is registered with."""

    def grew(self, partition: "Watched", size_bytes: int) -> None:
        """There is more to read."""

    def changed(self, partition: "Watched") -> None:
        """Something else happened that a reader must see: a new start, another epoch, a failure."""


class Watched(Protocol):
    watchers: set[Watcher] | None


def watch(partition: Watched, watcher: Watcher) -> None:
    if partition.watchers is None:
        partition.watchers = set()
    partition.watchers.add(watcher)


def unwatch(partition: Watched, watcher: Watcher) -> None:
    if partition.watchers is not None:
        partition.watchers.discard(watcher)


class Waiter:
    """One parked request. `fire` is called exactly once, unless it is cancelled.

    It watches `partitions`; whoever watches for it calls `lacks_less` and `fire` instead.
    """

    __slots__ = ("_fire", "_lacking_bytes", "_partitions", "_timer")

    def __init__(
        self,
        partitions: Iterable[Watched],
        lacking_bytes: int,
        timeout_s: float,
        fire: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._lacking_bytes = lacking_bytes
        self._fire: Callable[[], None] | None = fire
        self._partitions = list(partitions)
        for partition in self._partitions:
            watch(partition, self)
        self._timer = loop.call_later(timeout_s, self.fire)

    def grew(self, partition: Watched, size_bytes: int) -> None:  # noqa: ARG002 - a Watcher
        self.lacks_less(size_bytes)

    def changed(self, partition: Watched) -> None:  # noqa: ARG002 - a Watcher
        self.fire()

    def lacks_less(self, size_bytes: int) -> None:
        self._lacking_bytes -= size_bytes
        if self._lacking_bytes <= 0:
            self.fire()

    def fire(self) -> None:
        fire = self._fire
        self.cancel()
        if fire is not None:
            fire()

    def cancel(self) -> None:
        self._fire = None
        self._timer.cancel()
        for partition in self._partitions:
            unwatch(partition, self)
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
