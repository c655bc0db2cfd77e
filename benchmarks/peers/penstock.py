"""Penstock as an operator starts it: `penstock serve`, this very code, default settings."""

import os
import sys
from pathlib import Path

import penstock
from benchmarks.peers.base import System
from benchmarks.peers.process import Server


class Penstock(System):
    name = "penstock"
    speaks_kafka = True
    settings = "`penstock serve`, defaults; metadata in SQLite"

    def get(self) -> None:
        self.version = penstock.__version__

    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        command = [
            *(sys.executable, "-m", "penstock", "serve", "--broker-id", str(number)),
            *("--data", str(home / f"data-{number}"), "--http", "127.0.0.1:0"),
            *("--listen", f"127.0.0.1:{self.ports[number - 1]}"),
            *("--metadata", f"sqlite:{home / 'metadata.sqlite'}"),
        ]
        source = str(Path(penstock.__file__).parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
        kept = {name: it for name, it in os.environ.items() if not name.startswith("PENSTOCK_")}
        return Server(command, home / f"log-{number}", cores, {**kept, "PYTHONPATH": path})
