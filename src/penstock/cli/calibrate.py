"""`penstock plan --calibrate`: measure this machine's disk and brokers, and write a file."""

import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import penstock
from penstock.cli.arguments import CommandError, UsageError
from penstock.cli.bench import find_repository
from penstock.cli.output import note
from penstock.planner.inputs import Cpu, Machine
from penstock.planner.quantities import format_byte_rate, format_bytes
from penstock.planner.toml import cpu_lines, machine_lines

_BLOCK_BYTES: Final = 1 << 20
_FILE_MAX_BYTES: Final = 2 << 30
_FREE_LEAST_BYTES: Final = 20_000_000_000  # the benchmarks write up to 6 GB at a time
_SYNCS: Final = 200
_SYNC_MAX_S: Final = 10.0
_BENCH_TIMEOUT_S: Final = 900


class Disk(NamedTuple):
    write_bytes_s: float
    read_bytes_s: float
    sync_median_ms: float
    sync_p99_ms: float


def calibrate(data: Path, out: Path | None, seconds: int) -> int:
    if not data.is_dir():
        raise UsageError(f"--data: {data} is no directory")
    _check_room(data)
    root = find_repository((Path(penstock.__file__).parents[2], Path.cwd()))
    note(f"writing to {data} for {seconds} s")
    disk = measure_disk(data, seconds)
    note("measuring brokers on this machine; about a minute, best with nothing else running")
    broker = _measure_broker(root, data, seconds)
    text = profile(socket.gethostname(), this_machine(data, disk), disk, broker)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        note(f"wrote {out}; use it with: penstock plan --file {out} --rate ...")
    return 0


def _check_room(data: Path) -> None:
    """Refuse to fill a disk that others use."""
    space = os.statvfs(data)
    free_bytes = space.f_bavail * space.f_frsize
    if free_bytes < _FREE_LEAST_BYTES:
        raise CommandError(
            f"{data} has {format_bytes(free_bytes)} free; --calibrate needs "
            f"{format_bytes(_FREE_LEAST_BYTES)}, which it gives back"
        )


def measure_disk(data: Path, seconds: float) -> Disk:
    """Write and sync a file for `seconds`, read it past the page cache, then sync small writes."""
    with tempfile.TemporaryDirectory(prefix="penstock-calibrate-", dir=data) as home:
        path = Path(home) / "file"
        written_bytes_s = _write(path, seconds)
        read_bytes_s = _read(path)
        syncs_ms = _sync(Path(home) / "syncs")
    syncs_ms.sort()
    p99 = syncs_ms[min(len(syncs_ms) - 1, int(len(syncs_ms) * 0.99))]
    return Disk(written_bytes_s, read_bytes_s, statistics.median(syncs_ms), p99)


def _write(path: Path, seconds: float) -> float:
    """Write random bytes, as some disks compress. The time includes the syncs."""
    block = os.urandom(_BLOCK_BYTES)
    written = 0
    begun_s = time.monotonic()
    with path.open("wb", buffering=0) as file:
        while written < _FILE_MAX_BYTES and time.monotonic() < begun_s + seconds:
            file.write(block)
            written += len(block)
            if written % (64 * _BLOCK_BYTES) == 0:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
    return written / (time.monotonic() - begun_s)


def _read(path: Path) -> float:
    with path.open("rb", buffering=0) as file, mmap.mmap(-1, _BLOCK_BYTES) as buffer:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size_bytes, begun_s = path.stat().st_size, time.monotonic()
        while file.readinto(buffer):
            pass
        return size_bytes / (time.monotonic() - begun_s)


def _sync(path: Path) -> list[float]:
    """Return the milliseconds of each sync of 4 KiB."""
    block = os.urandom(4096)
    found: list[float] = []
    end_s = time.monotonic() + _SYNC_MAX_S
    with path.open("wb", buffering=0) as file:
        while len(found) < _SYNCS and (not found or time.monotonic() < end_s):
            file.write(block)
            begun_s = time.monotonic()
            os.fdatasync(file.fileno())
            found.append((time.monotonic() - begun_s) * 1000)
    return found


def _measure_broker(root: Path, data: Path, seconds: int) -> dict[str, float]:
    """Hand over to the benchmarks of the repository, as `penstock bench` does."""
    words = [sys.executable, "-m", "benchmarks.calibrate", "--data", str(data.resolve())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), *_python_path()))}
    try:
        done = subprocess.run(
            [*words, "--seconds", str(seconds)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_BENCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"the benchmark did not end in {_BENCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"the benchmark failed: {last}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _python_path() -> list[str]:
    return [path for path in (os.environ.get("PYTHONPATH"),) if path]


def this_machine(data: Path, disk: Disk) -> Machine:
    """Read the machine's size from the kernel; the price is for people to fill in."""
    space = os.statvfs(data)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory=float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        network=_network_bytes_s() or Machine().network,
        disk_write=disk.write_bytes_s,
        disk_read=disk.read_bytes_s,
        disk=float(space.f_blocks * space.f_frsize),
        price_month=0.0,
    )


def _network_bytes_s() -> float | None:
    """Return the speed of the fastest interface; virtual ones often do not report one."""
    speeds = []
    for path in Path("/sys/class/net").glob("*/speed"):
        with suppress(OSError, ValueError):  # an interface that is down has none
            speeds.append(int(path.read_text()))
    return max((speed for speed in speeds if speed > 0), default=0) * 1e6 / 8 or None


def profile(name: str, machine: Machine, disk: Disk, broker: dict[str, Any]) -> str:
    """Write a machine and its CPU costs as TOML, other measurements as comments."""
    cpu = Cpu(
        **{key: broker[key] for key in ("append", "batch", "serve_follower", "follow", "read")}
    )
    lines = [
        f"# measured by penstock plan --calibrate on {name}",
        f"# one broker with a core for itself: {format_byte_rate(broker['produce_bytes_s'])} in; "
        f"{format_byte_rate(broker['both_bytes_s'])} in and out at once",
        f"# a sync of 4 KiB: {disk.sync_median_ms:.2f} ms, 99 of 100 within {disk.sync_p99_ms:.2f} ms",
    ]
    if _network_bytes_s() is None:
        lines.append("# the network's speed is not known here: the one below is an example")
    lines += [
        "# price_month is 0: write down what such a machine costs",
        *(f'machine = "{name}"', ""),
        *machine_lines(name, machine),
        "",
        *cpu_lines(cpu),
    ]
    return "\n".join(lines) + "\n"
