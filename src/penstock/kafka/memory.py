"""Buffers for large frames: pooled, because fresh ones cost page faults, and bounded all together.

Small frames are parsed in one scratch buffer per loop and need no memory of their own. A connection
that is refused a buffer stops reading, so that back-pressure reaches the sender through TCP.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

_SMALLEST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 20  # free buffers beyond this go back to the system


class FrameMemory:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of at least `size_bytes`, or None: then wait with `when_free`.

        One buffer is always granted, whatever its size: else a frame above the limit but within
        `socket.request.max.bytes` would wait for ever.
        """
        capacity = max(_SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
        if self._used_bytes and self._used_bytes + capacity > self._limit_bytes:
            return None
        self._used_bytes += capacity
        for index in range(len(self._free) - 1, -1, -1):
            if len(self._free[index]) == capacity:
                self._free_bytes -= capacity
                return self._free.pop(index)
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        self._used_bytes -= len(buffer)
        if self._free_bytes + len(buffer) <= _KEPT_BYTES:
            self._free.append(buffer)
            self._free_bytes += len(buffer)
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def when_free(self, retry: Callable[[], None]) -> None:
        self._waiting.append(retry)
