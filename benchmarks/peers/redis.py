"""Redis Streams from Debian's packages: one server, append-only file."""

import os
from pathlib import Path
from typing import Final

from benchmarks.peers.base import System
from benchmarks.peers.process import Server
from benchmarks.peers.registry import debian_tree, version_of

_PACKAGES: Final = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


class Redis(System):
    name = "redis"
    settings = "append-only file, synced every second (its default); everything stays in memory"

    def get(self) -> None:
        tree = debian_tree("redis", _PACKAGES)
        libraries = [str(path) for path in (tree / "usr/lib").glob("*-linux-gnu*")]
        path = f"LD_LIBRARY_PATH={os.pathsep.join(libraries)}"
        self._words = ["env", path, str(tree / "usr/bin/redis-server")]
        self.version = version_of([*self._words, "--version"]).partition("v=")[2].split()[0]

    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        assert number == 1, "one server"
        data = home / "data-1"
        data.mkdir(exist_ok=True)
        command = [
            *(*self._words, "--port", str(self.ports[0]), "--bind", "127.0.0.1"),
            *("--dir", str(data), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "everysec", "--daemonize", "no"),
        ]
        return Server(command, home / "log-1", cores)
