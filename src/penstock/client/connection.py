"""One connection to one broker: requests are pipelined, and each is answered by its correlation id.

The versions are agreed when the connection opens; a request goes out in the highest that both sides know.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import pack
from typing import Final, NamedTuple, Self, TypeVar, cast

from penstock import __version__
from penstock.client.errors import ClientError, ConnectionRefused
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.framing import FrameBuffer, encode_frame
from penstock.wire.header import RequestHeader, decode_response_header, encode_request_header
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schema import Message

R = TypeVar("R", bound=Message)
OnAnswer = Callable[[memoryview | ClientError], None]

DEFAULT_PORT: Final = 9092
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
_MAX_CORRELATION_ID: Final = 2**31 - 1
_RESET: Final = pack("ii", 1, 0)  # lingers for no time: the kernel sends no more of it
_FIRST_API_VERSIONS: Final = 3  # every broker answers it, if only with the range that it knows


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`, `host` (port 9092) or `[::1]:port`; a ValueError says what was expected."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or (text.startswith("[") and text.endswith("]")):
        host, port = text.strip(), str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16:
        raise ValueError(f"expected HOST:PORT, not {text!r}")
    return Address(host.strip("[]"), int(port))


def parse_bootstrap(text: str) -> list[Address]:
    """One or more addresses with commas between them."""
    return [parse_address(part) for part in text.split(",")]


class Connection(asyncio.BufferedProtocol):
    """Owned by one event loop. Closed by `close`, by the broker, by a timeout or by nonsense from the other side."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer(MAX_RESPONSE_BYTES)
        self._versions: dict[int, range] = {}
        self._waiting: dict[int, OnAnswer] = {}
        self._next_correlation_id = 1
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._gone = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, address: Address, *, client_id: str, timeout_ms: int, known_as: str = ""
    ) -> Self:
        """Connects and agrees on versions. `known_as` says in errors where the address came from."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id), address.host, address.port
                )
        except TimeoutError:
            reason = f"no answer in {timeout_ms} ms"
            raise _unreachable(address, known_as, reason) from None
        except OSError as error:
            kind = ConnectionRefused if isinstance(error, ConnectionRefusedError) else ClientError
            raise _unreachable(address, known_as, _reason(error), kind) from None
        try:
            await connection._agree_on_versions(timeout_ms)
        except BaseException:
            connection._drop()  # also when cancelled: a half-open connection is nobody's
            raise
        return connection

    @property
    def is_closed(self) -> bool:
        return self._gone.done()

    def abort(self) -> None:
        """Hangs up at once: whoever waits for an answer is told that none will come."""
        self._recall()
        self._drop()

    async def closed(self) -> None:
        """Returns when the connection is gone, whoever ended it."""
        await asyncio.shield(self._gone)

    async def close(self) -> None:
        """Fails what is still waiting; returns when the socket is gone."""
        self._drop()
        await asyncio.shield(self._gone)

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        """The highest version that the broker, this client and the caller all have."""
        theirs = self._versions.get(request.api_key, range(0))
        ours = request.versions
        highest = min(ours[-1], theirs[-1] if theirs else -1)
        if at_most is not None:
            highest = min(highest, at_most)
        if not theirs or highest < max(ours[0], theirs[0]):
            raise ClientError(
                f"broker {self.address} has {_range_text(theirs)} of {_api_name(request)}; "
                f"this client needs {_range_text(ours)}",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return highest

    async def request(
        self,
        request: Message,
        response: type[R],
        *,
        timeout_ms: int,
        at_most: int | None = None,
    ) -> R:
        """Sends and waits for the answer. A timeout closes the connection: answers come in order."""
        version = self.version_for(type(request), at_most=at_most)
        frame = await self._exchange(request, version, timeout_ms)
        return self.decode(frame, response, version)

    def post(self, request: Message, version: int, on_answer: OnAnswer) -> None:
        """Sends at once, for those who ask often and time themselves; `decode` reads what comes back.

        The answer lies in the connection's own buffer, and is gone when `on_answer` returns. An error says that there
        will be none: the connection is lost. Raises if it is lost already.
        """
        self._waiting[self._write(request, version)] = on_answer

    async def send(self, request: Message, *, at_most: int | None = None) -> None:
        """Sends what is never answered (Produce with acks=0)."""
        version = self.version_for(type(request), at_most=at_most)
        await self._may_write.wait()
        self._write(request, version)

    async def _exchange(self, request: Message, version: int, timeout_ms: int) -> memoryview:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._may_write.wait()
                self._waiting[self._write(request, version)] = partial(_settle, answer)
                return await answer
        except TimeoutError:
            error = ClientError(
                f"no answer from {self.address} to {_api_name(type(request))} in {timeout_ms} ms",
                ErrorCode.REQUEST_TIMED_OUT,
                outcome_unknown=True,
            )
            self._recall()
            self._drop(error)
            raise error from None

    def _recall(self) -> None:
        """What has not arrived yet never shall: whoever asks again must not be overtaken by an earlier self."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError, ValueError):  # it is closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _write(self, request: Message, version: int) -> int:
        if self._transport is None or self._transport.is_closing():
            raise _lost(self.address, outcome_unknown=False)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id % _MAX_CORRELATION_ID + 1
        header = RequestHeader(request.api_key, version, correlation_id, self._client_id)
        payload = encode_request_header(header) + request.encode(version)
        self._transport.write(encode_frame(payload))
        return correlation_id

    def decode(self, frame: memoryview, response: type[R], version: int) -> R:
        """What cannot be read ends the connection."""
        try:
            _, start = decode_response_header(frame, response.api_key, version)
            return response.decode(frame[start:], version)
        except BrokerError as error:
            nonsense = _nonsense(self.address, str(error))
            self._drop(nonsense)
            raise nonsense from error

    async def _agree_on_versions(self, timeout_ms: int) -> None:
        """A refusal comes in a format of its own, which not everyone gets right: only its code is read."""
        request = ApiVersionsRequest(
            client_software_name="penstock", client_software_version=__version__
        )
        version = _FIRST_API_VERSIONS
        frame = await self._exchange(request, version, timeout_ms)
        if int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            frame = await self._exchange(request, version, timeout_ms)
        answer = self.decode(frame, ApiVersionsResponse, version)
        if answer.error_code != ErrorCode.NONE:
            raise _nonsense(self.address, f"ApiVersions failed with error {answer.error_code}")
        self._versions = {
            api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys
        }

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # TCP; uvloop's is of no asyncio class

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._answered(frame)
        except BrokerError as error:
            self._drop(_nonsense(self.address, str(error)))

    def connection_lost(self, reason: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._drop(_lost(self.address, outcome_unknown=True))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _answered(self, frame: memoryview) -> None:
        on_answer = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
        if on_answer is None:
            raise BrokerError("it answered a request that was not sent")
        on_answer(frame)

    def _drop(self, error: ClientError | None = None) -> None:
        """Hangs up; whoever still waits gets `error`."""
        self._may_write.set()
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(error or _lost(self.address, outcome_unknown=True))
        if self._transport is not None:
            self._transport.abort()


def _settle(future: asyncio.Future[memoryview], answer: memoryview | ClientError) -> None:
    if future.done():  # its caller was cancelled and does not wait any more
        return
    if isinstance(answer, ClientError):
        future.set_exception(answer)
    else:
        future.set_result(memoryview(bytes(answer)))


def _unreachable(
    address: Address, known_as: str, reason: str, kind: type[ClientError] = ClientError
) -> ClientError:
    remedy = "is a broker running there? start one with: penstock serve"
    if known_as:
        remedy = (
            "is the broker up, and is that address right from here? see: penstock serve --advertise"
        )
    return kind(
        f"cannot reach {address}{known_as}: {reason}; {remedy}", ErrorCode.NETWORK_EXCEPTION
    )


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]


def _lost(address: Address, *, outcome_unknown: bool) -> ClientError:
    return ClientError(
        f"the connection to {address} was closed before it answered",
        ErrorCode.NETWORK_EXCEPTION,
        outcome_unknown=outcome_unknown,
    )


def _nonsense(address: Address, what: str) -> ClientError:
    return ClientError(
        f"{address} does not speak the Kafka protocol as expected ({what}); is it a Kafka listener?",
        ErrorCode.CORRUPT_MESSAGE,
        outcome_unknown=True,
    )


def _api_name(request: type[Message]) -> str:
    return request.__name__.removesuffix("Request")


def _range_text(versions: range) -> str:
    return f"versions {versions[0]}-{versions[-1]}" if versions else "no version"
