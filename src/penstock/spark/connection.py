"""One blocking connection to one broker, for reading much: an answer is received into a buffer that is used again."""

import socket
from contextlib import suppress
from struct import pack
from typing import Final, TypeVar

from penstock import __version__
from penstock.client.connection import MAX_RESPONSE_BYTES, Address
from penstock.client.errors import ClientError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.framing import PREFIX_BYTES, encode_frame
from penstock.wire.header import RequestHeader, decode_response_header, encode_request_header
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schema import Message

R = TypeVar("R", bound=Message)

_FIRST_API_VERSIONS: Final = 3
_SPARE_BYTES: Final = 64 * 1024  # what an answer has around its records


class Buffer:
    """Grows to the largest answer it has held."""

    def __init__(self, size_bytes: int = 0) -> None:
        self._bytes = bytearray(size_bytes)

    def view(self, size_bytes: int) -> memoryview:
        if size_bytes > len(self._bytes):
            self._bytes = bytearray(size_bytes + _SPARE_BYTES)  # views of the old one keep it
        return memoryview(self._bytes)[:size_bytes]


class BlockingConnection:
    """One request at a time, by one thread. Any other may call `abort`, which ends what is under way."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        timeout_ms: int,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        """Connects and agrees on versions."""
        self.address = address
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        try:
            self._socket = socket.create_connection(address, timeout_ms / 1000)
        except OSError as error:
            reason = error.strerror or str(error)
            raise _failed(f"cannot reach {address}: {reason.lower()}") from None
        try:
            self._configure(timeout_ms, receive_buffer_bytes)
            self._agree_on_versions()
        except BaseException:
            self.close()
            raise

    def _configure(self, timeout_ms: int, receive_buffer_bytes: int | None) -> None:
        """The kernel keeps the time: a socket that Python times never waits for all bytes of an answer."""
        seconds, rest_ms = divmod(timeout_ms, 1000)
        self._socket.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, pack("@ll", seconds, rest_ms * 1000))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        with suppress(OSError):  # it is not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def version_for(self, request: type[Message], at_most: int) -> int:
        theirs = self._versions.get(request.api_key, range(0))
        ours = range(request.versions[0], min(request.versions[-1], at_most) + 1)
        highest = min(ours[-1], theirs[-1]) if ours and theirs else -1
        if highest < 0 or highest < max(ours[0], theirs[0]):
            name = request.__name__.removesuffix("Request")
            raise ClientError(
                f"broker {self.address} has no version of {name} that this reader knows",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return highest

    def request(
        self, request: Message, response: type[R], version: int, buffer: Buffer | None = None
    ) -> R:
        """The answer, whose records are views of `buffer`."""
        return self._decode(self._exchange(request, version, buffer), response, version)

    def _exchange(self, request: Message, version: int, buffer: Buffer | None) -> memoryview:
        self._correlation_id += 1
        header = RequestHeader(request.api_key, version, self._correlation_id, self._client_id)
        frame = encode_frame(encode_request_header(header) + request.encode(version))
        try:
            self._socket.sendall(frame)
            return self._receive(buffer or Buffer())
        except OSError as error:
            raise _lost(self.address, error) from None

    def _decode(self, frame: memoryview, response: type[R], version: int) -> R:
        try:
            correlation_id, start = decode_response_header(frame, response.api_key, version)
            if correlation_id != self._correlation_id:
                raise BrokerError("it answered a request that was not sent")
            return response.decode(frame[start:], version)
        except BrokerError as error:
            raise ClientError(
                f"{self.address} does not speak the Kafka protocol as expected ({error})",
                ErrorCode.CORRUPT_MESSAGE,
            ) from None

    def _receive(self, buffer: Buffer) -> memoryview:
        prefix = bytearray(PREFIX_BYTES)
        self._fill(memoryview(prefix))
        size = int.from_bytes(prefix, "big", signed=True)
        if not 0 <= size <= MAX_RESPONSE_BYTES:
            raise _failed(f"{self.address} announced an answer of {size} bytes")
        frame = buffer.view(size)
        self._fill(frame)
        return frame

    def _fill(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            count = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("it was closed")
            at += count

    def _agree_on_versions(self) -> None:
        """A refusal comes in a format of its own: only its code is read."""
        request = ApiVersionsRequest(
            client_software_name="penstock", client_software_version=__version__
        )
        version = _FIRST_API_VERSIONS
        frame = self._exchange(request, version, None)
        if int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            frame = self._exchange(request, version, None)
        answer = self._decode(frame, ApiVersionsResponse, version)
        self._versions = {
            api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys
        }


def _failed(message: str) -> ClientError:
    return ClientError(message, ErrorCode.NETWORK_EXCEPTION)


def _lost(address: Address, error: OSError) -> ClientError:
    if isinstance(error, BlockingIOError):
        return _failed(f"{address} did not answer in time")
    return _failed(f"the connection to {address} was lost: {error.strerror or error}")
