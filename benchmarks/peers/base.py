"""What the harness knows of any system: how to get it, and what it can do to one that runs."""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.peers.process import Server, free_ports
from benchmarks.rig import BROKER_CORES, LOAD_CORES

START_TIMEOUT_S: Final = 120.0


class Running:
    """One or more servers of a system that listen. The first has a core for itself; the others share the load's."""

    def __init__(self, system: "System", home: Path, servers: Sequence[Server]) -> None:
        self.system = system
        self.home = home
        self.servers = list(servers)

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def port(self) -> int:
        return self.system.ports[0]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Of the first server."""
        return self.servers[0].pids

    @property
    def other_pids(self) -> list[int]:
        return [pid for server in self.servers[1:] for pid in server.pids]

    def data_dir(self, number: int = 1) -> Path:
        return self.home / f"data-{number}"

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def start_again(self) -> None:
        """The first server, on the data it has."""
        self.servers[0] = self.system.launch(self.home, 1, BROKER_CORES)


class System(ABC):
    """A broker that can be had, started and stopped here, as often as needed; ports are chosen once for each start."""

    name: ClassVar[str]
    speaks_kafka: ClassVar[bool] = False
    settings: ClassVar[str]  # what it was run with, in a sentence
    ports_each: ClassVar[int] = 1

    def __init__(self) -> None:
        self.version = ""
        self.count = 1
        self.ports: list[int] = []

    @abstractmethod
    def get(self) -> None:
        """Fetches what is not yet there, and learns the version. Raises Missing with the reason."""

    def prepare(self, home: Path) -> None:  # noqa: B027  # most need nothing
        """Whatever comes before the first start: configuration, formatting. Not part of start-up time."""

    @abstractmethod
    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        """Begins server `number` (from 1) and does not wait for it."""

    @contextmanager
    def home(self, count: int = 1, data: str | None = None) -> Iterator[Path]:
        """A directory that is prepared for `count` servers; gone when it is left."""
        self.count = count
        self.ports = free_ports(count * self.ports_each)
        made = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-", dir=data))
        try:
            self.prepare(made)
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def running(self, count: int = 1, data: str | None = None) -> Iterator[Running]:
        """`count` servers that listen; killed when they are left."""
        with self.home(count, data) as home:
            running = Running(self, home, [])
            try:
                for number in range(1, count + 1):
                    cores = BROKER_CORES if number == 1 else LOAD_CORES
                    running.servers.append(self.launch(home, number, cores))
                for number, server in enumerate(running.servers):
                    server.await_port(self.ports[number], START_TIMEOUT_S)
                yield running
            finally:
                running.kill()
