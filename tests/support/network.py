"""Hosts on a switch of their own, in network namespaces: to be cut off from each other, wholly, one way or in part.

Nothing is on the machine's own network, and nothing is left when the test's process ends.
"""

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.support.cluster import Place

_CLONE_NEWNET: Final = 0x4000_0000
_ALIVE: Final = ("01", "02")  # ESTABLISHED, SYN_SENT
_TOOLS: Final = ("unshare", "nsenter", "ip")
_HOLD: Final = "ip link set lo up && echo up && exec cat"


class Namespace:
    """Kept alive by a process that ends when its input does: at the latest with ours."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"up\n":
            reason = self._keeper.stderr.read().decode().strip()
            self.close()
            pytest.skip(f"no network namespace can be made here: {reason}")

    @property
    def pid(self) -> int:
        return self._keeper.pid

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    @property
    def run_in(self) -> list[str]:
        """The front of a command that shall see this network."""
        return ["nsenter", f"--net={self.path}", "--"]

    def run(self, *words: object, stdin: str = "", **variables: str) -> None:
        done = subprocess.run(
            [*self.run_in, *map(str, words)],
            input=stdin,
            text=True,
            capture_output=True,
            env={**os.environ, **variables},
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def close(self) -> None:
        for pipe in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            if pipe is not None:
                pipe.close()
        self._keeper.wait()


class Network:
    """Hosts 1 to N for brokers, and host 0 for clients. What is not cut is connected."""

    def __init__(self, hosts: int) -> None:
        self._nft, self._nft_variables = _find_tools()
        self.hosts = range(1, hosts + 1)
        self._namespaces: dict[int, Namespace] = {}
        self._switch: Namespace | None = None
        self._cuts: set[tuple[int, int]] = set()  # from, to
        self._losses: dict[int, int] = {}  # percent of what comes in

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Whoever runs on a host must have ended."""
        for namespace in self._namespaces.values():
            namespace.close()
        if self._switch is not None:
            self._switch.close()

    # Who is where ------------------------------------------------------------------------------

    def address(self, host: int) -> str:
        return f"10.9.0.{host or 200}"

    def place(self, host: int) -> Place:
        """Where a broker of that number runs."""
        return Place(self._namespaces[host].run_in, self.address(host))

    @property
    def places(self) -> dict[int, Place]:
        return {host: self.place(host) for host in self.hosts}

    @contextmanager
    def inside(self, host: int = 0) -> Iterator[None]:
        """This thread is on that host, and so are the sockets and threads that it makes meanwhile."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._namespaces[host].path)
            yield
        finally:
            _enter_fd(home)
            os.close(home)

    # What a test does with it ------------------------------------------------------------------

    def cut_one_way(self, source: int, target: int) -> None:
        """What `source` sends does not come to `target`; the other way it does."""
        self._cuts.add((source, target))
        self._apply(target)

    def cut(self, one: int, other: int) -> None:
        """A partial partition: these two, and nobody else."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, host: int, *, but_from: Iterable[int] = ()) -> None:
        """Cut off from all others, clients too."""
        for other in {0, *self.hosts} - {host, *but_from}:
            self.cut(host, other)

    def lose(self, host: int, percent: int) -> None:
        """So much of what is sent to it does not arrive, by chance."""
        self._losses[host] = percent
        self._apply(host)

    def heal(self) -> None:
        self._cuts.clear()
        self._losses.clear()
        for host in self._namespaces:
            self._apply(host)

    def is_settled(self) -> bool:
        """Nobody waits to send again what was lost: a connection does so ever more rarely, also long after its path is back."""
        return not any(
            _resends(Path(f"/proc/{namespace.pid}/net/tcp"))
            for namespace in self._namespaces.values()
        )

    # How ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._switch = switch = Namespace()
        switch.run("ip", "link", "add", "br0", "type", "bridge")
        switch.run("ip", "link", "set", "br0", "up")
        for host in (0, *self.hosts):
            self._namespaces[host] = namespace = Namespace()
            peer = ("peer", "name", f"port{host}", "netns", switch.pid)
            namespace.run("ip", "link", "add", "eth0", "type", "veth", *peer)
            switch.run("ip", "link", "set", f"port{host}", "master", "br0", "up")
            namespace.run("ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            namespace.run("ip", "link", "set", "eth0", "up")
            self._apply(host)

    def _apply(self, host: int) -> None:
        """All rules of a host at once: they are dropped where they arrive."""
        rules = [
            f"add rule inet cuts arrivals ip saddr {self.address(source)} drop"
            for source, target in sorted(self._cuts)
            if target == host
        ]
        if host in self._losses:
            rules.append(
                "add rule inet cuts arrivals iifname eth0 "
                f"numgen random mod 100 < {self._losses[host]} drop"
            )
        script = "\n".join(
            (
                "flush ruleset",
                "add table inet cuts",
                "add chain inet cuts arrivals { type filter hook input priority 0; }",
                *rules,
            )
        )
        self._namespaces[host].run(self._nft, "-f", "-", stdin=script + "\n", **self._nft_variables)


@functools.cache
def _find_tools() -> tuple[str, dict[str, str]]:
    """nft and the environment in which it runs. Skips the test where networks cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("only root may make networks")
    for program in _TOOLS:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if installed := shutil.which("nft"):
        return installed, {}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "nft"
    if not (cache / "usr/sbin/nft").exists():
        pytest.skip("nft is not installed; scripts/install-nft fetches it where there is apt")
    libraries = ":".join(str(path) for path in cache.glob("usr/lib/*-linux-gnu"))
    return str(cache / "usr/sbin/nft"), {"LD_LIBRARY_PATH": libraries}


def _resends(table: Path) -> bool:
    """Whether a connection of this table of the kernel's, open or opening, has something to send again."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return any(state in _ALIVE and int(times, 16) for _, _, _, state, _, _, times, *_ in rows)


def _enter(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        _enter_fd(fd)
    finally:
        os.close(fd)


def _enter_fd(fd: int) -> None:
    """os.setns is there from Python 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")
