"""Each check of a host reports its fact where it should, and nothing elsewhere."""

import math
from dataclasses import replace
from typing import Any

import pytest

from penstock.doctor.findings import Finding, examine
from penstock.doctor.host_checks import HOST_CHECKS
from penstock.doctor.host_facts import HostFacts, Limits, Mount, Nic, Room, SyncTimes, unknown

GIB = 1 << 30
WELL = HostFacts(
    open_files=Limits(1024, 1 << 20),
    replicas=4000,
    swappiness=1,
    swap_total_bytes=0,
    swapped_bytes=0,
    dirty_ratio=20,
    dirty_background_ratio=10,
    dirty_bytes=0,
    overcommit_memory=0,
    huge_pages="madvise",
    somaxconn=4096,
    slow_start_after_idle=0,
    tcp_receive_max_bytes=6 << 20,
    tcp_send_max_bytes=4 << 20,
    data_directory="/data",
    mount=Mount("/data", "xfs", ("rw", "noatime"), "8:1"),
    room=Room(100 * GIB, 50 * GIB, 1000, 900),
    rotational=False,
    sync_times=SyncTimes(500, 1.0, 4.0, 30.0),
    clock_synchronised=True,
    clocksource="tsc",
    cpu_quota=math.inf,
    cpu_throttled=0.0,
    cpu_steal=0.0,
    governor="performance",
    governor_driver="acpi-cpufreq",
    memory_bytes=64 * GIB,
    memory_limit_bytes=math.inf,
    oom_kills=0,
    nics=(Nic("eth0", 10_000, "full", 10**9, 5, 1000),),
    kernel=(6, 1),
    uvloop=True,
    python_debug="",
)


def mount(kind: str = "xfs", *options: str) -> Mount:
    return Mount("/data", kind, ("rw", *options), "8:1")


def times(p99_ms: float) -> SyncTimes:
    return SyncTimes(500, 1.0, p99_ms, 500.0)


def nic(**changes: Any) -> tuple[Nic, ...]:
    return (Nic("eth0", 10_000, "full", 10**6, 0, 0)._replace(**changes),)


# id, the facts that it reports, words of what it says, and facts next to them that it does not report
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("open-files", {"open_files": Limits(1024, 4096)}, "4,096 open files", {"open_files": Limits(1024, 20_000)}),
    ("open-files", {"open_files": Limits(1, 32_000), "replicas": 14_001}, "14,000; a broker has 14,001 replicas", {"open_files": Limits(1, 32_000), "replicas": 14_000}),
    ("swap-used", {"swapped_bytes": 64 << 20}, "64.0 MiB of memory is in swap", {"swapped_bytes": 63 << 20}),
    ("swappiness", {"swappiness": 60, "swap_total_bytes": GIB}, "vm.swappiness is 60", {"swappiness": 60, "swap_total_bytes": 0}),
    ("dirty-background-ratio", {"dirty_background_ratio": 11}, "is 11", {"dirty_background_ratio": 10}),
    ("dirty-ratio", {"dirty_ratio": 80}, "is 80", {"dirty_ratio": 80, "dirty_bytes": GIB}),
    ("overcommit", {"overcommit_memory": 2}, "is 2", {"overcommit_memory": 1}),
    ("huge-pages", {"huge_pages": "always"}, "huge pages", {"huge_pages": "never"}),
    ("listen-backlog", {"somaxconn": 128}, "somaxconn is 128", {"somaxconn": 1024}),
    ("slow-start-after-idle", {"slow_start_after_idle": 1}, "is 1", {"slow_start_after_idle": 0}),
    ("tcp-buffers", {"tcp_send_max_bytes": 212_992}, "tcp_wmem is 208.0 KiB", {"tcp_send_max_bytes": 4 << 20}),
    ("network-file-system", {"mount": mount("nfs4")}, "/data is on nfs4", {"mount": mount("ext4")}),
    ("volatile-file-system", {"mount": mount("overlay")}, "a container's own layer", {"mount": mount("xfs")}),
    ("volatile-file-system", {"mount": mount("tmpfs")}, "in memory", {"mount": mount("xfs")}),
    ("other-file-system", {"mount": mount("btrfs")}, "/data is on btrfs", {"mount": mount("nfs")}),
    ("read-only-mount", {"mount": mount("xfs", "ro")}, "read-only", {"mount": mount("xfs", "errors=remount-ro")}),
    ("write-barriers-off", {"mount": mount("ext4", "barrier=0")}, "barrier=0", {"mount": mount("ext4", "barrier=1")}),
    ("slow-mount-options", {"mount": mount("ext4", "sync")}, "with sync", {"mount": mount("ext4", "relatime")}),
    ("disk-filling", {"room": Room(100 * GIB, 19 * GIB, 0, 0)}, "81 % full: 19.0 GiB of 100.0 GiB is free", {"room": Room(100 * GIB, 20 * GIB, 0, 0)}),
    ("disk-almost-full", {"room": Room(100 * GIB, 4 * GIB, 0, 0)}, "96 % full", {"room": Room(0, 0, 0, 0)}),
    ("inodes", {"room": Room(100, 90, 1000, 199)}, "199 of 1,000 inodes", {"room": Room(100, 90, 1000, 200)}),
    ("slow-sync", {"sync_times": times(21)}, "21.0 ms (p99)", {"sync_times": times(20)}),
    ("very-slow-sync", {"sync_times": times(101)}, "500.0 ms (longest of 500)", {"sync_times": times(100)}),
    ("rotating-disk", {"rotational": True}, "/data", {"rotational": None}),
    ("clock-unsynchronised", {"clock_synchronised": False}, "clock", {"clock_synchronised": None}),
    ("slow-clock-source", {"clocksource": "hpet"}, "hpet", {"clocksource": "kvm-clock"}),
    ("cpu-quota", {"cpu_quota": 0.5}, "0.50 cores", {"cpu_quota": 1.0}),
    ("cpu-throttled", {"cpu_throttled": 0.06}, "6 % of all periods", {"cpu_throttled": 0.05}),
    ("cpu-steal", {"cpu_steal": 0.2}, "20 % of the processor time", {"cpu_steal": 0.05}),
    ("cpu-governor", {"governor": "powersave"}, "powersave", {"governor": "powersave", "governor_driver": "intel_pstate"}),
    ("memory", {"memory_limit_bytes": 512.0 * (1 << 20)}, "512.0 MiB", {"memory_limit_bytes": float(GIB)}),
    ("out-of-memory-kills", {"oom_kills": 1}, "1 time", {"oom_kills": 0}),
    ("slow-network", {"nics": nic(speed_mbps=100)}, "eth0 runs at 100 Mbit/s", {"nics": nic(speed_mbps=None)}),
    ("slow-network", {"nics": nic(duplex="half")}, "half duplex", {"nics": nic(duplex=None)}),
    ("network-errors", {"nics": nic(errors=60, dropped=41)}, "60 errors and 41 dropped", {"nics": nic(errors=100, packets=0)}),
    ("old-kernel", {"kernel": (4, 4)}, "the kernel is 4.4", {"kernel": (4, 13)}),
    ("not-linux", {"system": "Darwin"}, "Darwin", {"system": "Linux"}),
    ("uvloop-missing", {"uvloop": False}, "uvloop", {"uvloop": None}),
    ("python-debug", {"python_debug": "-X dev"}, "-X dev", {"python_debug": None}),
]  # fmt: skip


def findings(facts: HostFacts) -> list[Finding]:
    return examine(HOST_CHECKS, facts, "host")


@pytest.mark.parametrize(("name", "facts", "words", "harmless"), CASES)
def test_a_check_reports_its_fact_and_nothing_else(
    name: str, facts: dict[str, Any], words: str, harmless: dict[str, Any]
) -> None:
    [found] = findings(replace(WELL, **facts))
    assert found.id == name
    assert words in found.fact
    assert found.remedy
    assert name not in {found.id for found in findings(replace(WELL, **harmless))}


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in CASES} == {check.id for check in HOST_CHECKS}


def test_a_host_that_is_well() -> None:
    assert findings(WELL) == []
    assert unknown(WELL) == []


def test_what_is_unknown_is_named_and_reports_nothing() -> None:
    nothing = HostFacts(data_directory="/data")
    assert findings(nothing) == []
    assert {"swappiness", "sync times", "kernel", "nics"} <= set(unknown(nothing))


def test_the_disk_of_no_data_directory_is_not_missed() -> None:
    assert unknown(replace(WELL, data_directory=None, mount=None, room=None, rotational=None)) == []


def test_no_limit_of_open_files() -> None:
    assert findings(replace(WELL, open_files=Limits(1024, None))) == []
