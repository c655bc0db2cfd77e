"""A limit for histories in which a process runs for ever without letting time pass."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(BaseException):
    """A history took too much CPU time. The product does not catch it."""


@contextmanager
def cpu_limited(limit_s: float) -> Iterator[None]:
    """Raise TooLong in the main thread when the process has used so much CPU time."""

    def end(_number: int, _frame: Any) -> None:
        raise TooLong(f"more than {limit_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
