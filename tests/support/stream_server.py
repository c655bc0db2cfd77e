"""A server of streams that leaves nothing open behind it, also of connections that came in while it was closing.

asyncio's own server forgets a connection between accepting it and calling who serves it, and stumbles over one when
it is closed in between.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_TURNS_TO_ACCEPT: Final = 4  # of the loop, from accept(2) to a connection that is lost again


class StreamServer:
    """`open` on a free port of the loopback address, then `close`: all its connections have ended by then."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._transports: set[asyncio.Transport] = set()
        self._all_left = asyncio.Event()
        self._all_left.set()

    async def open(self) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Stream(self, self._serve), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        assert self._server is not None, "it was opened"
        self._is_closing = True
        loop = asyncio.get_running_loop()
        for sock in self._server.sockets:
            loop.remove_reader(sock.fileno())  # accept no more, and finish with those accepted
        for _ in range(_TURNS_TO_ACCEPT):
            for transport in self._transports:
                transport.abort()
            await asyncio.sleep(0)
        self._server.close()
        await self._all_left.wait()

    def joined(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)
        self._all_left.clear()
        if self._is_closing:
            transport.abort()

    def left(self, transport: asyncio.Transport) -> None:
        self._transports.discard(transport)
        if not self._transports:
            self._all_left.set()


class _Stream(asyncio.StreamReaderProtocol):
    def __init__(self, server: StreamServer, serve: Serve) -> None:
        super().__init__(asyncio.StreamReader(), serve)
        self._owner = server
        self._own: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        self._owner.joined(self._own)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._own is not None, "it was made before"
        self._owner.left(self._own)
        super().connection_lost(exc)
