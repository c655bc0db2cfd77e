"""Length-prefixed frames, without I/O: feed it bytes, take whole frames out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.wire.fields import Chunk
from penstock.wire.primitives import MalformedMessage, finish

PREFIX_BYTES: Final = 4
_USUAL_BYTES: Final = 64 << 10
_GROWTH: Final = 16
_MANY: Final = 1000  # frames


class FrameTooLarge(MalformedMessage):
    """The peer announced a frame beyond the limit: it is broken or hostile, hang up."""


class FrameDecoder:
    """Splits a stream into frames. It holds at most one frame and what was fed with its end."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Every frame completed by `data`, in order."""
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES:
            size = int.from_bytes(self._buffer[:PREFIX_BYTES], "big", signed=True)
            if not 0 <= size <= self._max_frame_bytes:
                raise FrameTooLarge(f"frame of {size} bytes; the limit is {self._max_frame_bytes}")
            end = PREFIX_BYTES + size
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[PREFIX_BYTES:end])
            del self._buffer[:end]
            yield frame


class FrameBuffer:
    """Frames where they were received: nothing is copied, and no memory is taken anew for each of them.

    A frame lies there until the next one is asked for. The buffer grows to the largest that comes, and is small again
    when none of the last many needed that.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._view = memoryview(bytearray(_USUAL_BYTES))
        self._filled = 0
        self._small_frames = 0  # since the last one that was too large for the usual buffer

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._filled :]

    def received(self, count: int) -> Iterator[memoryview]:
        """Every frame completed by `count` more bytes, in order; all must be asked for."""
        view, filled, start = self._view, self._filled + count, 0
        wanted = 0
        while filled - start >= PREFIX_BYTES:
            wanted = PREFIX_BYTES + self._size(view[start : start + PREFIX_BYTES])
            if filled - start < wanted:
                break
            yield view[start + PREFIX_BYTES : start + wanted]
            start += wanted
            self._small_frames = 0 if wanted > _USUAL_BYTES else self._small_frames + 1
        self._keep(start, filled, wanted)

    def _size(self, prefix: memoryview) -> int:
        size = int.from_bytes(prefix, "big", signed=True)
        if not 0 <= size <= self._max_frame_bytes:
            raise FrameTooLarge(f"frame of {size} bytes; the limit is {self._max_frame_bytes}")
        return size

    def _keep(self, start: int, end: int, wanted: int) -> None:
        """The front of a frame stays, where all of it has room."""
        view, kept = self._view, end - start
        self._filled = kept
        if wanted > len(view) and kept > len(view) // 2:  # a size that is only said takes no memory
            room_bytes = min(1 << (wanted - 1).bit_length(), _GROWTH * len(view))
            self._view = memoryview(bytearray(room_bytes))
        elif len(view) > _USUAL_BYTES and self._small_frames > _MANY and not kept:
            self._view = memoryview(bytearray(_USUAL_BYTES))
        if kept and (start or self._view is not view):
            self._view[:kept] = view[start:end]


def encode_frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(PREFIX_BYTES, "big") + payload


def frame_chunks(chunks: list[Chunk]) -> list[Chunk]:
    """A frame around `chunks`, its size in front, in as few chunks as can be."""
    size_bytes = sum(map(len, chunks))
    return finish([size_bytes.to_bytes(PREFIX_BYTES, "big"), *chunks])
