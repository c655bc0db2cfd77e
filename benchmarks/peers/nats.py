"""NATS JetStream from Debian's package: one server, streams in files."""

from pathlib import Path
from typing import Final

from benchmarks.peers.base import System
from benchmarks.peers.process import Server
from benchmarks.peers.registry import debian_tree, version_of

_PACKAGES: Final = ("nats-server",)
_MAX_PAYLOAD_BYTES: Final = 8 << 20


class Nats(System):
    name = "nats"
    settings = "JetStream, file storage, synced every 2 minutes (its default); consumers without acknowledgements"

    def get(self) -> None:
        tree = debian_tree("nats", _PACKAGES)
        found = [tree / place / "nats-server" for place in ("usr/sbin", "usr/bin")]
        self._program = str(next((path for path in found if path.exists()), found[0]))
        self.version = version_of([self._program, "--version"]).rpartition("v")[2]

    def prepare(self, home: Path) -> None:
        (home / "nats.conf").write_text(
            f"listen: 127.0.0.1:{self.ports[0]}\nmax_payload: {_MAX_PAYLOAD_BYTES}\n"
            f'jetstream {{ store_dir: "{home / "data-1"}" }}\n'
        )

    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        assert number == 1, "one server"
        return Server([self._program, "-c", str(home / "nats.conf")], home / "log-1", cores)
