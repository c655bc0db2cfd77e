"""Which syncs are under way, or wait for a thread: one that never returns has to be noticed from outside."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class Sync:
    """One that is under way, and how long `hung` has seen it."""

    __slots__ = ("path", "since_s", "waited_s")

    def __init__(self, path: str) -> None:
        self.path = path
        self.since_s = monotonic()
        self.waited_s = 0.0


class Syncs:
    """Of one data directory. Any thread may call it."""

    __slots__ = ("_looked_s", "_under_way")

    def __init__(self) -> None:
        self._under_way: dict[object, Sync] = {}
        self._looked_s = monotonic()

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        mark = object()
        self._under_way[mark] = Sync(path)
        try:
            yield
        finally:
            del self._under_way[mark]

    def waiting(self, what: str) -> Callable[[], None]:
        """A sync is about to be given to a thread. Call what is returned when it begins, or is given up."""
        mark = object()
        self._under_way[mark] = Sync(f"{what}, which waits for a thread")

        def begun() -> None:
            self._under_way.pop(mark, None)

        return begun

    def hung(self, limit_s: float) -> str | None:
        """Return what has been waited for longer than that, if anything. Call it several times within the limit.

        Time between two calls counts up to a quarter of the limit. If more has passed, the process was stopped, or
        its machine was, and the syncs with it.
        """
        now_s = monotonic()
        passed_s = min(now_s - self._looked_s, limit_s / 4)
        self._looked_s = now_s
        for sync in list(self._under_way.values()):
            sync.waited_s += min(passed_s, now_s - sync.since_s)
            if sync.waited_s > limit_s:
                return f"{sync.path}: a sync has not returned for {sync.waited_s:.0f} s"
        return None
