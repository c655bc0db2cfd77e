"""Gather the facts of this host. Nothing here raises: what cannot be read is unknown."""

import ctypes
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock.doctor import proc
from penstock.doctor.host_facts import HostFacts, Nic, Room, SyncTimes

_LONGEST_TEXT: Final = 1 << 20  # /proc/self/mountinfo of a host with many containers
_MOST_NICS: Final = 64
_NIC_FILES: Final = (
    "speed",
    "duplex",
    *(f"statistics/{way}_{what}" for way in ("rx", "tx") for what in ("packets", "errors", "dropped")),
)  # fmt: skip
_TIME_ERROR: Final = 5  # adjtimex: the clock is not synchronised
_TIMEX_BYTES: Final = (
    512  # more than struct timex has on any platform; all zero reads and changes nothing
)

Read = Callable[[str], str | None]


def reader(root: Path) -> Read:
    """Return a function that reads a file below `root`, or None."""

    def read(path: str) -> str | None:
        try:
            with open(root / path.lstrip("/"), encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_TEXT)
        except (OSError, ValueError):
            return None

    return read


def gather(
    data: str | None,
    *,
    pid: int | None = None,
    replicas: int | None = None,
    sync_times: SyncTimes | None = None,
    root: Path = Path("/"),
) -> HostFacts:
    """The facts of the host, of a process (default: this one) and of a data directory."""
    read = reader(root)
    process = "self" if pid is None else str(pid)
    return HostFacts(
        system=platform.system(),
        replicas=replicas,
        sync_times=sync_times,
        clock_synchronised=_clock_synchronised(),
        uvloop=find_spec("uvloop") is not None,
        python_debug=_python_debug(),
        kernel=proc.kernel_release(platform.release()),
        nics=_nics(root, read),
        **_kernel_settings(read),
        **_processors(read),
        **_memory(read, process if pid is not None else None),
        **_cgroup(root, read, process),
        **(_disk(data, read) if data is not None else {}),
        open_files=proc.open_files(read(f"/proc/{process}/limits")),
    )


def _kernel_settings(read: Read) -> dict[str, Any]:
    def number(name: str) -> int | None:
        return proc.natural(read(f"/proc/sys/{name}"))

    return {
        "swappiness": number("vm/swappiness"),
        "dirty_ratio": number("vm/dirty_ratio"),
        "dirty_background_ratio": number("vm/dirty_background_ratio"),
        "dirty_bytes": number("vm/dirty_bytes"),
        "overcommit_memory": number("vm/overcommit_memory"),
        "huge_pages": proc.chosen(read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "somaxconn": number("net/core/somaxconn"),
        "slow_start_after_idle": number("net/ipv4/tcp_slow_start_after_idle"),
        "tcp_receive_max_bytes": proc.last_of_three(read("/proc/sys/net/ipv4/tcp_rmem")),
        "tcp_send_max_bytes": proc.last_of_three(read("/proc/sys/net/ipv4/tcp_wmem")),
    }


def _processors(read: Read) -> dict[str, Any]:
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq"
    source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {
        "cpu_steal": proc.steal_share(read("/proc/stat")),
        "governor": (read(f"{frequency}/scaling_governor") or "").strip() or None,
        "governor_driver": (read(f"{frequency}/scaling_driver") or "").strip() or None,
        "clocksource": (source or "").strip() or None,
    }


def _memory(read: Read, process: str | None) -> dict[str, Any]:
    memory = read("/proc/meminfo")
    total, free = proc.kilobytes(memory, "SwapTotal"), proc.kilobytes(memory, "SwapFree")
    if process is not None:
        swapped = proc.kilobytes(read(f"/proc/{process}/status"), "VmSwap")
    else:
        swapped = None if total is None or free is None else max(0, total - free)
    return {
        "memory_bytes": proc.kilobytes(memory, "MemTotal"),
        "swap_total_bytes": total,
        "swapped_bytes": swapped,
    }


# Control groups ----------------------------------------------------------------------------------


def _cgroup(root: Path, read: Read, process: str) -> dict[str, Any]:
    paths = proc.cgroup_paths(read(f"/proc/{process}/cgroup"))
    if "memory" in paths or "cpu" in paths:
        return _cgroup_v1(read, paths)
    if "" in paths and (root / "sys/fs/cgroup/cgroup.controllers").exists():
        return _cgroup_v2(read, paths[""])
    return {}


def _cgroup_v2(read: Read, path: str) -> dict[str, Any]:
    """The limits of all groups that hold the process are in force; a group without the file has none."""
    groups = [f"/sys/fs/cgroup{group}" for group in _with_parents(path)]
    events = proc.counters(read(f"{groups[0]}/memory.events"))
    return {
        "cpu_quota": _lowest(proc.cpu_max(read(f"{group}/cpu.max")) for group in groups),
        "cpu_throttled": _first(
            proc.throttled_share(read(f"{group}/cpu.stat")) for group in groups
        ),
        "memory_limit_bytes": _lowest(
            proc.memory_limit(read(f"{group}/memory.max")) for group in groups
        ),
        "oom_kills": events.get("oom_kill"),
    }


def _cgroup_v1(read: Read, paths: dict[str, str]) -> dict[str, Any]:
    cpu = [f"/sys/fs/cgroup/cpu{group}" for group in _with_parents(paths.get("cpu", "/"))]
    memory = [f"/sys/fs/cgroup/memory{group}" for group in _with_parents(paths.get("memory", "/"))]
    control = proc.counters(read(f"{memory[0]}/memory.oom_control"))
    return {
        "cpu_quota": _lowest(
            proc.cpu_quota_v1(read(f"{group}/cpu.cfs_quota_us"), read(f"{group}/cpu.cfs_period_us"))
            for group in cpu
        ),
        "cpu_throttled": _first(proc.throttled_share(read(f"{group}/cpu.stat")) for group in cpu),
        "memory_limit_bytes": _lowest(
            proc.memory_limit(read(f"{group}/memory.limit_in_bytes")) for group in memory
        ),
        "oom_kills": control.get("oom_kill"),
    }


def _with_parents(path: str) -> list[str]:
    """`/a/b`, `/a` and the root, which is empty. A container may name a group that it cannot see."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["".join(f"/{part}" for part in parts[:length]) for length in range(len(parts), -1, -1)]


def _lowest(limits: Iterator[float | None]) -> float:
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _first(values: Iterator[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


# Disk --------------------------------------------------------------------------------------------


def _disk(data: str, read: Read) -> dict[str, Any]:
    path = os.path.realpath(data)
    mount = proc.mount_of(path, proc.mounts(read("/proc/self/mountinfo")))
    return {
        "data_directory": path,
        "mount": mount,
        "room": _room(path),
        "rotational": None if mount is None else _rotational(mount.device, read),
    }


def _room(path: str) -> Room | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return Room(
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
    )


def _rotational(device: str, read: Read) -> bool | None:
    """A partition has no queue of its own: its disk is the directory above."""
    for queue in ("queue", "../queue"):
        number = proc.natural(read(f"/sys/dev/block/{device}/{queue}/rotational"))
        if number is not None:
            return number == 1
    return None


# Network, clock, Python --------------------------------------------------------------------------


def _nics(root: Path, read: Read) -> tuple[Nic, ...] | None:
    """Interfaces that are up and have a device: no loopback, bridges or tunnels."""
    directory = root / "sys/class/net"
    try:
        names = sorted(os.listdir(directory))[:_MOST_NICS]
    except OSError:
        return None
    found = []
    for name in names:
        is_up = (read(f"/sys/class/net/{name}/operstate") or "").strip() == "up"
        if is_up and (directory / name / "device").exists():
            texts = {file: read(f"/sys/class/net/{name}/{file}") for file in _NIC_FILES}
            found.append(proc.nic(name, texts))
    return tuple(found)


def _clock_synchronised() -> bool | None:
    """Ask the kernel by adjtimex with no mode, which only reads."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _python_debug() -> str:
    if sys.flags.dev_mode:
        return "-X dev"
    if os.environ.get("PYTHONMALLOC", "").endswith("debug"):
        return "PYTHONMALLOC=" + os.environ["PYTHONMALLOC"]
    return "a debug build" if hasattr(sys, "gettotalrefcount") else ""
