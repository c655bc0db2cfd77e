"""A large frame on its way in. Its buffer grows as its bytes arrive: who announces much and sends nothing gets little.

While others wait for memory, a peer that sends next to nothing of its frame loses its connection. A slow one keeps it.
"""

import socket
from typing import TYPE_CHECKING, Final

from penstock.kafka.hangup import HangUp
from penstock.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from penstock.kafka.server import Loop

LARGE_FRAME_BYTES: Final = 64 << 10  # a larger frame gets a buffer of its own
FIRST_BUFFER_BYTES: Final = 2 << 20  # a still larger one gets more only as its bytes arrive
_LARGEST_PLAIN_FRAME_BYTES: Final = 16 << 20
_STALLED_S: Final = 10.0  # in which a frame grows by that much while others wait for memory
_STALLED_BYTES: Final = 16 << 10
_LOOK_S: Final = 1.0


def check_announced(size_bytes: int, front: memoryview) -> None:
    """Only records may be really large: anything else becomes Python objects, many times the size of their bytes."""
    api_key = int.from_bytes(front[:2], "big")
    if size_bytes > _LARGEST_PLAIN_FRAME_BYTES and api_key != ApiKey.PRODUCE:
        raise HangUp(
            f"a frame of {size_bytes} bytes for api {api_key}; the limit for all but Produce is "
            f"{_LARGEST_PLAIN_FRAME_BYTES}"
        )


class LargeFrame:
    """Filled by one connection, which gives its buffer back."""

    __slots__ = ("_filled", "_marked_bytes", "_marked_s", "buffer", "size_bytes")

    def __init__(self, size_bytes: int, front: memoryview, buffer: bytearray, now_s: float) -> None:
        self.size_bytes = size_bytes
        self.buffer = buffer
        with memoryview(buffer) as view:  # a bytearray's own slice would copy `front` twice
            view[: len(front)] = front
        self._filled = len(front)
        self.mark(now_s)

    def receive(self, sock: socket.socket) -> int:
        """How many bytes came; 0: the peer sends no more."""
        with memoryview(self.buffer) as view:
            received = sock.recv_into(view[self._filled : self.size_bytes])
        self._filled += received
        return received

    @property
    def is_whole(self) -> bool:
        return self._filled == self.size_bytes

    @property
    def needs_room(self) -> bool:
        return self._filled == len(self.buffer) and not self.is_whole

    @property
    def contents(self) -> memoryview:
        return memoryview(self.buffer)[: self.size_bytes]

    # Whether it comes ----------------------------------------------------------------------------

    def mark(self, now_s: float) -> None:
        """From here on it must grow."""
        self._marked_bytes = self._filled
        self._marked_s = now_s

    def why_stalled(self, now_s: float) -> str | None:
        """None: it has grown, or still has time to."""
        stalled_s, grown_bytes = now_s - self._marked_s, self._filled - self._marked_bytes
        if stalled_s < _STALLED_S:
            return None
        if grown_bytes >= _STALLED_BYTES:
            self.mark(now_s)
            return None
        return (
            f"its frame of {self.size_bytes} bytes grew by {grown_bytes} in {stalled_s:.0f} s,"
            " and others wait for memory (queued.max.request.bytes)"
        )


def watch_fillers(loop: "Loop") -> None:
    """Somebody waits for memory: from now on those who fill theirs are looked at."""
    if not loop.memory.is_watched:
        loop.memory.is_watched = True
        loop.call_later(_LOOK_S, look_at_fillers, loop)


def look_at_fillers(loop: "Loop") -> None:
    """For as long as somebody waits."""
    for filler in list(loop.memory.fillers):
        if loop.memory.waiting:
            filler.close_if_stalled()
    loop.memory.is_watched = False
    if loop.memory.waiting:
        watch_fillers(loop)
