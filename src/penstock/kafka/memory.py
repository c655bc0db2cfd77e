"""Buffers for large frames: pooled, because fresh ones cost page faults, and bounded all together.

Small frames are parsed in one scratch buffer per loop and need no memory of their own. Who gets no
buffer waits in line: it stops reading, so that back-pressure reaches the sender through TCP, and nobody
overtakes it, so that a large frame is not starved by small ones.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

_SMALLEST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 20  # free buffers beyond this go back to the system

Granted = Callable[[bytearray], None]


class FrameMemory:
    """Whoever is granted a buffer gives it back, once. Only the event loop calls it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._line: deque[tuple[int, Granted]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of at least `size_bytes`, or None: then wait with `ask`."""
        capacity = max(_SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
        return None if self._line or not self._fits(capacity) else self._buffer(capacity)

    def ask(self, size_bytes: int, granted: Granted) -> None:
        """`granted` is called with a buffer when it is its turn, unless it is withdrawn before."""
        capacity = max(_SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
        self._line.append((capacity, granted))

    def withdraw(self, granted: Granted) -> None:
        self._line = deque(entry for entry in self._line if entry[1] != granted)
        self._serve()  # it may have been the first in line

    def give(self, buffer: bytearray) -> None:
        self._used_bytes -= len(buffer)
        if self._free_bytes + len(buffer) <= _KEPT_BYTES:
            self._free.append(buffer)
            self._free_bytes += len(buffer)
        if self._line:
            self._serve()

    def _serve(self) -> None:
        while self._line and self._fits(self._line[0][0]):
            capacity, granted = self._line.popleft()
            granted(self._buffer(capacity))

    def _fits(self, capacity: int) -> bool:
        """One buffer is always granted, whatever its size: else a frame above the limit but within
        `socket.request.max.bytes` would wait for ever."""
        return not self._used_bytes or self._used_bytes + capacity <= self._limit_bytes

    def _buffer(self, capacity: int) -> bytearray:
        self._used_bytes += capacity
        for index in range(len(self._free) - 1, -1, -1):
            if len(self._free[index]) == capacity:
                self._free_bytes -= capacity
                return self._free.pop(index)
        return bytearray(capacity)
