"""Puts the frames of one channel together: a method, and for some the header and bodies after it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.wire.amqp.codec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, decode_method
from penstock.wire.amqp.errors import AmqpError, ReplyCode, frame_error
from penstock.wire.amqp.frames import Frame, decode_content_header
from penstock.wire.amqp.method import Method

MAX_CONTENT_BYTES = 512 * 1024 * 1024  # as in RabbitMQ; messages have a lower limit


class Content(NamedTuple):
    properties: bytes  # checked, not decoded
    body: bytes
    body_bytes: int  # as announced; more than in `body` if the message was too large to collect


class Assembled(NamedTuple):
    method: Method
    content: Content | None


class ContentAssembler:
    """Invariant: between messages nothing is held.

    A message that is larger than the limit is read to its end, but not collected.
    """

    __slots__ = ("_body_bytes", "_chunks", "_left_bytes", "_max_bytes", "_method", "_properties")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._method: Method | None = None
        self._properties: bytes | None = None  # None: the header is still to come
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        self._left_bytes = 0

    @property
    def method(self) -> Method | None:
        """Return the method whose content is incomplete."""
        return self._method

    @property
    def collected_bytes(self) -> int:
        """Return how many bytes of an incomplete body are held."""
        return self._body_bytes - self._left_bytes if self._chunks else 0

    def add(self, frame: Frame) -> Assembled | None:
        """Return the method if the frame completes it."""
        if self._method is None:
            return self._add_method(frame)
        if self._properties is None:
            return self._add_header(frame)
        return self._add_body(frame)

    def _add_method(self, frame: Frame) -> Assembled | None:
        if frame.type != FRAME_METHOD:
            raise _unexpected("expected method frame, got non method frame instead")
        method = decode_method(frame.data, frame.at, frame.end)
        if not method.has_content:
            return Assembled(method, None)
        self._method = method
        return None

    def _add_header(self, frame: Frame) -> Assembled | None:
        assert self._method is not None
        if frame.type != FRAME_HEADER:
            raise _unexpected(
                f"expected content header for class {self._method.index >> 16}, "
                "got non content header frame instead"
            )
        header = decode_content_header(frame.data, frame.at, frame.end)
        if header.body_bytes > MAX_CONTENT_BYTES:
            raise frame_error(
                f"content body size {header.body_bytes} exceeds maximum allowed size "
                f"{MAX_CONTENT_BYTES}"
            )
        self._properties = header.properties
        self._body_bytes = self._left_bytes = header.body_bytes
        return None if header.body_bytes else self._complete()

    def _add_body(self, frame: Frame) -> Assembled | None:
        if frame.type != FRAME_BODY:
            raise _unexpected("expected content body, got non content body frame instead")
        size = frame.end - frame.at
        if size > self._left_bytes:
            raise frame_error("content body frame exceeds remaining content size")
        self._left_bytes -= size
        if self._body_bytes <= self._max_bytes:
            self._chunks.append(frame.data[frame.at : frame.end])
        return None if self._left_bytes else self._complete()

    def _complete(self) -> Assembled:
        assert self._method is not None
        assert self._properties is not None
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        assembled = Assembled(self._method, Content(self._properties, body, self._body_bytes))
        self._method = self._properties = None
        self._chunks = []
        self._body_bytes = 0
        return assembled


def _unexpected(text: str) -> AmqpError:
    return AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
