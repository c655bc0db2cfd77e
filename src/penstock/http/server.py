"""The HTTP server of the broker: one request, one response, close.

The number of connections, the bytes of each and its time are bounded. When every place is taken, a
new connection takes the place of an old one, so that clients that hold their connections do not keep
a scraper out. Requests for /metrics that come together share one text. No request is fatal.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from http import HTTPStatus
from itertools import islice
from typing import Final

from penstock.http import exposition
from penstock.http.requests import HEAD_LIMIT_BYTES, BadRequest, Exchange, Request, Response, text
from penstock.telemetry.registry import AnyFamily, Registry

CONNECTIONS_LIMIT: Final = 64
EXCHANGE_TIMEOUT_S: Final = 10.0
DISCARDED_LIMIT_BYTES: Final = 64 * 1024
LINES_PER_TURN: Final = 400  # about a millisecond; then others have their turn

logger: Final = logging.getLogger(__name__)


class _Stage(IntEnum):
    """How far a connection is. A new connection takes the place of the lowest stage first."""

    LINGERING = 0  # the response was sent; the client has not closed yet
    READING = 1  # the request is not complete
    WRITING = 2  # the client has not taken the whole response
    RESPONDING = 3  # the server is at work


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # drain() returns when all is sent
        self.reader: Final = reader
        self.writer: Final = writer
        self.exchange: Final = Exchange()
        self.stage = _Stage.READING
        self.ended: Final = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self.writer.is_closing()

    def close_for_another(self) -> None:
        """Close at once. A client that waits for its response gets a 503."""
        if self.stage in (_Stage.READING, _Stage.RESPONDING):
            busy = text(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections at once")
            self.writer.write(self.exchange.respond(busy))
            self.writer.close()
        else:
            self.writer.transport.abort()


class HttpServer:
    """Serves /metrics, /livez and /readyz.

    `readiness` returns the reasons why the broker cannot take requests yet: none when it can.
    """

    def __init__(
        self,
        registry: Registry,
        readiness: Callable[[], Sequence[str]],
        *,
        timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> None:
        self._registry: Final = registry
        self._readiness: Final = readiness
        self._timeout_s: Final = timeout_s
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}  # in the order they came
        self._rendering: asyncio.Task[bytes] | None = None
        self._routes: Final[Mapping[str, Callable[[], Awaitable[Response]]]] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
        }

    async def start(self, host: str, port: int) -> None:
        assert self._server is None, "a server is started once"
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_LIMIT_BYTES)

    @property
    def port(self) -> int:
        return self.addresses[0][1]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Every address that the server is bound to: a host name may have several."""
        assert self._server is not None, "the server is started"
        return [sock.getsockname()[:2] for sock in self._server.sockets]

    async def close(self) -> None:
        """Stop listening and end the exchanges under way."""
        if self._server is None:
            return
        self._server.close()
        ending = list(self._connections)
        for connection in ending:
            connection.writer.transport.abort()
        if self._rendering is not None:
            self._rendering.cancel()
        for connection in ending:
            await connection.ended.wait()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        if not self._make_room():
            connection.close_for_another()
            return
        self._connections[connection] = None
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                await self._exchange(connection)
        except (TimeoutError, OSError):
            writer.transport.abort()  # the client went away, or does not take its response
        finally:
            writer.close()
            del self._connections[connection]
            connection.ended.set()

    def _make_room(self) -> bool:
        """Return whether one more connection may be served, if need be in the place of another."""
        others = [connection for connection in self._connections if connection.is_open]
        if len(others) < CONNECTIONS_LIMIT:
            return True
        if len(self._connections) >= 2 * CONNECTIONS_LIMIT:  # many wait for a text, though closed
            return False
        oldest = min(others, key=lambda connection: connection.stage)  # the first of its stage
        oldest.close_for_another()
        return True

    async def _exchange(self, connection: _Connection) -> None:
        exchange, writer = connection.exchange, connection.writer
        try:
            request = await self._read_request(connection)
            if request is None or not connection.is_open:
                return
            connection.stage = _Stage.RESPONDING
            response = await self._respond(request)
        except BadRequest as bad:
            response = text(bad.status, str(bad))
        if not connection.is_open:  # closed for another one, or by close()
            return
        connection.stage = _Stage.WRITING
        writer.write(exchange.respond(response))
        await writer.drain()
        if not connection.is_open:
            return
        connection.stage = _Stage.LINGERING
        writer.write_eof()
        await _discard(connection.reader)

    async def _read_request(self, connection: _Connection) -> Request | None:
        """Return the request, or None where the client closed without one."""
        exchange = connection.exchange
        try:
            async with asyncio.timeout(self._timeout_s):
                while data := await connection.reader.read(HEAD_LIMIT_BYTES):
                    request = exchange.receive(data)
                    if request is not None:
                        return request
        except TimeoutError:
            reason = f"no whole request came in {self._timeout_s} s"
            raise BadRequest(reason, HTTPStatus.REQUEST_TIMEOUT) from None
        exchange.receive_end()
        return None

    async def _respond(self, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return text(HTTPStatus.NOT_FOUND, f"nothing here; try {', '.join(self._routes)}")
        if request.method not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return text(status, "only GET and HEAD")._replace(allow="GET, HEAD")
        try:
            return await route()
        except Exception:
            logger.exception("http-request-failed path=%s", request.path)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a bug; the log has its trace")

    async def _livez(self) -> Response:
        return text(HTTPStatus.OK, "ok")

    async def _readyz(self) -> Response:
        reasons = self._readiness()
        if not reasons:
            return text(HTTPStatus.OK, "ok")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(["not ready", *reasons]))

    async def _metrics(self) -> Response:
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render_all())  # noqa: TID251 - awaited by all who share it
            self._rendering.add_done_callback(self._rendered)
        body = await asyncio.shield(self._rendering)
        return Response(HTTPStatus.OK, body, exposition.CONTENT_TYPE)

    def _rendered(self, _: asyncio.Task[bytes]) -> None:
        self._rendering = None

    async def _render_all(self) -> bytes:
        pieces: list[str] = []
        for family in self._registry.families():
            pieces += await _render(family)
        return "".join(pieces).encode()


async def _render(family: AnyFamily) -> list[str]:
    """Return the family's text, or nothing if it cannot be read: the other metrics are still needed."""
    lines = exposition.lines(family)
    pieces: list[str] = []
    try:
        while piece := "".join(islice(lines, LINES_PER_TURN)):
            pieces.append(piece)
            await asyncio.sleep(0)
    except Exception:
        logger.exception("metric-unreadable metric=%s", family.name)
        return []
    return pieces


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read what the client still sends: closing with unread bytes resets the connection, and the
    client would lose the response."""
    left_bytes = DISCARDED_LIMIT_BYTES
    while left_bytes > 0 and (data := await reader.read(left_bytes)):
        left_bytes -= len(data)
