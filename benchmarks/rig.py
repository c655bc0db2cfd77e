"""What every benchmark shares: a broker on a core of its own, its CPU time, and Markdown tables.

The broker, with all its threads, runs on the first core this process may use; the load runs on the others.
"""

import argparse
import asyncio
import mmap
import os
import platform
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.testing import Broker

_CORES: Final = sorted(os.sched_getaffinity(0))
BROKER_CORES: Final = frozenset(_CORES[:1])
LOAD_CORES: Final = frozenset(_CORES[1:] or _CORES)
_CLIENT_BOUND_BELOW: Final = 0.90  # of its core: the broker could have done more
_LIBRARIES: Final = ("penstock", "uvloop", "fastcrc", "cramjam", "confluent-kafka")
_GONE_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 900.0


class Used(NamedTuple):
    """CPU time of a process over a stretch of time."""

    cpu_s: float
    wall_s: float

    @property
    def share(self) -> float:
        return self.cpu_s / self.wall_s

    @property
    def bound(self) -> str:
        """What set the pace."""
        return "client" if self.share < _CLIENT_BOUND_BELOW else "broker"


class CpuMeter:
    """CPU time of one process, all threads, from lap to lap. Exact to 10 ms."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._last = self._read()

    @property
    def total_s(self) -> float:
        """Since the process began, at the last lap."""
        return self._last.cpu_s

    def lap(self) -> Used:
        last, self._last = self._last, self._read()
        return Used(self._last.cpu_s - last.cpu_s, self._last.wall_s - last.wall_s)

    def _read(self) -> Used:
        times = self._process.cpu_times()
        return Used(times.user + times.system, time.monotonic())


def rss_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Processes that are started here stay on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start(broker: Broker) -> Broker:
    """Start it on the broker's core."""
    with on_cores(BROKER_CORES):
        return broker.start()


def stop(broker: Broker) -> float:
    """Stop it, however long that takes; how many seconds it took."""
    begun_s = time.monotonic()
    process = psutil.Process(broker.pid)
    process.terminate()
    process.wait(_STOP_TIMEOUT_S)
    elapsed_s = time.monotonic() - begun_s
    broker.stop()
    return elapsed_s


@contextmanager
def running_broker(
    settings: Mapping[str, object] | None = None, *, data: str | None = None
) -> Iterator[Broker]:
    """A broker on its core with data under `data`; gone, with its data, when it is left. This process keeps off its core."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=data) as home:
        broker = Broker(settings, subprocess=True, data_dir=Path(home) / "data")
        with on_cores(LOAD_CORES):
            start(broker)
            try:
                yield broker
            finally:
                if broker.is_running:
                    broker.kill()  # its data goes too: nothing is worth a clean end


def touch_memory(size_bytes: int) -> None:
    """Take memory and give it back, so that what is measured next gets pages that are there.

    The first touch of a page costs a virtual machine a fault in its host: a write of 64 KiB takes 150 µs instead of
    22, and figures would tell of the host.
    """
    available = psutil.virtual_memory().available
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(size_bytes, available // 2), flags=flags).close()


def port_of(broker: Broker) -> int:
    return int(broker.bootstrap.rpartition(":")[2])


@contextmanager
def topic(
    broker: Broker, partitions: int, settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """A topic that takes large messages; its files are gone when it is left."""
    name = f"bench-{time.monotonic_ns()}"
    broker.create_topic(
        name,
        partitions=partitions,
        settings={"max.message.bytes": 20_000_000, "file.delete.delay.ms": 0, **(settings or {})},
    )
    try:
        yield name
    finally:
        asyncio.run(_delete_topic(broker.bootstrap, name))
        _await_gone(broker.data_dir, name)


async def _delete_topic(bootstrap: str, name: str) -> None:
    async with Pool(bootstrap, client_id="bench") as pool:
        await admin.delete_topic(pool, name)


def _await_gone(data_dir: Path, name: str) -> None:
    """Its bytes must not count against the next run's disk."""
    deadline_s = time.monotonic() + _GONE_TIMEOUT_S
    while any(data_dir.glob(f"{name}*")):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{name} is deleted, but its files are still in {data_dir}")
        time.sleep(0.05)


def percentiles(values: Sequence[float], *points: float) -> list[float]:
    """Nearest rank; 0 for each when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return [0.0] * len(points)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * point))] for point in points]


def print_heading(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def machine() -> str:
    """What figures are taken on."""
    memory_gb = psutil.virtual_memory().total / 1e9
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return (
        f"{_cpu_model()}, {len(_CORES)} cores, {memory_gb:.0f} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; {libraries}"
    )


def load_average() -> float:
    return os.getloadavg()[0]


def print_machine() -> None:
    """What the figures below were taken on, and what else it was doing."""
    print(f"{machine()}; load average before the run {load_average():.1f}\n", flush=True)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that all benchmarks have. From here on SIGTERM ends this process as Ctrl-C does: cleaned up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--data",
        metavar="DIR",
        help="where data is put (default: the system's temporary directory)",
    )
    return made
