"""Background work that cannot get lost: a task is held until it ends, and its error is logged."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """The tasks of one node. asyncio itself keeps only weak references: a task that nobody holds may vanish."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Runs `coroutine` beside everything else. Await the task where its result matters."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"{name} was started after the node had stopped")
        task = asyncio.create_task(coroutine, name=name)  # held, and watched, here
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancels what still runs, and returns when it has ended. Nothing can be spawned any more."""
        self._closed = True
        running = self._running - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task-failed task=%s", task.get_name(), exc_info=error)
