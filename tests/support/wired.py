"""Clients of a broker without a network: their connections are real, the bytes go through a socket pair."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.kafka.connection import Connection
from penstock.kafka.memory import FrameMemory
from penstock.kafka.server import ConnectionLimits, Listener, Loop
from penstock.wire.header import decode_response_header
from penstock.wire.schema import Message
from tests.support.context import LISTENER, BrokerContext
from tests.support.raw_client import encode_request

Answer = TypeVar("Answer", bound=Message)


class Client:
    def __init__(self, broker: BrokerContext, sock: socket.socket, connection: Connection) -> None:
        self.socket = sock
        self.connection = connection
        self._broker = broker
        self._received = b""

    @property
    def is_connected(self) -> bool:
        return self.connection in self.connection.listener._connections

    def send(self, message: Message, version: int, correlation_id: int = 1) -> None:
        """And let the broker take it."""
        self.socket.sendall(encode_request(message, version, correlation_id))
        self.tick()

    def tick(self, ticks: int = 5) -> None:
        async def ticked() -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)

        self._broker.run(ticked())

    def frames(self, count: int) -> list[bytes]:
        """The next answers, without their sizes; waits for them."""
        return [self._broker.run(self._frame()) for _ in range(count)]

    def received(self) -> list[int]:
        """Correlation ids of the answers that are there by now. They are taken."""
        self.tick()
        self._read()
        ids = []
        while (found := self._next()) is not None:
            ids.append(int.from_bytes(found[:4], "big"))
        return ids

    def receive_as(self, answer: type[Answer], version: int) -> tuple[int, Answer]:
        frame = memoryview(self.frames(1)[0])
        correlation_id, at = decode_response_header(frame, answer.api_key, version)
        return correlation_id, answer.decode(frame[at:], version)

    async def _frame(self) -> bytes:
        while (found := self._next()) is None:
            await asyncio.sleep(0)
            self._read()
        return found

    def _next(self) -> bytes | None:
        end = 4 + int.from_bytes(self._received[:4], "big")
        if len(self._received) < max(end, 5):
            return None
        found, self._received = self._received[4:end], self._received[end:]
        return found

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the broker hung up")
        self._received += data


class Door:
    """Where clients come in."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._clients: list[Client] = []
        self.loop = broker.call(self._loop)
        limits = ConnectionLimits(lambda: 100, lambda: 100)
        unused = socket.socket()
        self.listener = Listener(LISTENER, unused, broker.services, self.loop, limits, 600.0)

    def _loop(self) -> Loop:
        memory = FrameMemory(64 << 20)
        return Loop(
            asyncio.get_running_loop(),
            memory,
            100 << 20,
            self._broker.services.spawn,
            self._broker.replicas.turns,
        )

    def connect(self) -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        assert self.listener._limits.admit("client") is None

        def connected() -> Connection:
            return Connection(ours, self.listener, self.loop, "client")

        connection = self._broker.call(connected)
        self.listener._connections.add(connection)
        self._clients.append(Client(self._broker, theirs, connection))
        return self._clients[-1]

    def close(self) -> None:
        self._broker.call(self.listener.close)
        for client in self._clients:
            client.socket.close()


@contextmanager
def door_to(broker: BrokerContext) -> Iterator[Door]:
    door = Door(broker)
    try:
        yield door
    finally:
        door.close()
