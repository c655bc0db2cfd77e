"""The fast path of basic.publish: method, header and a body of one frame, read at once.

`PublishReader.read` gives what the frames one by one would give, or nothing, and then the caller
reads them one by one. benchmarks/amqp_codec.py measures it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.wire.amqp.codec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    decode_method,
)
from penstock.wire.amqp.method import BASIC
from penstock.wire.amqp.methods import BasicPublish
from penstock.wire.amqp.properties import check_properties

_METHOD_HEAD: Final = struct.Struct(">BHII")  # type, channel, size, method
_HEADER_HEAD: Final = struct.Struct(">BHIHHQ")  # type, channel, size, class, weight, body size
_BODY_HEAD: Final = struct.Struct(">BBHI")  # end of the header frame, type, channel, size
_FRAME_HEAD_BYTES: Final = 7
_MAX_REMEMBERED_BYTES: Final = 4096


class Published(NamedTuple):
    """A message as it was published. `method` may be shared with other messages."""

    method: BasicPublish
    properties: bytes  # checked, not decoded
    body: bytes


class PublishReader:
    """Reads the publishes of one channel, and recognises what two in a row have in common.

    Publishers repeat themselves: the method frame is the same for each message to one exchange and
    key, and without a message id all bytes up to the body are. Both are compared, not decoded.
    """

    __slots__ = ("_channel", "_method", "_method_frame", "_prefix", "_properties")

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._method_frame = b""  # of the last message
        self._method = BasicPublish()
        self._prefix = b""  # of the last message: all bytes before its body
        self._properties = b""

    def read(self, data: bytes, at: int, frame_max_bytes: int) -> tuple[Published, int] | None:
        """Return the message whose frames lie at `at`, and where they end.

        `None` if they are not all there, or are not what they should be. Raises AmqpError for a
        malformed publish method and malformed properties, as reading them one by one does.
        """
        prefix = self._prefix
        if not prefix or not data.startswith(prefix, at):
            return self._read_anew(data, at, frame_max_bytes)
        start = at + len(prefix)
        end = start + int.from_bytes(prefix[-4:], "big")
        if end >= len(data) or data[end] != FRAME_END:
            return None
        return Published(self._method, self._properties, data[start:end]), end + 1

    def _read_anew(
        self, data: bytes, at: int, frame_max_bytes: int
    ) -> tuple[Published, int] | None:
        header_at = self._read_method(data, at, frame_max_bytes)
        if not header_at:
            return None
        head_end = header_at + _HEADER_HEAD.size
        if head_end + 2 > len(data):
            return None
        kind, channel, size, class_id, weight, body_bytes = _HEADER_HEAD.unpack_from(
            data, header_at
        )
        properties_end = header_at + _FRAME_HEAD_BYTES + size
        body_at = properties_end + _BODY_HEAD.size
        end = body_at + body_bytes
        if (
            (kind, channel, class_id, weight) != (FRAME_HEADER, self._channel, BASIC, 0)
            or not 0 < body_bytes <= frame_max_bytes
            or not head_end + 2 <= properties_end <= header_at + frame_max_bytes
            or end >= len(data)
            or data[end] != FRAME_END
        ):
            return None
        expected = (FRAME_END, FRAME_BODY, self._channel, body_bytes)
        if _BODY_HEAD.unpack_from(data, properties_end) != expected:
            return None
        check_properties(data, head_end, properties_end)
        self._properties = data[head_end:properties_end]
        if body_at - at <= _MAX_REMEMBERED_BYTES:
            self._prefix = data[at:body_at]
        return Published(self._method, self._properties, data[body_at:end]), end + 1

    def _read_method(self, data: bytes, at: int, frame_max_bytes: int) -> int:
        """Return where the method frame at `at` ends, or 0 if it is not a whole publish."""
        if self._method_frame and data.startswith(self._method_frame, at):
            return at + len(self._method_frame)
        if at + _METHOD_HEAD.size > len(data):
            return 0
        kind, channel, size, index = _METHOD_HEAD.unpack_from(data, at)
        end: int = at + _FRAME_HEAD_BYTES + size
        if (
            (kind, channel, index) != (FRAME_METHOD, self._channel, BasicPublish.index)
            or size > frame_max_bytes
            or end >= len(data)
            or data[end] != FRAME_END
        ):
            return 0
        method = decode_method(data, at + _FRAME_HEAD_BYTES, end)
        assert isinstance(method, BasicPublish)
        self._method = method
        self._method_frame = data[at : end + 1]
        return end + 1
