"""One request, one answer, close. What a client sends, and how long it may take, are bounded; nothing it does is fatal."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


class HttpServer:
    """Serves /metrics, /livez and /readyz.

    `readiness` says why the broker cannot take requests yet; an empty answer means that it can.
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
        self._connections: dict[asyncio.StreamWriter, asyncio.Event] = {}
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
        assert self._server is not None, "the server is started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stops listening, and ends the exchanges that are under way."""
        if self._server is None:
            return
        self._server.close()
        ending = dict(self._connections)
        for writer in ending:
            writer.transport.abort()
        for ended in ending.values():
            await ended.wait()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = self._connections[writer] = asyncio.Event()
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                await self._exchange(reader, writer)
        except (TimeoutError, OSError):
            writer.transport.abort()  # the client went away, or does not take its answer
        finally:
            writer.close()
            del self._connections[writer]
            ended.set()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange()
        try:
            request = await self._read_request(exchange, reader)
            if request is None:
                return
            response = await self._respond(request)
        except BadRequest as bad:
            response = text(bad.status, str(bad))
        writer.write(exchange.respond(response))
        await writer.drain()
        writer.write_eof()
        await _discard(reader)

    async def _read_request(
        self, exchange: Exchange, reader: asyncio.StreamReader
    ) -> Request | None:
        """Return the request, or None where the client closed without one."""
        if len(self._connections) > CONNECTIONS_LIMIT:
            raise BadRequest("too many connections at once", HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            async with asyncio.timeout(self._timeout_s):
                while data := await reader.read(HEAD_LIMIT_BYTES):
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
        pieces: list[str] = []
        for family in self._registry.families():
            pieces += await _render(family)
        return Response(HTTPStatus.OK, "".join(pieces).encode(), exposition.CONTENT_TYPE)


async def _render(family: AnyFamily) -> list[str]:
    """A family's text, or nothing where reading it failed: the other metrics are then needed most."""
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
    """Reads what the client still sends: closing on unread bytes would reset the answer out of its hands."""
    left_bytes = DISCARDED_LIMIT_BYTES
    while left_bytes > 0 and (data := await reader.read(left_bytes)):
        left_bytes -= len(data)
