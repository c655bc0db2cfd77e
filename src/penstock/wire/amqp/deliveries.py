"""The fast path of basic.deliver: method, header and body of a message, from remembered parts.

What changes from one delivery to the next is the delivery tag and the body, and for most producers
the properties and the size. Everything else is kept as bytes. benchmarks/amqp_codec.py measures it.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.wire.amqp.codec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, encode_method
from penstock.wire.amqp.frames import EMPTY_FRAME_BYTES, content_frames
from penstock.wire.amqp.method import BASIC
from penstock.wire.amqp.methods import BasicDeliver

_TAG: Final = struct.Struct(">Q")
_HEADER_HEAD: Final = struct.Struct(">BHIHHQ")
_BODY_HEAD: Final = struct.Struct(">BBHI")
_CONTENT_BYTES: Final = 12
_END: Final = b"\xce"
_MAX_ROUTES: Final = 256


class DeliveryWriter:
    """Writes the deliveries of one consumer."""

    __slots__ = (
        "_body_bytes",
        "_channel",
        "_consumer_tag",
        "_frame_max_bytes",
        "_header",
        "_properties",
        "_routes",
    )

    def __init__(self, channel: int, consumer_tag: str, frame_max_bytes: int) -> None:
        self._channel = channel
        self._consumer_tag = consumer_tag
        self._frame_max_bytes = frame_max_bytes
        self._routes: dict[tuple[str, str, bool], tuple[bytes, bytes]] = {}
        self._properties = b""
        self._body_bytes = -1
        self._header = b""  # the header frame and the head of the body frame

    def write(
        self,
        out: list[bytes | memoryview],
        delivery_tag: int,
        *,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
    ) -> None:
        """Append the frames of a delivery to `out`, in pieces to be joined."""
        before, after = self._routes.get(
            (exchange, routing_key, redelivered)
        ) or self._remember_route(exchange, routing_key, redelivered)
        body_bytes = len(body)
        if body_bytes != self._body_bytes or properties != self._properties:
            if not 0 < body_bytes <= self._frame_max_bytes - EMPTY_FRAME_BYTES:
                out += (before, _TAG.pack(delivery_tag), after)
                out += content_frames(self._channel, properties, body, self._frame_max_bytes)
                return
            self._remember_header(properties, body_bytes)
        out += (before, _TAG.pack(delivery_tag), after, self._header, body, _END)

    def _remember_route(
        self, exchange: str, routing_key: str, redelivered: bool
    ) -> tuple[bytes, bytes]:
        """Encode the method once; return what is before and after its delivery tag."""
        method = BasicDeliver(self._consumer_tag, 0, redelivered, exchange, routing_key)
        frame = encode_method(self._channel, method)
        tag_at = 12 + frame[11]  # after the frame's head, the method's number and the consumer tag
        assert frame[0] == FRAME_METHOD
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        parts = self._routes[exchange, routing_key, redelivered] = (
            frame[:tag_at],
            frame[tag_at + _TAG.size :],
        )
        return parts

    def _remember_header(self, properties: bytes, body_bytes: int) -> None:
        size = _CONTENT_BYTES + len(properties)
        self._header = b"".join(
            (
                _HEADER_HEAD.pack(FRAME_HEADER, self._channel, size, BASIC, 0, body_bytes),
                properties,
                _BODY_HEAD.pack(_END[0], FRAME_BODY, self._channel, body_bytes),
            )
        )
        self._properties, self._body_bytes = properties, body_bytes
