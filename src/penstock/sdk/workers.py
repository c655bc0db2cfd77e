"""Those who handle messages: threads, or tasks of an event loop. Each lane keeps its order."""

import threading
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from itertools import count
from queue import SimpleQueue
from typing import Literal, Protocol
from zlib import crc32

from penstock.sdk.message import Message, Place
from penstock.sdk.offsets import OffsetTracker

Order = Literal["key", "partition", "none"]


def is_async(handler: object) -> bool:
    """A coroutine function, or an object that is called like one."""
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


class Job:
    """A message in work, and the books it is kept in."""

    __slots__ = ("error", "is_finished", "message", "tracker")

    def __init__(self, message: Message, tracker: "Books") -> None:
        self.message = message
        self.tracker = tracker
        self.is_finished = False
        self.error: BaseException | None = None


class Books(OffsetTracker):
    """The tracker of one assignment of a partition. After its loss nothing more of it is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False
        self.outstanding = 0


class Pool(Protocol):
    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        """Jobs with their lanes; each will be reported, in any order."""

    def close(self) -> None:
        """Waits for those at work."""


class Lanes:
    """Which worker handles a message: the same one for the same key, or partition. Pure."""

    def __init__(self, order: Order, workers: int) -> None:
        self._order = order
        self._workers = workers
        self._turns = count()
        self._of_place: dict[Place, int] = {}

    def lane(self, message: Message) -> int:
        if self._order == "partition":
            return self._of_place.setdefault(message.place, next(self._turns) % self._workers)
        key = message.raw_key if self._order == "key" else None
        return (next(self._turns) if key is None else crc32(key)) % self._workers


class ThreadPool:
    """One thread a lane; without an order, all share one queue."""

    def __init__(
        self,
        workers: int,
        *,
        shares_queue: bool,
        handle: Callable[[Job], None],
        report: Callable[[Job], None],
    ) -> None:
        self._handle = handle
        self._report = report
        queues = 1 if shares_queue else workers
        self._queues: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in range(queues)]
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(self._queues[lane % queues],),
                name=f"penstock-worker-{lane}",
                daemon=True,
            )
            for lane in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        for lane, job in jobs:
            self._queues[lane % len(self._queues)].put(job)

    def close(self) -> None:
        for lane in range(len(self._threads)):
            self._queues[lane % len(self._queues)].put(None)

    def _work(self, queue: "SimpleQueue[Job | None]") -> None:
        while (job := queue.get()) is not None:
            if not job.tracker.is_lost:
                self._handle(job)
            self._report(job)
