"""Threads for what waits for a disk. The process does not wait for them at its end: one that hangs in a
system call keeps nobody."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Task = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """As ThreadPoolExecutor, whose threads the interpreter would join."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._threads: list[Thread] = []
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = Lock()
        self._ended = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("these threads have ended")
            self._tasks.put((future, lambda: work(*args, **kwargs)))
            if len(self._threads) < self._limit:
                name = f"{self._name}-{len(self._threads)}"
                thread = Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._ended = True
            if cancel_futures:
                self._cancel_all()
            for _ in self._threads:
                self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel_all(self) -> None:
        while not self._tasks.empty():
            task = self._tasks.get()
            if task is not None:
                task[0].cancel()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                future.set_exception(error)
            else:
                future.set_result(result)
            del task, future, work
