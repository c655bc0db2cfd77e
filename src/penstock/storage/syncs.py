"""Which syncs are under way, or wait for a thread: one that never returns has to be noticed from outside."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple


class Sync(NamedTuple):
    path: str
    since_s: float


class Syncs:
    """Of one data directory. Any thread may call it."""

    __slots__ = ("_looked_s", "_resumed_s", "_under_way")

    def __init__(self) -> None:
        self._under_way: dict[object, Sync] = {}
        self._looked_s = self._resumed_s = 0.0

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        mark = object()
        self._under_way[mark] = Sync(path, monotonic())
        try:
            yield
        finally:
            del self._under_way[mark]

    def waiting(self, what: str) -> Callable[[], None]:
        """A sync is about to be given to a thread. Call what is returned when it begins, or is given up."""
        mark = object()
        self._under_way[mark] = Sync(f"{what}, which waits for a thread", monotonic())

        def begun() -> None:
            self._under_way.pop(mark, None)

        return begun

    def hung(self, limit_s: float) -> str | None:
        """Return what has been waited for longer than that, if anything. Call it a few times within the limit.

        If nobody called it for half of the limit, the process was stopped, or its machine was: the time before does
        not count, because syncs were stopped too.
        """
        now_s = monotonic()
        if now_s - self._looked_s > limit_s / 2:
            self._resumed_s = now_s
        self._looked_s = now_s
        for sync in list(self._under_way.values()):
            waited_s = now_s - max(sync.since_s, self._resumed_s)
            if waited_s > limit_s:
                return f"{sync.path}: a sync has not returned for {waited_s:.0f} s"
        return None
