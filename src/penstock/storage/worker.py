"""The worker process: compacts at low priority, with its own memory, so that the event loop never waits.

Started when first needed, it lives until `close`, or until the broker is gone: an orphan must write no
more, since the next broker may already be at the same files. One line of JSON each way per task.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

from penstock.model.errors import BrokerError, StorageFault
from penstock.storage import cleaner, swap
from penstock.storage.cleaner import Job, Outcome
from penstock.storage.swap import Swap

_NICENESS: Final = 10


class WorkerFailed(Exception):
    """The task was not done and left nothing behind. It may be tried again later."""


class Worker:
    """The broker's end. Calls wait for the worker, so they belong into a thread; one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = Lock()  # held while a process starts: `close` must not miss it

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def clean(self, job: Job) -> Outcome:
        return Outcome.decode(self._call("clean", job))

    def prepare(self, directory: str, swaps: Sequence[Swap], interval_bytes: int) -> None:
        self._call("prepare", [directory, swaps, interval_bytes])

    def close(self) -> None:
        """End the process, and never start another. Any thread may call this."""
        with self._lock:
            self._is_closed = True
        self.end()

    def end(self) -> None:
        """End the process, whatever it does. A call that waits for it fails; the next call starts another process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr] # it was started with both

    def _call(self, task: str, argument: Sequence[Any]) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([task, argument]).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):  # it has ended, or `close` was called
            line = b""
        if not line.endswith(b"\n"):
            self.end()
            raise WorkerFailed(f"{task}: the worker ended with status {process.wait()}")
        error, result = json.loads(line)
        if error is not None:
            raise WorkerFailed(f"{task}: {error}")
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        """A session of its own: a Ctrl-C in the terminal is the broker's to handle."""
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._lock:
            if self._is_closed:
                raise WorkerFailed("the worker was closed")
            try:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                )
            except OSError as error:  # no descriptors, no memory, too many processes
                raise WorkerFailed(f"the worker cannot be started: {error.strerror}") from error
        return process


def _clean(argument: list[Any]) -> Outcome:
    return cleaner.clean(Job.decode(argument))


def _prepare(argument: list[Any]) -> None:
    directory, swaps, interval_bytes = argument
    for old, new in swaps:
        swap.prepare(directory, Swap(tuple(old), tuple(new)), interval_bytes)


_TASKS: Final[dict[str, Callable[[list[Any]], Any]]] = {"clean": _clean, "prepare": _prepare}


def _answer(line: bytes) -> bytes:
    task, argument = json.loads(line)
    error = result = None
    try:
        result = _TASKS[task](argument)
    except (OSError, StorageFault, BrokerError) as failure:
        error = str(failure)
    return json.dumps([error, result]).encode() + b"\n"


def _read_tasks(tasks: "SimpleQueue[bytes]") -> None:
    """The broker holds the other end of stdin: when that closes, so does everything here, at once."""
    for line in sys.stdin.buffer:
        tasks.put(line)
    os._exit(0)


def main() -> None:
    os.nice(_NICENESS)
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not print into the answers
    tasks: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_tasks, args=(tasks,), daemon=True).start()
    while True:
        answer = _answer(tasks.get())
        while answer:
            answer = answer[os.write(answers, answer) :]


if __name__ == "__main__":
    main()
