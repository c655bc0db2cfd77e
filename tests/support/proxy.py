"""A TCP proxy that a test can make slow, stall, and cut, in the middle of whatever passes through it."""

import asyncio
import threading
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Final, Self

from tests.support.stream_server import StreamServer

_CHUNK_BYTES: Final = 1 << 14


class Proxy:
    """Runs on a thread of its own from `with` to its end. Faults hold for connections old and new."""

    def __init__(self) -> None:
        self.accepted = 0
        self.cuts = 0
        self._target: tuple[str, int] = ("127.0.0.1", 0)
        self._delay_s = 0.0
        self._cut_after: Callable[[], int] | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = StreamServer(self._serve)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()
        self.address = ""  # until it is entered

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # What a test does with it ------------------------------------------------------------------

    def point_at(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._target = (host, int(port))

    def delay(self, seconds: float) -> None:
        """Every chunk waits so long, in each direction."""
        self._delay_s = seconds

    def stall(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def cut_after(self, bytes_between: tuple[int, int], seed: int) -> None:
        """Each new connection is cut once a random number of bytes has gone to the broker."""
        random = Random(seed)
        self._cut_after = lambda: random.randint(*bytes_between)

    def cut_no_more(self) -> None:
        self._cut_after = None

    def cut_all(self) -> None:
        self._loop.call_soon_threadsafe(self._abort_all)

    # How it does it ----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _open(self) -> None:
        host, port = await self._server.open()
        self.address = f"{host}:{port}"

    async def _close(self) -> None:
        self._abort_all()
        await self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            to_reader, to_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, to_writer}
        self._writers |= ends
        budget = self._cut_after() if self._cut_after is not None else None
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, to_writer, budget))
                both.create_task(self._pump(to_reader, writer, None))
        except* (OSError, _Cut):
            pass
        finally:
            for end in ends:
                end.transport.abort()
            self._writers -= ends

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._flowing.wait()
            if budget is not None:
                writer.write(data[:budget])
                budget -= len(data)
                if budget <= 0:
                    await writer.drain()
                    self.cuts += 1
                    raise _Cut
            else:
                writer.write(data)
            await writer.drain()
        raise _Cut


class _Cut(Exception):
    """This connection has come to its end, in both directions."""
