"""Facts of a host are read from its files, and a host without them is a host of unknown facts."""

import math
import os
from pathlib import Path

import pytest

from penstock.doctor import disk_probe, host_reader
from penstock.doctor.disk_probe import measure, summarise
from penstock.doctor.host_facts import Limits, Nic, Room, SyncTimes, unknown


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


SERVICE = "sys/fs/cgroup/system.slice/penstock.service"
FILES = {
    "proc/77/limits": "Max open files            1024                 524288               files\n",
    "proc/77/status": "Name:\tpython\nVmSwap:\t    2048 kB\n",
    "proc/77/cgroup": "0::/system.slice/penstock.service\n",
    "proc/meminfo": "MemTotal: 1024 kB\nSwapTotal: 512 kB\nSwapFree: 500 kB\n",
    "proc/stat": "cpu 1 1 1 1 0 0 0 0\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    f"{SERVICE}/cpu.max": "max 100000\n",
    f"{SERVICE}/cpu.stat": "nr_periods 10\nnr_throttled 1\n",
    f"{SERVICE}/memory.max": "max\n",
    f"{SERVICE}/memory.events": "oom 2\noom_kill 1\n",
    "sys/fs/cgroup/system.slice/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/system.slice/memory.max": "4096\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "25000\n",
    "sys/class/net/eth0/device/vendor": "x\n",
    "sys/class/net/docker0/operstate": "up\n",
    "sys/class/net/eth1/operstate": "down\n",
    "sys/class/net/eth1/device/vendor": "x\n",
}


def test_facts_of_a_process_in_a_control_group(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    facts = host_reader.gather(None, pid=77, root=tmp_path)
    assert facts.open_files == Limits(1024, 524288)
    assert facts.swapped_bytes == 2048 * 1024
    assert facts.swappiness == 60
    assert facts.tcp_receive_max_bytes == 6291456
    assert facts.huge_pages == "always"
    assert facts.cpu_quota == 0.5  # of the group above it
    assert facts.memory_limit_bytes == 4096
    assert facts.cpu_throttled == 0.1
    assert facts.oom_kills == 1
    assert facts.nics == (Nic("eth0", 25000, None, 0, 0, 0),)
    assert facts.somaxconn is None


def test_without_a_process_the_swap_is_that_of_the_host(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    assert host_reader.gather(None, root=tmp_path).swapped_bytes == 12 * 1024


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/unseen/by/us\n1:cpu,cpuacct:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    write(tmp_path, files)
    facts = host_reader.gather(None, root=tmp_path)
    assert facts.cpu_quota == 1.5
    assert facts.memory_limit_bytes == math.inf
    assert facts.oom_kills is None


def test_a_host_that_shows_nothing(tmp_path: Path) -> None:
    facts = host_reader.gather(str(tmp_path), root=tmp_path)
    assert {"nics", "mount", "open files", "cpu quota", "memory bytes"} <= set(unknown(facts))
    assert facts.room is not None


def test_files_that_are_not_text(tmp_path: Path) -> None:
    for name in FILES:
        write(tmp_path, {name: ""})
        (tmp_path / name).write_bytes(b"\xff\x00\xfe\n" * 3)
    assert host_reader.gather(None, pid=77, root=tmp_path).swappiness is None


def test_a_partition_takes_the_rotation_of_its_disk(tmp_path: Path) -> None:
    disk = tmp_path / "sys/devices/sda"
    write(tmp_path, {"sys/devices/sda/queue/rotational": "1\n", "sys/devices/sda/sda1/size": "9\n"})
    device = tmp_path / "sys/dev/block/8:1"
    device.parent.mkdir(parents=True)
    device.symlink_to(disk / "sda1")
    data = tmp_path / "data"
    data.mkdir()
    write(tmp_path, {"proc/self/mountinfo": "1 2 8:1 / / rw - ext4 /dev/sda1 rw\n"})
    assert host_reader.gather(str(data), root=tmp_path).rotational is True


def test_the_room_of_a_disk_is_in_bytes_that_users_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs_result((9999, 4096, 100, 60, 50, 1000, 900, 800, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    facts = host_reader.gather(str(tmp_path), root=tmp_path)
    assert facts.room == Room(100 * 4096, 50 * 4096, 1000, 800)


def test_this_host() -> None:
    facts = host_reader.gather("/")
    assert facts.kernel is not None
    assert facts.open_files is not None
    assert facts.memory_bytes
    assert facts.mount is not None


# The disk ----------------------------------------------------------------------------------------


def test_syncs_are_timed_and_leave_nothing(tmp_path: Path) -> None:
    now = iter(range(10**6))
    times = measure(str(tmp_path), 9, lambda: float(next(now)))
    assert times == SyncTimes(4, 1000.0, 1000.0, 1000.0)
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_syncs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_probe, "MOST_SAMPLES", 20)
    times = measure(str(tmp_path), 1, lambda: 0.0)
    assert times is not None
    assert times.samples == 20


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_a_disk_that_cannot_be_written_is_unknown(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    assert measure(str(tmp_path / place), 1, lambda: 0.0) is None


def test_times_are_summarised() -> None:
    assert summarise([float(number) for number in range(100, 0, -1)]) == (100, 50.0, 99.0, 100.0)
    assert summarise([7.0]) == (1, 7.0, 7.0, 7.0)
    assert summarise([]) is None
