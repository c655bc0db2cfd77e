"""Renew a lease from a separate thread, as long as the event loop is alive (B3).

Work that blocks the loop for a while costs no session; a loop that hangs lets others take over.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, runtime_checkable

from penstock.metadata.store import LeaseId, MetadataStore, StoreError

_log = logging.getLogger(__name__)

_RENEWALS: Final = 4  # in the life of a lease
_TICKS: Final = 8


@runtime_checkable
class Renewing(Protocol):
    """A store whose leases any thread can renew, without the event loop."""

    def renew(self, lease: LeaseId) -> int:
        """As `keep_alive`, but blocking."""


class LeaseRenewer:
    """Started and stopped in the loop; `on_gone`, `on_stall` and `on_connection` are called there."""

    def __init__(
        self,
        store: MetadataStore,
        ttl_ms: int,
        *,
        on_gone: Callable[[LeaseId], None],
        on_stall: Callable[[], None],
        on_connection: Callable[[bool], None] = lambda _is_connected: None,
    ) -> None:
        self._store = store
        self._ttl_s = ttl_ms / 1000
        self._on_gone = on_gone
        self._on_stall = on_stall
        self._on_connection = on_connection
        self._was_connected = True
        self._lease: LeaseId | None = None
        self._good_until_s = 0.0
        self._tick_s = 0.0
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the store has kept the lease within its own life."""
        return monotonic() < self._good_until_s

    def hold(self, lease: LeaseId) -> None:
        """From now on this lease, which was granted just now."""
        self._lease = lease
        self._good_until_s = monotonic() + self._ttl_s
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._tick_s = monotonic()
            self._tick()
            self._thread = threading.Thread(target=self._run, name="penstock-session", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    # in the loop

    def _tick(self) -> None:
        now_s = monotonic()
        stalled = now_s - self._tick_s > self._ttl_s / 2
        self._tick_s = now_s
        assert self._loop is not None, "it was started in one"
        self._timer = self._loop.call_later(self._ttl_s / _TICKS, self._tick)
        if stalled:
            self._on_stall()
        is_connected = self.is_connected
        if is_connected != self._was_connected:
            self._was_connected = is_connected
            self._on_connection(is_connected)

    # in the thread

    def _run(self) -> None:
        while not self._ended.wait(self._ttl_s / _RENEWALS):
            lease, now_s = self._lease, monotonic()
            if lease is not None and now_s - self._tick_s < self._ttl_s / 2:
                self._renew(lease, now_s)

    def _renew(self, lease: LeaseId, sent_s: float) -> None:
        try:
            left_ms = self._renewed(lease)
        except StoreError as error:  # go on serving: nobody else may lead meanwhile (B5)
            _log.warning("session-unrefreshed error=%s", error)
            return
        if left_ms > 0:
            self._good_until_s = sent_s + self._ttl_s
        elif not self._ended.is_set():
            assert self._loop is not None, "the thread was started by it"
            self._loop.call_soon_threadsafe(self._on_gone, lease)

    def _renewed(self, lease: LeaseId) -> int:
        if isinstance(self._store, Renewing):
            return self._store.renew(lease)
        assert self._loop is not None, "the thread was started by it"
        asked = asyncio.run_coroutine_threadsafe(self._store.keep_alive(lease), self._loop)
        while not self._ended.is_set():
            try:
                return asked.result(self._ttl_s / _RENEWALS)
            except TimeoutError:
                continue
        asked.cancel()
        return 1
