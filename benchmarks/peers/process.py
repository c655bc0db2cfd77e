"""One server process with all its children: started on given cores, metered as one, and gone with its data when left."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.rig import Used, on_cores

_GONE_TIMEOUT_S: Final = 30.0
_SHOWN_LOG_LINES: Final = 15
_LOOK_AGAIN_S: Final = 0.01


class DidNotStart(Exception):
    """A server that was there to be started, and ended or stayed silent: the end of its log is in the message."""


class Server:
    """A process in a session of its own, so that it ends whole. Its output goes to `log_path`."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        cores: Iterable[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log_path = log_path
        self.started_s = time.monotonic()
        with on_cores(cores), open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment or os.environ,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Itself and its children: a start script, or an emulator with helpers."""
        try:
            own = psutil.Process(self.pid)
            return [self.pid, *(child.pid for child in own.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def check_alive(self) -> None:
        if (status := self._process.poll()) is not None:
            raise DidNotStart(f"it ended with {status}: {self._log_end()}")

    def await_port(self, port: int, patience_s: float) -> None:
        """Until somebody listens there."""
        end_s = time.monotonic() + patience_s
        while True:
            self.check_alive()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                if time.monotonic() > end_s:
                    raise DidNotStart(
                        f"nobody listened in {patience_s:.0f} s: {self._log_end()}"
                    ) from None
                time.sleep(_LOOK_AGAIN_S)

    def kill(self) -> None:
        """All of it at once, with SIGKILL."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(_GONE_TIMEOUT_S)

    def _log_end(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return " / ".join(lines[-_SHOWN_LOG_LINES:]) or "its log is empty"


class TreeMeter:
    """CPU time of some processes together, from lap to lap. Those that end in between take theirs with them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._last = self._read()

    def lap(self) -> Used:
        last, self._last = self._last, self._read()
        return Used(self._last.cpu_s - last.cpu_s, self._last.wall_s - last.wall_s)

    def _read(self) -> Used:
        times = [process.cpu_times() for process in self._processes if process.is_running()]
        return Used(sum(it.user + it.system for it in times), time.monotonic())


def resident_mb(pids: Iterable[int]) -> float:
    return sum(float(psutil.Process(pid).memory_info().rss) for pid in pids) / 1e6


def peak_resident_mb(pids: Iterable[int]) -> float:
    """The most that each of them ever had, as the kernel remembers it."""
    return sum(_high_water_kib(pid) for pid in pids) * 1024 / 1e6


def _high_water_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody has at this moment, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
