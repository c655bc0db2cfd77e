"""Which offset may be committed while messages finish in any order: never past one that is still in work. Pure."""

from heapq import heappop, heappush


class OffsetTracker:
    """The messages of one partition that are in work. An offset is started once, and finished once.

    >>> tracker = OffsetTracker()
    >>> for offset in (5, 6, 9):
    ...     tracker.start(offset)
    >>> tracker.finish(6), tracker.next_offset
    (None, 5)
    >>> tracker.finish(5), tracker.next_offset
    (None, 9)
    >>> tracker.finish(9), tracker.next_offset
    (None, 10)
    """

    def __init__(self) -> None:
        self._started: list[int] = []  # a heap; what is finished leaves it when it comes to the top
        self._finished: set[int] = set()
        self._end: int | None = None  # one past the highest offset seen

    @property
    def in_work(self) -> int:
        return len(self._started) - len(self._finished)

    @property
    def next_offset(self) -> int | None:
        """What to commit: every message before it is finished. None before the first message."""
        return self._started[0] if self._started else self._end

    def start(self, offset: int, last_offset: int | None = None) -> None:
        """A message is in work; one that came in parts also has a last offset."""
        heappush(self._started, offset)
        end = (offset if last_offset is None else last_offset) + 1
        self._end = end if self._end is None else max(self._end, end)

    def finish(self, offset: int) -> None:
        self._finished.add(offset)
        while self._started and self._started[0] in self._finished:
            self._finished.discard(heappop(self._started))
