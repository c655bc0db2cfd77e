"""A broker in a thread of this process, on an event loop of its own: the fastest to start."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

import uvloop

from penstock.node.node import Node
from penstock.node.settings import load_settings
from penstock.testing.endpoints import Endpoints


class InProcessHost:
    """Owns at most one thread at a time."""

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._thread: threading.Thread | None = None
        self._ask_to_stop: Callable[[], object] = _nothing_to_stop
        self._ended: Future[None] = Future()

    def start(self, options: Mapping[str, str]) -> Endpoints:
        assert self._thread is None, "one broker at a time"
        ready: Future[Endpoints] = Future()
        self._ended = Future()
        self._thread = threading.Thread(
            target=self._run, args=(options, ready), name="penstock-broker", daemon=True
        )
        self._thread.start()
        try:
            return ready.result(self._start_timeout_s)
        except BaseException:
            self._thread = None
            raise

    def stop(self) -> None:
        assert self._thread is not None, "it was started"
        self._ask_to_stop()
        self._thread.join()
        self._thread = None
        self._ended.result()

    def kill(self) -> None:
        raise RuntimeError("a broker in this process cannot be killed; use Broker(subprocess=True)")

    def _run(self, options: Mapping[str, str], ready: "Future[Endpoints]") -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(options, ready))
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever started or stops us
            (self._ended if ready.done() else ready).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self, options: Mapping[str, str], ready: "Future[Endpoints]") -> None:
        stop = asyncio.Event()
        self._ask_to_stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        node = Node(load_settings(options=[f"{name}={value}" for name, value in options.items()]))
        await node.start()
        http = None if node.http == "off" else node.http
        ready.set_result(Endpoints(node.bootstrap, http, os.getpid()))
        await stop.wait()
        await node.stop()


def _nothing_to_stop() -> None:
    raise AssertionError("the broker was ready, so its loop runs")
