"""The embedded metadata store: SQLite behind the event loop. All blocking work is on one thread of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from penstock.metadata.sqlite.file import SqliteFile
from penstock.metadata.store import (
    Changes,
    Committed,
    Compare,
    Conflict,
    Entry,
    LeaseId,
    Reload,
    Revision,
    Snapshot,
    StoreError,
    Write,
)
from penstock.model.clock import Clock

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NEVER_SEEN: Final = -1

T = TypeVar("T")


class SqliteStore:
    """Implements MetadataStore for the brokers of one machine.

    A commit of this store wakes its watchers at once; those of other processes are seen by polling.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        boot_id: str | None = None,
        poll_ms: int = 50,
        busy_ms: int = 5000,
        changes_max: int = 100_000,
    ) -> None:
        self._path = path
        self._clock = clock
        self._boot_id = boot_id
        self._poll_s = poll_ms / 1000
        self._busy_ms = busy_ms
        self._changes_max = changes_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-metadata")
        self._wakes: set[asyncio.Event] = set()
        self._opened: SqliteFile | None = None
        self._closed = False

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._file.snapshot(prefix))

    async def read(self, key: str) -> Entry | None:
        return await self._call(lambda: self._file.read(key))

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        outcome = await self._call(lambda: self._file.commit(compares, writes))
        self._wake()
        return outcome

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._call(lambda: self._file.grant(ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> int:
        return await self._call(lambda: self._file.keep_alive(lease))

    def renew(self, lease: LeaseId) -> int:
        """As `keep_alive`, but blocking, and from any thread."""
        try:
            return self._thread.submit(lambda: self._file.keep_alive(lease)).result()
        except RuntimeError:  # the thread has ended
            raise StoreError(f"metadata store {self._path} is closed") from None

    async def revoke(self, lease: LeaseId) -> None:
        await self._call(lambda: self._file.revoke(lease))
        self._wake()

    async def watch(self, prefix: str, after: Revision) -> AsyncIterator[Changes | Reload]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            version = _NEVER_SEEN
            while True:
                wake.clear()
                version, found = await self._changes(prefix, after, version)
                if found is not None:
                    yield found
                if isinstance(found, Reload):
                    return
                if found is None:
                    await self._pause(wake)
                else:
                    after = found.revision
        finally:
            self._wakes.discard(wake)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        opened = self._opened
        if opened is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, opened.close)
        self._thread.shutdown(wait=True)

    @property
    def _file(self) -> SqliteFile:
        """Opened by the first call, on the store's thread."""
        if self._opened is None:
            self._opened = SqliteFile(
                self._path,
                monotonic_ms=self._clock.monotonic_ms,
                boot_id=self._boot_id or _BOOT_ID.read_text().strip(),
                busy_ms=self._busy_ms,
                changes_max=self._changes_max,
            )
        return self._opened

    async def _changes(
        self, prefix: str, after: Revision, version: int
    ) -> tuple[int, Changes | Reload | None]:
        return await self._call(lambda: self._file.changes_after(prefix, after, version))

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"metadata store {self._path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _pause(self, wake: asyncio.Event) -> None:
        """Until the next look is due, or a commit of our own makes it worth while."""
        timer = asyncio.get_running_loop().call_later(self._poll_s, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()
