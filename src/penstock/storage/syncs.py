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

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: dict[object, Sync] = {}

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
        """What has been waited for longer than that."""
        now_s = monotonic()
        for sync in list(self._under_way.values()):
            if now_s - sync.since_s > limit_s:
                return f"{sync.path}: a sync has not returned for {now_s - sync.since_s:.0f} s"
        return None
