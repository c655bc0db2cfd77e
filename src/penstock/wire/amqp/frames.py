"""Frames: split from a stream of bytes, and built. A frame is its type, its channel and a payload.

The splitter never copies a payload: a frame names where its payload lies in the received bytes. Only
a frame that ends in a later read is collected, and no byte is copied more often than reads of the
frame's size would copy it, however small the reads are.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.wire.amqp.codec import FRAME_BODY, FRAME_END, FRAME_HEADER
from penstock.wire.amqp.errors import AmqpError, ReplyCode, frame_error
from penstock.wire.amqp.method import BASIC
from penstock.wire.amqp.properties import check_properties

PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
PROTOCOL_HEADER_0_9: Final = b"AMQP\1\1\0\x09"  # some old clients; their methods are the same
HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"
MIN_FRAME_MAX_BYTES: Final = 4096
EMPTY_FRAME_BYTES: Final = 8  # a frame without a payload
_HEAD_BYTES: Final = 7
_END: Final = b"\xce"
_HEAD: Final = struct.Struct(">BHI")
_BODY_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")  # class, weight, body size
_CONTENT_HEAD: Final = struct.Struct(">BHIHHQ")
_BETWEEN: Final = struct.Struct(">BBHI")  # the end of a frame and the head of the next


class Frame(NamedTuple):
    """The payload is `data[at:end]`."""

    type: int
    channel: int
    data: bytes
    at: int
    end: int


class ContentHeader(NamedTuple):
    body_bytes: int
    properties: bytes  # flags and property list, checked but not decoded


class FrameSplitter:
    """Splits received bytes into frames.

    `data[at:]` is what was not split yet. A reader of several frames at once may move `at` over
    whole frames.
    """

    __slots__ = ("_collected", "_wanted_bytes", "at", "data", "frame_max_bytes")

    def __init__(self, frame_max_bytes: int) -> None:
        self.frame_max_bytes = frame_max_bytes  # changes once, when the connection is tuned
        self.data = b""
        self.at = 0
        self._collected: bytearray | None = None  # the start of a frame that is not complete
        self._wanted_bytes = 0

    def feed(self, received: bytes | bytearray | memoryview) -> None:
        """Add received bytes. All frames of the bytes before must have been taken."""
        if self._collected is None:
            self.data = bytes(received)
        else:
            self._collected += received
            if len(self._collected) < self._wanted_bytes:
                return
            self.data = bytes(self._collected)
            self._collected = None
        self.at = 0

    def next(self) -> Frame | None:
        """Return the next frame, or `None` when the rest is not a whole frame."""
        data, at = self.data, self.at
        size = len(data) - at
        if size < _HEAD_BYTES:
            self._collect(_HEAD_BYTES)
            return None
        kind, channel, payload_bytes = _HEAD.unpack_from(data, at)
        if payload_bytes > self.frame_max_bytes:  # as RabbitMQ: 8 bytes too many are tolerated
            raise self._too_large(kind, payload_bytes)
        end = at + _HEAD_BYTES + payload_bytes
        if end >= len(data):
            self._collect(payload_bytes + EMPTY_FRAME_BYTES)
            return None
        if data[end] != FRAME_END:
            raise frame_error(f"type {kind}: invalid_frame_end_marker {data[end]}")
        self.at = end + 1
        return Frame(kind, channel, data, at + _HEAD_BYTES, end)

    @property
    def pending_bytes(self) -> int:
        """Return how many received bytes are held, as a part of a frame."""
        return len(self._collected or b"")

    def _collect(self, wanted_bytes: int) -> None:
        if self.at < len(self.data):
            self._collected = bytearray(self.data[self.at :])
            self._wanted_bytes = wanted_bytes
        self.data, self.at = b"", 0  # an idle connection holds no buffer

    def _too_large(self, kind: int, payload_bytes: int) -> AmqpError:
        limit = self.frame_max_bytes - EMPTY_FRAME_BYTES
        return frame_error(f"type {kind}: frame_too_large, {payload_bytes} bytes; limit {limit}")


def decode_content_header(data: bytes, at: int, end: int) -> ContentHeader:
    """Decode the payload of a header frame, for a method of class basic."""
    if end - at < _CONTENT.size + 2:
        raise frame_error(f"content header of {end - at} bytes")
    class_id, weight, body_bytes = _CONTENT.unpack_from(data, at)
    if class_id != BASIC or weight:
        text = f"expected content header for class {BASIC}, got one for class {class_id} instead"
        raise AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
    at += _CONTENT.size
    check_properties(data, at, end)
    return ContentHeader(body_bytes, bytes(data[at:end]))


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END


def encode_content_header(channel: int, properties: bytes, body_bytes: int) -> bytes:
    size = _CONTENT.size + len(properties)
    head = _CONTENT_HEAD.pack(FRAME_HEADER, channel, size, BASIC, 0, body_bytes)
    return head + properties + _END


def content_frames(
    channel: int, properties: bytes, body: bytes, frame_max_bytes: int
) -> list[bytes | memoryview]:
    """Return the header frame and the body frames of a message, in pieces to be joined.

    The body is not copied.
    """
    header = encode_content_header(channel, properties, len(body))
    if not body:
        return [header]
    limit = frame_max_bytes - EMPTY_FRAME_BYTES
    if len(body) <= limit:
        return [header, _HEAD.pack(FRAME_BODY, channel, len(body)), body, _END]
    pieces: list[bytes | memoryview] = [header]
    view = memoryview(body)
    for at in range(0, len(body), limit):
        part = view[at : at + limit]
        pieces += (_HEAD.pack(FRAME_BODY, channel, len(part)), part, _END)
    return pieces
