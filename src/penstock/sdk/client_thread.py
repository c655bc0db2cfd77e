"""The one thread of an asyncio client, which makes the calls that wait.

A cancelled `await` does not stop a call that runs there. So a call whose effect must not get lost goes on, and the
next one waits until the thread is idle, or is queued behind it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ClientThread(ThreadPoolExecutor):
    """Knows its unfinished calls, also those that nobody awaits any more."""

    def __init__(self, name: str) -> None:
        super().__init__(1, name)
        self.unfinished: set[Future[Any]] = set()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future = super().submit(fn, *args, **kwargs)
        self.unfinished.add(future)
        future.add_done_callback(self._finish)
        return future

    async def idle(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # a time-out is no error here
        """Wait until no call is left, or until the time is up."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        while self.unfinished and (deadline_s is None or loop.time() < deadline_s):
            woken = loop.create_future()
            waiter = (loop, woken)
            self._waiters.add(waiter)
            try:
                if self.unfinished:  # else the last one finished before the waiter was there
                    left_s = None if deadline_s is None else deadline_s - loop.time()
                    await asyncio.wait({woken}, timeout=left_s)
            finally:
                self._waiters.discard(waiter)

    def _finish(self, future: "Future[Any]") -> None:
        self.unfinished.discard(future)
        for loop, woken in tuple(self._waiters):
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, woken)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


async def completed(call: "asyncio.Future[T]", on_cancel: Callable[[], object]) -> T:
    """The outcome of a call that cannot be undone half-way: a cancellation is raised when the call has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            on_cancel()
    if cancelled is not None:
        if not call.cancelled():
            call.exception()  # looked at: the cancellation goes first
        raise cancelled
    return call.result()


def run_in(
    thread: ClientThread, call: Callable[..., T], *arguments: Any, **named: Any
) -> "asyncio.Future[T]":
    """Begin a call on the thread."""
    return asyncio.get_running_loop().run_in_executor(thread, partial(call, *arguments, **named))
