"""A client of an AMQP connection in the same process, for tests that read as a dialogue."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple, TypeVar

from penstock.amqp.connection import Connection, ConnectionServices
from penstock.amqp.credentials import CheckCredentials, Peer, let_in_from_loopback
from penstock.amqp.effects import Close, Effect, Send, SetReading
from penstock.amqp.memory.broker import MemoryBroker
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    decode_method,
    encode_method,
)
from penstock.wire.amqp.connection_methods import (
    ChannelOpen,
    ChannelOpenOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from penstock.wire.amqp.frames import (
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
    content_frames,
    decode_content_header,
)
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import BasicPublish, QueueDeclare
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.tables import as_table

_Expected = TypeVar("_Expected", bound=Method)
LOOPBACK = Peer("127.0.0.1", is_loopback=True)
CAPABILITIES = {
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}


class Received(NamedTuple):
    channel: int
    method: Method
    properties: Properties | None = None
    body: bytes = b""


class World:
    """A broker in memory with a clock, and the connections to it."""

    def __init__(
        self,
        settings: ConnectionSettings | None = None,
        check_credentials: CheckCredentials = let_in_from_loopback,
        backend: Any = None,
    ) -> None:
        self.now_ms = 1_000_000
        self.broker = MemoryBroker(lambda: self.now_ms)
        numbers = count(1)
        self.services = ConnectionServices(
            backend or self.broker,
            lambda prefix: f"{prefix}{next(numbers)}",
            check_credentials,
            settings or ConnectionSettings(),
        )

    def connect(self, peer: Peer = LOOPBACK) -> Client:
        return Client(self, peer)

    def open(self, *channels: int, **tuning: Any) -> Client:
        """Return an open connection with open channels, by default channel 1."""
        client = self.connect()
        client.shake_hands(**tuning)
        for channel in channels or (1,):
            client.send(ChannelOpen(), channel)
            client.expect(ChannelOpenOk, channel)
        return client

    def wait(self, duration_ms: int, *clients: Client) -> None:
        """Let time pass for the broker and for connections."""
        self.now_ms += duration_ms
        self.broker.advance()
        for client in clients:
            client.connection.advance(self.now_ms)
            client.take()


class Client:
    def __init__(self, world: World, peer: Peer) -> None:
        self.world = world
        self.announced = 0
        self.connection = Connection(world.services, peer, self._announce, world.now_ms)
        self.received: list[Received] = []
        self.heartbeats = 0
        self.raw = b""
        self.is_read = True
        self.closed: Close | None = None
        self._splitter = FrameSplitter(1 << 30)
        self._partial: dict[int, tuple[Method, Properties | None, bytes, int]] = {}
        self._saw_header = False

    def _announce(self) -> None:
        self.announced += 1

    # Sending ------------------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        self.connection.receive(data, self.world.now_ms)
        self.take()

    def send(self, method: Method, channel: int = 1) -> None:
        self.send_bytes(encode_method(channel, method))

    def publish(
        self,
        routing_key: str = "",
        body: bytes = b"",
        *,
        exchange: str = "",
        channel: int = 1,
        mandatory: bool = False,
        headers: dict[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        if headers is not None:
            properties["headers"] = as_table(headers)
        method = BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        encoded = encode_properties(Properties(**properties))
        frames = content_frames(channel, encoded, body, 4096)
        self.send_bytes(encode_method(channel, method) + b"".join(frames))

    def declare(
        self, queue: str = "q", arguments: dict[str, Any] | None = None, **bits: bool
    ) -> None:
        method = QueueDeclare(queue=queue, arguments=as_table(arguments or {}), **bits)
        self.send(method)
        assert self.next().method.name == "queue.declare-ok"

    def shake_hands(
        self,
        *,
        vhost: str = "/",
        capabilities: dict[str, bool] | None = None,
        user: str = "guest",
        heartbeat: int = 0,
        frame_max: int = 131_072,
        channel_max: int = 2047,
    ) -> None:
        self.send_bytes(PROTOCOL_HEADER)
        self.expect(ConnectionStart, 0)
        wanted = CAPABILITIES if capabilities is None else capabilities
        response = b"\0" + user.encode() + b"\0secret"
        properties = as_table({"capabilities": wanted})
        self.send(ConnectionStartOk(properties, "PLAIN", response), 0)
        self.expect(ConnectionTune, 0)
        self.send(ConnectionTuneOk(channel_max, frame_max, heartbeat), 0)
        self.send(ConnectionOpen(vhost), 0)
        self.expect(ConnectionOpenOk, 0)

    # Receiving ----------------------------------------------------------------------------------------

    def take(self) -> list[Effect]:
        """Perform the effects of the connection, until there are none."""
        effects = self.connection.drain(self.world.now_ms)
        while more := self.connection.drain(self.world.now_ms):
            effects += more
        for effect in effects:
            match effect:
                case Send():
                    self._read(effect.data)
                case SetReading(enabled):
                    self.is_read = enabled
                case Close():
                    assert self.closed is None
                    self.closed = effect
        return effects

    def next(self) -> Received:
        self.take()
        assert self.received, "nothing was received"
        return self.received.pop(0)

    def expect(self, kind: type[_Expected], channel: int = 1) -> _Expected:
        received = self.next()
        assert received.channel == channel
        assert isinstance(received.method, kind), received
        return received.method

    def expect_nothing(self) -> None:
        self.take()
        assert not self.received

    def names(self) -> list[str]:
        """Take everything that was received. Return the names of the methods."""
        self.take()
        names = [received.method.name for received in self.received]
        self.received.clear()
        return names

    def bodies(self) -> list[bytes]:
        """Take all deliveries. Return their bodies."""
        self.take()
        bodies = [received.body for received in self.received]
        assert all(received.method.name == "basic.deliver" for received in self.received)
        self.received.clear()
        return bodies

    def _read(self, data: bytes) -> None:
        self.raw += data
        if data.startswith(b"AMQP"):
            return
        self._splitter.feed(data)
        while (frame := self._splitter.next()) is not None:
            self._read_frame(frame)

    def _read_frame(self, frame: Frame) -> None:
        kind, channel, data, at, end = frame
        if kind == FRAME_HEARTBEAT:
            self.heartbeats += 1
        elif kind == FRAME_HEADER:
            header = decode_content_header(data, at, end)
            properties = decode_properties(header.properties, 0, len(header.properties))
            method = self._partial[channel][0]
            self._partial[channel] = method, properties, b"", header.body_bytes
            self._complete(channel)
        elif kind == FRAME_BODY:
            method, properties_, body, size = self._partial[channel]
            self._partial[channel] = method, properties_, body + data[at:end], size
            self._complete(channel)
        else:
            method = decode_method(data, at, end)
            if method.has_content:
                self._partial[channel] = method, None, b"", 0
            else:
                self.received.append(Received(channel, method))

    def _complete(self, channel: int) -> None:
        method, properties, body, size = self._partial[channel]
        if len(body) == size:
            del self._partial[channel]
            self.received.append(Received(channel, method, properties, body))
