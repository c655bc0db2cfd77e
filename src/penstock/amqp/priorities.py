"""Priorities of messages, and the order in which a queue delivers its ready messages.

The order is by priority, then by position in the queue. A message that returns takes its old place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

QUORUM_LEVELS: Final = 32
QUORUM_DEFAULT: Final = 4


def classic_priority(priority: int | None, max_priority: int) -> int:
    """Return the level of a message in a classic queue with levels 0 to `max_priority`."""
    return min(priority or 0, max_priority)


def quorum_priority(priority: int | None) -> int:
    """Return the level of a message in a quorum queue, which has 32 of them."""
    return QUORUM_DEFAULT if priority is None else min(priority, QUORUM_LEVELS - 1)


class _Level:
    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh: deque[int] = deque()  # ascending
        self.returned: list[int] = []  # a heap

    def first(self) -> int | None:
        if self.returned and (not self.fresh or self.returned[0] < self.fresh[0]):
            return self.returned[0]
        return self.fresh[0] if self.fresh else None

    def pop(self) -> int:
        if self.returned and (not self.fresh or self.returned[0] < self.fresh[0]):
            return heappop(self.returned)
        return self.fresh.popleft()


class ReadyOrder:
    """The positions of the ready messages of a queue. A position is in it at most once."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []  # levels with a message or without, the highest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, position: int, priority: int = 0) -> None:
        """Add a message. Its position must be the highest so far, at any priority."""
        self._level(priority).fresh.append(position)
        self._count += 1

    def give_back(self, position: int, priority: int = 0) -> None:
        """Add a message that was taken out before."""
        heappush(self._level(priority).returned, position)
        self._count += 1

    def first(self) -> int | None:
        for priority in self._order:
            position = self._levels[priority].first()
            if position is not None:
                return position
        return None

    def pop(self) -> int:
        """Take out the message that comes next."""
        for priority in self._order:
            level = self._levels[priority]
            if level.fresh or level.returned:
                self._count -= 1
                return level.pop()
        raise IndexError("no message is ready")

    def __iter__(self) -> Iterator[int]:
        """Iterate over all positions in delivery order."""
        for priority in self._order:
            level = self._levels[priority]
            yield from sorted([*level.returned, *level.fresh])

    def clear(self) -> None:
        self._levels.clear()
        self._order.clear()
        self._count = 0

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            self._order = sorted(self._levels, reverse=True)
        return level
