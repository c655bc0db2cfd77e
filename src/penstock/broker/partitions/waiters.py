"""Who waits for a partition to grow, and how they hear of it: once per dirty partition and loop tick.

Nothing here knows requests. A waiter counts the bytes that it still lacks and fires once, whether by
data, by a change that concerns it (deleted, moved, failed), by its deadline, or by being cancelled.
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Final, Protocol

_FIRST_SWEEP: Final = 64  # of entries that nobody waits for any more


class Watcher(Protocol):
    """Hears what happens to the partitions that it is registered with."""

    def grew(self, partition: "Watched", size_bytes: int) -> None:
        """There is more to read. `try_complete` follows once all growth of this tick is noted."""

    def try_complete(self) -> None:
        """Act on the growth noted in this tick: one response covers all of it."""

    def changed(self, partition: "Watched") -> None:
        """Something else happened that a reader must see: a new start, another epoch, a failure."""


class Watched(Protocol):
    watchers: set[Watcher] | None  # hear of what is committed
    replica_watchers: set[Watcher] | None  # hear of all that is written


def watch(partition: Watched, watcher: Watcher, *, as_replica: bool = False) -> None:
    if as_replica:
        if partition.replica_watchers is None:
            partition.replica_watchers = set()
        partition.replica_watchers.add(watcher)
    else:
        if partition.watchers is None:
            partition.watchers = set()
        partition.watchers.add(watcher)


def unwatch(partition: Watched, watcher: Watcher) -> None:
    for watchers in (partition.watchers, partition.replica_watchers):
        if watchers is not None:
            watchers.discard(watcher)


class DelayedFetch:
    """One parked request. `fire` is called exactly once, unless it is cancelled first.

    It watches `partitions`, or another watcher forwards `bytes_arrived`, `try_complete` and `fire`.
    Arriving bytes are only counted. When the count suffices, `recount` returns how many bytes
    are missing in fact. With `recheck_always` it is called for every growth, since a few bytes
    can make many others visible: a commit marker does.
    """

    __slots__ = (
        "_as_replica",
        "_fire",
        "_lacking_bytes",
        "_partitions",
        "_recheck_always",
        "_recount",
        "_timer",
    )

    def __init__(
        self,
        partitions: Iterable[Watched],
        lacking_bytes: int,
        timeout_s: float,
        fire: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        *,
        recount: Callable[[], int] | None = None,
        recheck_always: bool = False,
        as_replica: bool = False,
    ) -> None:
        self._lacking_bytes = lacking_bytes
        self._fire: Callable[[], None] | None = fire
        self._recount = recount
        self._recheck_always = recheck_always
        self._as_replica = as_replica
        self._partitions: list[Watched] = []
        self.watch(partitions)
        self._timer = loop.call_later(timeout_s, self.fire)

    @property
    def lacking_bytes(self) -> int:
        return self._lacking_bytes

    def watch(self, partitions: Iterable[Watched]) -> None:
        """Watch more of them."""
        for partition in partitions:
            self._partitions.append(partition)
            watch(partition, self, as_replica=self._as_replica)

    def unwatch_some(self, count: int) -> bool:
        """Before `cancel`, where that would take long; whether any are left."""
        some = self._partitions[-count:]
        del self._partitions[-count:]
        for partition in some:
            unwatch(partition, self)
        return bool(self._partitions)

    def grew(self, partition: Watched, size_bytes: int) -> None:  # noqa: ARG002 - a Watcher
        self.bytes_arrived(size_bytes)

    def changed(self, partition: Watched) -> None:  # noqa: ARG002 - a Watcher
        self.fire()

    def bytes_arrived(self, size_bytes: int) -> None:
        self._lacking_bytes -= size_bytes

    def try_complete(self) -> None:
        if self._lacking_bytes > 0 and not self._recheck_always:
            return
        if self._recount is not None:
            self._lacking_bytes = self._recount()
            if self._lacking_bytes > 0:
                return
        self.fire()

    def fire(self) -> None:
        fire = self._fire
        self.cancel()
        if fire is not None:
            fire()

    def cancel(self) -> None:
        self._fire = self._recount = None
        self._timer.cancel()
        for partition in self._partitions:
            unwatch(partition, self)
        self._partitions = []


class HighWatermarkWaiters:
    """Appends of one partition, by offset, that complete when the high watermark passes them."""

    __slots__ = ("_sweep_at", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # by offset
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._waiting)

    def wait_for(self, next_offset: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        if len(self._waiting) >= self._sweep_at:
            self._forget_cancelled()
        future: asyncio.Future[None] = loop.create_future()
        if self._waiting and self._waiting[-1][0] > next_offset:  # a duplicate of an earlier append
            insort(self._waiting, (next_offset, future), key=_offset)
        else:
            self._waiting.append((next_offset, future))
        return future

    def _forget_cancelled(self) -> None:
        """Who gave up is still in the list; should nothing ever be committed, it must not grow for ever."""
        self._waiting = [entry for entry in self._waiting if not entry[1].done()]
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._waiting))

    def passed(self, high_watermark: int) -> None:
        """Release everyone whose records are now below the high watermark."""
        done = bisect_right(self._waiting, high_watermark, key=_offset)
        released, self._waiting = self._waiting[:done], self._waiting[done:]
        for _, future in released:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)


def _offset(entry: tuple[int, asyncio.Future[None]]) -> int:
    return entry[0]
