"""Runs long work on the event loop: one short step of one job in each turn of the loop, whatever the number of jobs."""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from penstock.model.steps import Steps

T = TypeVar("T")

_MAX_PAUSE_S: Final = 30.0  # without a full collection of garbage
_NEVER: Final = 1 << 30


class _CollectorPause:
    """Of full collections of garbage in this process, however many event loops it has."""

    def __init__(self) -> None:
        self.count = 0
        self.thresholds = gc.get_threshold()
        self.since_s = 0.0


_pause: Final = _CollectorPause()


class Turns:
    """Belongs to one event loop. Jobs take turns."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()

    @contextmanager
    def without_full_collection(self) -> Iterator[None]:
        """Put off the collection of old garbage: a million live objects would keep it busy for half a second.

        Young garbage is still collected. While such work goes on without end, a full collection runs every 30 s.
        """
        if not _pause.count:
            _pause.thresholds = gc.get_threshold()
            gc.set_threshold(*_pause.thresholds[:2], _NEVER)
            _pause.since_s = time.monotonic()
        elif time.monotonic() - _pause.since_s > _MAX_PAUSE_S:
            gc.collect()
            _pause.since_s = time.monotonic()
        _pause.count += 1
        try:
            yield
        finally:
            _pause.count -= 1
            if not _pause.count:
                gc.set_threshold(*_pause.thresholds)

    def begin(self, steps: Steps[T]) -> T | Awaitable[T]:
        """The result, if the first step leads to it; else it comes later."""
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        return self.run(steps)

    async def run(self, steps: Steps[T]) -> T:
        """The result of all steps. The first one is taken at once."""
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.append((steps, done))
        if len(self._jobs) == 1:
            loop.call_soon(self._step, loop)
        return await done

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        steps, done = self._jobs[0]
        if done.done():  # nobody waits any more
            self._jobs.popleft()
            steps.close()
        else:
            try:
                next(steps)
            except StopIteration as end:
                self._jobs.popleft()
                done.set_result(end.value)
            except Exception as error:  # noqa: BLE001 - it reaches the caller through the future
                self._jobs.popleft()
                done.set_exception(error)
            else:
                self._jobs.rotate(-1)
        if self._jobs:
            loop.call_soon(self._step, loop)
