"""A metadata store in memory: linearizable, with leases on virtual time, behind a network that delays and cuts.

A commit whose answer is lost is ambiguous: it may have happened, and where its request is held up, it may
yet happen long after its sender was told that nobody knows. `store_troubles.py` has what befalls single calls.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Change,
    Changes,
    Committed,
    Compare,
    Conflict,
    Delete,
    DeletePrefix,
    Entry,
    LeaseGone,
    LeaseId,
    Put,
    Reload,
    Revision,
    Snapshot,
    StoreError,
    StoreFull,
    Write,
    refuse_doubles,
)
from tests.simulation.loop import SimLoop, World
from tests.simulation.network import Network
from tests.simulation.store_troubles import WATCH, Troubles, Way

T = TypeVar("T")

HOST: Final = "store"
_TIMEOUT_S: Final = 1.0
_SILENCE_S: Final = 2.5  # after which a watch is given up
_KEPT: Final = 400  # changes
_LATE: Final = 0.3  # of the commits that a cut holds up are carried out in the end

Observer = Callable[[Sequence[Compare], Sequence[Change]], None]


class StoreCore:
    """The one truth. Every method is one step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: dict[str, Entry] = {}
        self.revision = NO_REVISION
        self.changes: deque[Change] = deque(maxlen=_KEPT)
        self.forgotten = NO_REVISION  # changes up to there are no longer kept
        self.is_down = False
        self.troubles = Troubles(world)
        self.views: list[StoreView] = []
        self.observe: Observer = lambda _compares, _changes: None
        self._leases: dict[LeaseId, tuple[float, float]] = {}  # ttl, deadline
        self._next_lease = 1

    def snapshot(self, prefix: str) -> Snapshot:
        entries = {key: self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)}
        return Snapshot(self.revision, entries)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed | Conflict:
        failed = tuple(it.key for it in compares if not self._holds(it))
        if failed:
            return Conflict(self.revision, failed)
        for write in writes:
            if (
                isinstance(write, Put)
                and write.lease is not None
                and write.lease not in self._leases
            ):
                raise LeaseGone(f"lease {write.lease} has ended")
        return Committed(self._write(compares, writes))

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        mod = NO_REVISION if entry is None else entry.mod_revision
        created = NO_REVISION if entry is None else entry.create_revision
        return compare.mod_revision in (None, mod) and compare.create_revision in (None, created)

    def _write(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Revision:
        revision = Revision(self.revision + 1)
        made: list[Change] = []
        for write in writes:
            if isinstance(write, Put):
                old = self.entries.get(write.key)
                created = revision if old is None else old.create_revision
                entry = Entry(write.value, created, revision, write.lease)
                self.entries[write.key] = entry
                made.append(Change(write.key, revision, entry))
            else:
                made += self._deleted(write, revision)
        if not made:
            return self.revision
        self.revision = revision
        for change in made:
            if len(self.changes) == _KEPT:
                self.forgotten = self.changes[0].revision
            self.changes.append(change)
        self.world.note(f"store {revision} {[change.key for change in made]}")
        self.observe(compares, made)
        for view in self.views:
            view.publish(Changes(revision, made))
        return revision

    def _deleted(self, write: Delete | DeletePrefix, revision: Revision) -> list[Change]:
        if isinstance(write, Delete):
            gone = [write.key] if write.key in self.entries else []
        else:
            gone = sorted(key for key in self.entries if key.startswith(write.prefix))
        for key in gone:
            del self.entries[key]
        return [Change(key, revision, None) for key in gone]

    def since(self, after: Revision) -> Changes | Reload:
        if after < self.forgotten:
            return Reload()
        return Changes(self.revision, [it for it in self.changes if it.revision > after])

    def forget_changes(self) -> None:
        """Keep none of the changes up to now: a watch from before must begin anew."""
        self.changes.clear()
        self.forgotten = self.revision

    # Leases

    def grant(self, ttl_ms: int) -> LeaseId:
        lease = LeaseId(self._next_lease)
        self._next_lease += 1
        self._leases[lease] = ttl_ms / 1000, 0.0
        self.keep_alive(lease)
        return lease

    def keep_alive(self, lease: LeaseId) -> int:
        if lease not in self._leases:
            return 0
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = ttl_s, self.world.now_s + ttl_s
        self.world.call_later(ttl_s, lambda: self._expire(lease))
        return round(ttl_s * 1000)

    def extend_all(self) -> None:
        """After an outage every lease has its whole life again, as with etcd's new leader."""
        for lease in list(self._leases):
            self.keep_alive(lease)

    def _expire(self, lease: LeaseId) -> None:
        known = self._leases.get(lease)
        if known is None or known[1] > self.world.now_s:
            return
        if self.is_down:
            self.world.call_later(0.5, lambda: self._expire(lease))  # nobody is there to expire it
        else:
            self.revoke(lease)

    def revoke(self, lease: LeaseId) -> None:
        if self._leases.pop(lease, None) is None:
            return
        keys = sorted(key for key, entry in self.entries.items() if entry.lease == lease)
        if keys:
            self._write((), [Delete(key) for key in keys])


class StoreView:
    """The store as one process reaches it: a MetadataStore."""

    def __init__(self, core: StoreCore, network: Network, loop: SimLoop) -> None:
        self._core = core
        self._network = network
        self._loop = loop
        self.host = network.host_of[loop]
        self._watches: list[Watch] = []
        self._free_s = 0.0
        core.views.append(self)

    @property
    def _world(self) -> World:
        return self._core.world

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._asked("snapshot", lambda: self._core.snapshot(prefix), StoreError)

    async def read(self, key: str) -> Entry | None:
        return await self._asked("read", lambda: self._core.entries.get(key), StoreError)

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        refuse_doubles(writes)
        return await self._asked("commit", lambda: self._core.commit(compares, writes), Ambiguous)

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._asked("grant", lambda: self._core.grant(ttl_ms), StoreError)

    async def keep_alive(self, lease: LeaseId) -> int:
        return await self._asked("keep_alive", lambda: self._core.keep_alive(lease), StoreError)

    async def revoke(self, lease: LeaseId) -> None:
        await self._asked("revoke", lambda: self._core.revoke(lease), StoreError)

    async def close(self) -> None:
        self._watches.clear()

    # There and back ----------------------------------------------------------------------------

    async def _asked(self, call: str, work: Callable[[], T], unheard: type[StoreError]) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        trouble = self._core.troubles.of(self.host, call)
        way = None if trouble is None else trouble.way
        delay_s = self._network.delay_s()
        if way is Way.LATE:
            delay_s += self._core.troubles.late_s()
        elif way is Way.SLOW and trouble is not None:
            delay_s += trouble.slow_s
        if way is Way.REFUSED:
            work = _refuse
        if way is not Way.LOST:
            is_heard = way is not Way.UNANSWERED
            self._world.call_later(delay_s, lambda: self._arrive(work, answer, is_heard=is_heard))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise unheard("the store did not answer") from None

    def _arrive(
        self, work: Callable[[], T], answer: asyncio.Future[T], *, is_heard: bool = True
    ) -> None:
        if self._is_cut(self.host, HOST):
            if self._world.rng.random() < _LATE:
                self._world.call_later(
                    self._world.rng.uniform(0.1, 1.5),
                    lambda: self._arrive(work, answer, is_heard=is_heard),
                )
            return
        error: StoreError | None = None
        result: T | None = None
        try:
            result = work()
        except StoreError as refused:
            error = refused
        if is_heard:
            self._world.call_later(
                self._network.delay_s(), lambda: self._answer(answer, result, error)
            )

    def _answer(
        self, answer: asyncio.Future[T], result: T | None, error: StoreError | None
    ) -> None:
        if self._loop.is_killed or self._is_cut(HOST, self.host) or answer.done():
            return
        self._loop.call_soon(_settle, answer, result, error)

    def _is_cut(self, source: str, target: str) -> bool:
        return self._core.is_down or self._network.is_cut(source, target)

    # Watching ----------------------------------------------------------------------------------

    async def watch(self, prefix: str, after: Revision) -> AsyncIterator[Changes | Reload]:
        watch = Watch(prefix)

        def begin() -> Changes | Reload:
            self._watches.append(watch)
            return self._core.since(after)

        try:
            found: Changes | Reload | None = await self._asked("read", begin, StoreError)
            known = after
            while True:
                if isinstance(found, Reload):
                    yield found
                    return
                if found is not None and found.revision > known:
                    known = found.revision
                    yield watch.of_prefix(found)
                if watch.has_gap:
                    raise StoreError("the watch missed something")
                found = await self._next(watch)
        finally:
            if watch in self._watches:
                self._watches.remove(watch)

    async def _next(self, watch: "Watch") -> Changes | None:
        """What arrives within a while. Silence is looked into: the store may not be there any more."""
        try:
            async with asyncio.timeout(0.5):
                return await watch.arriving.get()
        except TimeoutError:
            pass
        try:
            await self._asked("read", lambda: None, StoreError)
        except StoreError:
            await asyncio.sleep(_SILENCE_S - _TIMEOUT_S)
            raise StoreError("the watch fell silent") from None
        return None

    def publish(self, changes: Changes) -> None:
        """On its way to the process, in order."""
        if self._loop.is_killed or not self._watches:
            return
        arrives_s = max(self._free_s, self._world.now_s + self._network.delay_s())
        trouble = self._core.troubles.of(self.host, WATCH)
        if trouble is not None:
            arrives_s += trouble.slow_s
        self._free_s = arrives_s
        for watch in self._watches:
            self._world.call_later(
                arrives_s - self._world.now_s, partial(self._deliver, watch, changes)
            )

    def break_watches(self) -> None:
        """What comes next does not arrive there: they begin anew from where they are."""
        for watch in self._watches:
            watch.has_gap = True

    def _deliver(self, watch: "Watch", changes: Changes) -> None:
        if self._is_cut(HOST, self.host):
            watch.has_gap = True  # what is lost is asked for again
        elif not (self._loop.is_killed or watch.has_gap):
            self._loop.call_soon(watch.arriving.put_nowait, changes)


class Watch:
    """One look at the store that lasts."""

    def __init__(self, prefix: str) -> None:
        self.arriving: asyncio.Queue[Changes] = asyncio.Queue()
        self.has_gap = False
        self._prefix = prefix

    def of_prefix(self, found: Changes) -> Changes:
        if not self._prefix:
            return found
        return Changes(
            found.revision, [it for it in found.changes if it.key.startswith(self._prefix)]
        )


def _refuse() -> Any:
    """Nothing was written."""
    raise StoreFull("the store has no room")


def _settle(answer: asyncio.Future[T], result: T | None, error: StoreError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type] # None is what a T may be


def live_keys(entries: Mapping[str, Entry]) -> dict[int, Entry]:
    return {int(key[5:]): entry for key, entry in entries.items() if key.startswith("live/")}
