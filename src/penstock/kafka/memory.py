"""Buffers for large frames: pooled, because fresh ones cost page faults, and bounded all together.

Small frames are parsed in one scratch buffer per loop and need no memory of their own. Who gets no
buffer waits in line: it stops reading, so that back-pressure reaches the sender through TCP, and nobody
overtakes it, so that a large frame is not starved by small ones. Who has one may exchange it for a larger
one as its frame arrives, ahead of the line, because only frames that end make room.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_SMALLEST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 20  # free buffers beyond this go back to the system

Granted = Callable[[bytearray], None]


class Filler(Protocol):
    """Who fills a buffer from its peer."""

    def close_if_stalled(self) -> None: ...


class _Waiting(NamedTuple):
    more_bytes: int
    granted: Granted
    held: bytearray | None  # what it gives in exchange


class FrameMemory:
    """Whoever is granted a buffer gives it back, once. Only the event loop calls it.

    Those who wait to exchange theirs cannot end, so when all holders do, the first of them goes on whatever the
    limit: at most one frame is beyond it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._held_count = 0
        self._stuck_count = 0  # of those who hold one: how many wait for a larger one
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._line: deque[_Waiting] = deque()
        self.fillers: set[Filler] = set()
        self.is_watched = False  # while some wait, those who fill are looked at

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of at least `size_bytes`, or None: then wait with `ask`."""
        capacity = _capacity(size_bytes)
        return None if self._line or not self._fits(capacity) else self._buffer(capacity)

    def ask(self, size_bytes: int, granted: Granted) -> None:
        """`granted` is called with a buffer when it is its turn, unless it is withdrawn before."""
        self._line.append(_Waiting(_capacity(size_bytes), granted, None))

    def grow(self, held: bytearray) -> bytearray | None:
        """A buffer of twice the size, with the same contents, for `held`; or None: then wait with `ask_larger`."""
        are_others_stuck = self._stuck_count == self._held_count - 1
        return self._exchange(held) if are_others_stuck or self._fits(len(held)) else None

    def ask_larger(self, held: bytearray, granted: Granted) -> None:
        """As `ask`, for what `grow` would return. Until then `held` is still the caller's."""
        self._stuck_count += 1
        self._line.appendleft(_Waiting(len(held), granted, held))

    def withdraw(self, granted: Granted) -> None:
        gone = [entry for entry in self._line if entry.granted == granted]
        self._stuck_count -= sum(entry.held is not None for entry in gone)
        self._line = deque(entry for entry in self._line if entry.granted != granted)
        self._serve()  # it may have been the first in line

    def give(self, buffer: bytearray) -> None:
        self._put_back(buffer)
        if self._line:
            self._serve()

    def _serve(self) -> None:
        while self._line and self._is_due(self._line[0]):
            first = self._line.popleft()
            if first.held is None:
                first.granted(self._buffer(first.more_bytes))
            else:
                self._stuck_count -= 1
                first.granted(self._exchange(first.held))

    def _is_due(self, first: _Waiting) -> bool:
        are_all_stuck = first.held is not None and self._stuck_count == self._held_count
        return are_all_stuck or self._fits(first.more_bytes)

    def _fits(self, more_bytes: int) -> bool:
        """One buffer is always granted, whatever its size: else a frame above the limit but within
        `socket.request.max.bytes` would wait for ever."""
        return not self._used_bytes or self._used_bytes + more_bytes <= self._limit_bytes

    def _exchange(self, held: bytearray) -> bytearray:
        larger = self._buffer(2 * len(held))
        with memoryview(larger) as view:
            view[: len(held)] = held
        self._put_back(held)
        return larger

    def _buffer(self, capacity: int) -> bytearray:
        buffer = self._from_pool(capacity) or bytearray(capacity)
        self._used_bytes += capacity
        self._held_count += 1
        return buffer

    def _from_pool(self, capacity: int) -> bytearray | None:
        for index in range(len(self._free) - 1, -1, -1):
            if len(self._free[index]) == capacity:
                self._free_bytes -= capacity
                return self._free.pop(index)
        return None

    def _put_back(self, buffer: bytearray) -> None:
        self._used_bytes -= len(buffer)
        self._held_count -= 1
        if self._free_bytes + len(buffer) <= _KEPT_BYTES:
            self._free.append(buffer)
            self._free_bytes += len(buffer)


def _capacity(size_bytes: int) -> int:
    return max(_SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
