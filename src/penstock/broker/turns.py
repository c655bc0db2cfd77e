"""Runs long work on the event loop: one short step of one job in each turn of the loop, whatever the number of jobs."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, TypeVar

from penstock.model.steps import Steps

T = TypeVar("T")


class Turns:
    """Belongs to one event loop. Jobs take turns."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()

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
