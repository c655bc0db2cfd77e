"""A server of a test leaves no socket behind, however far a connection had come when it closed."""

import asyncio
import gc
import socket

import pytest

from tests.support.stream_server import StreamServer


async def _hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize("turns", range(8))
def test_no_connection_stays_open(turns: int) -> None:
    async def main() -> None:
        server = StreamServer(_hold)
        address = await server.open()
        with socket.socket() as client:
            client.setblocking(False)
            client.connect_ex(address)
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()

    asyncio.run(main())
    gc.collect()  # whatever was left open says so, and fails the test


def test_who_had_connected_is_cut_off_and_nobody_connects_any_more() -> None:
    async def main() -> None:
        server = StreamServer(_hold)
        address = await server.open()
        reader, writer = await asyncio.open_connection(*address)
        await server.close()
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        writer.close()

    asyncio.run(main())
