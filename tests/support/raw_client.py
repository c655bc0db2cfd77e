"""A client that is one socket: it sends exactly the bytes a test wants, in the order it wants."""

import socket
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.wire.header import RequestHeader, decode_response_header, encode_request_header
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schema import Message

Answer = TypeVar("Answer", bound=Message)

PATIENCE_S: Final = 60.0  # nothing here takes a second; what takes this long is a hang


def encode_request(message: Message, version: int, correlation_id: int = 1) -> bytes:
    """The whole frame, size in front."""
    header = RequestHeader(type(message).api_key, version, correlation_id, "raw-client")
    payload = encode_request_header(header) + message.encode(version)
    return len(payload).to_bytes(4, "big") + payload


class RawClient:
    """One connection. A peer that hung up shows as ConnectionError when something is expected of it."""

    def __init__(
        self, bootstrap: str, source: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), patience_s, None if source is None else (source, 0)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, message: Message, version: int, correlation_id: int = 1) -> None:
        self.socket.sendall(encode_request(message, version, correlation_id))

    def receive(self) -> bytes:
        """The next answer, without its size."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def receive_as(self, answer: type[Answer], version: int) -> tuple[int, Answer]:
        """The next answer's correlation id and body."""
        frame = memoryview(self.receive())
        correlation_id, at = decode_response_header(frame, answer.api_key, version)
        return correlation_id, answer.decode(frame[at:], version)

    def ask(self, message: Message, answer: type[Answer], version: int) -> Answer:
        self.send(message, version)
        return self.receive_as(answer, version)[1]

    def is_served(self) -> bool:
        """Whether the broker answers on this connection, or has hung up."""
        try:
            self.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        except ConnectionError:
            return False
        return True

    def await_hang_up(self) -> bytes:
        """Wait until the broker closes; what it still sent. Times out when it does not."""
        received = b""
        try:
            while data := self.socket.recv(1 << 16):
                received += data
        except ConnectionError:
            pass
        return received

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += received
        return bytes(data)
