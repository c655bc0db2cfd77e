"""Length-prefixed frames, without I/O: feed it bytes, take whole frames out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.wire.fields import Chunk
from penstock.wire.primitives import MalformedMessage, finish

PREFIX_BYTES: Final = 4


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


def encode_frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(PREFIX_BYTES, "big") + payload


def frame_chunks(chunks: list[Chunk]) -> list[Chunk]:
    """A frame around `chunks`, its size in front, in as few chunks as can be."""
    size_bytes = sum(map(len, chunks))
    return finish([size_bytes.to_bytes(PREFIX_BYTES, "big"), *chunks])
