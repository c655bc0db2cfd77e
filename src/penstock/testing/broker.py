"""A broker that a test owns: on a free port, with data of its own, gone when the test is."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self
from uuid import uuid4

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.testing.endpoints import Endpoints

DEFAULTS: Final = {  # what a broker under test needs, unless the test says otherwise
    "listeners": "127.0.0.1:0",
    "penstock.http": "127.0.0.1:0",
    "broker.session.timeout.ms": "20000",  # busy machines elect for nothing
    "log.retention.check.interval.ms": "86400000",  # records of 1970 stay until the test ends
}
START_TIMEOUT_S: Final = 30.0
_LOG_NAME: Final = "broker.log"


class Host(Protocol):
    """Where a broker runs: a thread of this process, or a process of its own."""

    def start(self, options: Mapping[str, str]) -> Endpoints: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Broker:
    """Starts when entered (or by `start`), and leaves nothing behind when it is left.

    Settings have Kafka's names: `Broker({"log.retention.ms": 1000})` or `Broker(log_retention_ms=1000)`.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        subprocess: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        **more_settings: object,
    ) -> None:
        named = {name.replace("_", "."): value for name, value in more_settings.items()}
        given = {**(settings or {}), **named}
        self._options = DEFAULTS | {name: _text(value) for name, value in given.items()}
        self._home = Path(tempfile.mkdtemp(prefix="penstock-")) if data_dir is None else None
        self.data_dir = Path(data_dir) if data_dir is not None else self._directory() / "data"
        self._log_path = (self._home or self.data_dir.parent) / _LOG_NAME
        self._host = _child(self._log_path) if subprocess else _in_process()
        self._endpoints: Endpoints | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, as clients want it."""
        return self._running().bootstrap

    @property
    def http(self) -> str | None:
        """HOST:PORT of metrics and health checks; None when they are off."""
        return self._running().http

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._endpoints is not None

    @property
    def log(self) -> str:
        """What a subprocess has logged so far; a broker in this process logs with `logging`."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def start(self) -> Self:
        if self._endpoints is None:
            self.data_dir.parent.mkdir(parents=True, exist_ok=True)
            options = {**self._options, "log.dirs": str(self.data_dir)}
            self._endpoints = self._host.start(options)
        return self

    def stop(self) -> None:
        """Ends it as an operator would; the data stays until `close`."""
        if self._endpoints is not None:
            self._keep_address(self._endpoints)
            self._endpoints = None
            self._host.stop()

    def kill(self) -> None:
        """Ends a subprocess with SIGKILL: nothing is flushed, nothing is said."""
        self._keep_address(self._running())
        self._host.kill()
        self._endpoints = None

    def restart(self) -> Self:
        """Starts again on the same data and the same port, so that clients find it."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stops, and removes the data that it made itself."""
        try:
            self.stop()
        finally:
            if self._home is not None:
                shutil.rmtree(self._home, ignore_errors=True)

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> str:
        """Makes a topic, with a fresh name if none is given; its name."""
        topic = name or f"test-{uuid4().hex[:12]}"
        texts = {key: _text(value) for key, value in (settings or {}).items()}

        async def create() -> None:
            async with Pool(self.bootstrap, client_id="penstock-testing") as pool:
                await admin.create_topic(pool, topic, partitions=partitions, settings=texts)

        with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
            thread.submit(asyncio.run, create()).result()
        return topic

    def _running(self) -> Endpoints:
        if self._endpoints is None:
            raise RuntimeError("the broker is not running; enter it with `with`, or call start()")
        return self._endpoints

    def _directory(self) -> Path:
        assert self._home is not None
        return self._home

    def _keep_address(self, last: Endpoints) -> None:
        """What was a free port is from now on this broker's port."""
        if self._options["listeners"] == DEFAULTS["listeners"]:
            self._options["listeners"] = last.bootstrap
        if self._options["penstock.http"] == DEFAULTS["penstock.http"] and last.http is not None:
            self._options["penstock.http"] = last.http


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_process() -> Host:
    from penstock.testing.in_process import InProcessHost

    return InProcessHost(START_TIMEOUT_S)


def _child(log_path: Path) -> Host:
    from penstock.testing.child import ChildHost

    return ChildHost(log_path, START_TIMEOUT_S)
