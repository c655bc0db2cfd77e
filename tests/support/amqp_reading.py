"""Reads what a client sends on one channel, by the fast paths or, as their plain twin, without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from penstock.wire.amqp.acks import read_acks
from penstock.wire.amqp.codec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, decode_method
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.frames import ContentHeader, Frame, FrameSplitter, decode_content_header
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import BasicAck, BasicPublish
from penstock.wire.amqp.publishes import PublishReader

Event: TypeAlias = tuple[object, ...]
CHANNEL: Final = 1


class StreamReader:
    """Turns bytes into messages, acks and other methods, until an error."""

    def __init__(self, frame_max_bytes: int, *, fast: bool) -> None:
        self._splitter = FrameSplitter(frame_max_bytes)
        self._publishes = PublishReader(CHANNEL)
        self._fast = fast
        self._method: Method | None = None
        self._header: ContentHeader | None = None
        self._body = b""
        self.events: list[Event] = []
        self.fast_messages = 0

    def read(self, data: bytes) -> None:
        if self.events and self.events[-1][0] == "error":
            return
        try:
            self._splitter.feed(data)
            while self._read_next():
                pass
        except AmqpError as error:
            self.events.append(("error", error.code))

    def _read_next(self) -> bool:
        if self._fast and self._method is None and self._read_fast():
            return True
        frame = self._splitter.next()
        if frame is not None:
            self._read_frame(frame)
        return frame is not None

    def _read_fast(self) -> bool:
        splitter = self._splitter
        published = self._publishes.read(splitter.data, splitter.at, splitter.frame_max_bytes)
        if published is not None:
            self.events.append(("publish", *published[0]))
            self.fast_messages += 1
            splitter.at = published[1]
            return True
        acks = read_acks(splitter.data, splitter.at, CHANNEL)
        if acks is not None:
            run, splitter.at = acks
            for tag in range(run.first_tag, run.last_tag + 1):
                self.events.append(("ack", tag, run.multiple))
        return acks is not None

    def _read_frame(self, frame: Frame) -> None:
        kind, channel, data, at, end = frame
        if channel != CHANNEL:
            self.events.append(("frame", kind, channel, data[at:end]))
        elif self._method is None:
            self._read_method(frame)
        elif self._header is None:
            if kind != FRAME_HEADER:
                raise AmqpError(ReplyCode.UNEXPECTED_FRAME, "no header")
            self._header = decode_content_header(data, at, end)
            self._publish_if_whole()
        else:
            if kind != FRAME_BODY:
                raise AmqpError(ReplyCode.UNEXPECTED_FRAME, "no body")
            self._body += data[at:end]
            self._publish_if_whole()

    def _read_method(self, frame: Frame) -> None:
        kind, _, data, at, end = frame
        if kind != FRAME_METHOD:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, "no method")
        method = decode_method(data, at, end)
        if isinstance(method, BasicPublish):
            self._method, self._header, self._body = method, None, b""
        elif isinstance(method, BasicAck):
            self.events.append(("ack", method.delivery_tag, method.multiple))
        else:
            self.events.append(("method", method))

    def _publish_if_whole(self) -> None:
        assert self._header is not None
        if len(self._body) > self._header.body_bytes:
            raise AmqpError(ReplyCode.FRAME_ERROR, "too many body bytes")
        if len(self._body) == self._header.body_bytes:
            self.events.append(("publish", self._method, self._header.properties, self._body))
            self._method = None


def events_of(reads: Iterable[bytes], frame_max_bytes: int, *, fast: bool) -> list[Event]:
    reader = StreamReader(frame_max_bytes, fast=fast)
    for data in reads:
        reader.read(data)
    return reader.events
