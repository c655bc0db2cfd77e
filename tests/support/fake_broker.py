"""A scripted Kafka server: it answers each API as the test says, over real sockets, with our own wire layer."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import isawaitable
from types import TracebackType
from typing import Self

from penstock.client.connection import Address
from penstock.model.errors import ErrorCode
from penstock.wire.framing import FrameDecoder, encode_frame
from penstock.wire.header import RequestHeader, decode_request_header, encode_response_header
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from penstock.wire.schema import Message
from tests.support.stream_server import StreamServer

HANG_UP = object()  # an answer: close the connection
SILENCE = object()  # an answer: none

Handler = Callable[[Message], object]


class FakeBroker:
    """`on(RequestClass, handler)`: the handler's message is the answer, in the version that was asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[RequestHeader, Message]] = []
        self._handlers: dict[int, tuple[type[Message], Handler]] = {}
        self._versions: dict[int, range] = {}
        self._max_api_versions = 4
        self._server = StreamServer(self._serve)
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.address = Address("127.0.0.1", 0)  # until it is entered
        self.on(ApiVersionsRequest, lambda _: self.api_versions())

    async def __aenter__(self) -> Self:
        self.address = Address(*await self._server.open())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.close()

    def on(self, request: type[Message], handler: Handler, versions: range | None = None) -> None:
        self._handlers[request.api_key] = (request, handler)
        self._versions[request.api_key] = request.versions if versions is None else versions

    def speak_api_versions_up_to(self, version: int) -> None:
        self._max_api_versions = version

    def count(self, request: type[Message]) -> int:
        return sum(header.api_key == request.api_key for header, _ in self.requests)

    def api_versions(self, error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
            for key, versions in self._versions.items()
        ]
        return ApiVersionsResponse(error_code=error, api_keys=keys)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        frames = FrameDecoder(2**30)
        while data := await reader.read(2**16):
            for frame in frames.feed(data):
                await self._answer(memoryview(frame), writer)
        writer.close()
        self._writers.discard(writer)

    async def _answer(self, frame: memoryview, writer: asyncio.StreamWriter) -> None:
        header, start = decode_request_header(frame)
        version = header.api_version
        if header.api_key == ApiVersionsRequest.api_key and version > self._max_api_versions:
            refusal = self.api_versions(ErrorCode.UNSUPPORTED_VERSION)
            self._reply(writer, header._replace(api_version=0), refusal)
            return
        request_class, handler = self._handlers[header.api_key]
        request = request_class.decode(frame[start:], version)
        self.requests.append((header, request))
        answer = handler(request)
        self._reply(writer, header, await answer if isawaitable(answer) else answer)

    def _reply(self, writer: asyncio.StreamWriter, header: RequestHeader, answer: object) -> None:
        if answer is HANG_UP:
            writer.close()
        elif isinstance(answer, bytes):
            writer.write(answer)
        elif isinstance(answer, Message):
            head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
            writer.write(encode_frame(head + answer.encode(header.api_version)))
        else:
            assert answer is SILENCE


@contextmanager
def in_a_thread(broker: FakeBroker) -> Iterator[str]:
    """Runs the broker on a loop of its own, for clients that block; its HOST:PORT."""
    started: Future[str] = Future()
    ended = threading.Event()

    async def serve() -> None:
        async with broker:
            started.set_result(str(broker.address))
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield started.result()
    finally:
        ended.set()
        thread.join()
