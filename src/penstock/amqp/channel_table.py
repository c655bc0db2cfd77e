"""The channels of an open connection: made, fed with frames, and ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.amqp.backend import Backend, FreshId, Session
from penstock.amqp.channel import Channel
from penstock.amqp.context import ChannelContext, ChannelLimits, Link
from penstock.amqp.failures import not_allowed, resource_error
from penstock.amqp.handshake import Handshake
from penstock.wire.amqp.acks import read_acks
from penstock.wire.amqp.codec import FRAME_METHOD
from penstock.wire.amqp.frames import Frame, FrameSplitter
from penstock.wire.amqp.methods import BasicAck, BasicPublish

_PUBLISH: Final = BasicPublish.index.to_bytes(4, "big")
_ACK: Final = BasicAck.index.to_bytes(4, "big")


class ChannelTable:
    """Invariant: no closed channel is in the table."""

    def __init__(
        self,
        session: Session,
        backend: Backend,
        handshake: Handshake,
        link: Link,
        out: list[bytes | memoryview],
        *,
        fresh_id: FreshId,
        limits: ChannelLimits,
        max_collected_bytes: int,
    ) -> None:
        self.session = session
        self._backend = backend
        self._handshake = handshake
        self._link = link
        self._out = out
        self._fresh_id = fresh_id
        self._limits = limits
        self._max_collected_bytes = max_collected_bytes
        self._collected_bytes = 0  # of incomplete bodies
        self._channels: dict[int, Channel] = {}

    def __iter__(self) -> Iterator[Channel]:
        """Iterate over the channels as they are now."""
        return iter(list(self._channels.values()))

    def __len__(self) -> int:
        return len(self._channels)

    def get(self, number: int) -> Channel | None:
        return self._channels.get(number)

    def receive(self, frame: Frame) -> None:
        channel = self._channels.get(frame.channel) or self._make(frame.channel)
        before = channel.collected_bytes
        channel.receive(frame)
        self._collected_bytes += channel.collected_bytes - before
        if self._collected_bytes > self._max_collected_bytes:
            raise resource_error(
                f"incomplete messages of this connection exceed {self._max_collected_bytes} bytes"
            )

    def receive_fast(self, splitter: FrameSplitter) -> bool:
        """Take a whole publish or a run of acks. Return `False` if there is none."""
        data, at = splitter.data, splitter.at
        index = data[at + 7 : at + 11]
        if (index != _PUBLISH and index != _ACK) or data[at] != FRAME_METHOD:
            return False
        channel = self._channels.get(data[at + 1] << 8 | data[at + 2])
        if channel is None or not channel.takes_fast_paths:
            return False
        if index == _PUBLISH:
            published = channel.reader.read(data, at, splitter.frame_max_bytes)
            if published is None:
                return False
            splitter.at = published[1]
            channel.receive_published(published[0])
            return True
        acks = read_acks(data, at, channel.number)
        if acks is None:
            return False
        splitter.at = acks[1]
        channel.receive_acks(acks[0])
        return True

    def forget(self, number: int) -> None:
        """Remove a channel that closed."""
        self._channels.pop(number, None)

    def terminate(self) -> None:
        """End all channels and give up what the session owns. Nothing is sent."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel.terminate()
        self._backend.leave(self.session)

    def _make(self, number: int) -> Channel:
        limit = self._handshake.channel_max
        if limit and len(self._channels) >= limit:
            raise not_allowed(
                f"number of channels opened ({len(self._channels)}) has reached the negotiated "
                f"channel_max ({limit})"
            )
        context = ChannelContext(
            number=number,
            session=self.session,
            backend=self._backend,
            link=self._link,
            limits=self._limits,
            frame_max_bytes=self._handshake.frame_max_bytes,
            notifies_cancel=self._handshake.has_capability("consumer_cancel_notify"),
            fresh_id=self._fresh_id,
            out=self._out,
        )
        channel = self._channels[number] = Channel(context)
        return channel
