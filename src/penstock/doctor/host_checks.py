"""The checks of a host: pure rules over its facts. A fact that is unknown fires nothing."""

from collections.abc import Iterator
from math import isfinite
from typing import Final

from penstock.doctor.findings import Check, Found, Severity, counted
from penstock.doctor.host_facts import HostFacts
from penstock.doctor.units import percent, size

_OPEN_FILES: Final = 20_000  # what a broker's defaults need, see docs/operations.md
_SEGMENT_SHARE: Final = 7 / 16  # of all descriptors: half of what is not reserved
_BACKLOG: Final = 4096  # what a listener asks of the kernel
_LEAST_BACKLOG: Final = 1024
_NETWORK_KINDS: Final = ("nfs", "cifs", "smb", "ceph", "fuse.", "gluster", "9p", "afs", "lustre")
_MEMORY_KINDS: Final = ("tmpfs", "ramfs")
_TESTED_KINDS: Final = ("ext4", "xfs", *_MEMORY_KINDS, "overlay")
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies")
_DYNAMIC_DRIVERS: Final = ("intel_pstate", "amd-pstate-epp")  # powersave is not slow with these
_GIB: Final = 1 << 30
_SWAPPED: Final = 64 << 20
_TCP_BYTES: Final = 4 << 20


def _open_files(facts: HostFacts) -> Iterator[Found]:
    if facts.open_files is None or facts.open_files.hard is None:
        return
    hard, replicas = facts.open_files.hard, facts.replicas or 0
    remedy = "set LimitNOFILE=1048576 in the systemd unit, or raise ulimit -Hn; restart the broker"
    if hard < _OPEN_FILES:
        yield Found(f"{hard:,} open files are allowed (hard limit)", remedy)
    elif replicas > hard * _SEGMENT_SHARE:
        yield Found(
            f"{hard:,} open files are allowed, of which segments get {int(hard * _SEGMENT_SHARE):,};"
            f" a broker has {replicas:,} replicas",
            remedy,
        )


def _swap(facts: HostFacts) -> Iterator[Found]:
    if facts.swapped_bytes and facts.swapped_bytes >= _SWAPPED:
        yield Found(
            f"{size(facts.swapped_bytes)} of memory is in swap",
            "add memory, or turn swap off: swapoff -a",
        )


def _swappiness(facts: HostFacts) -> Iterator[Found]:
    if facts.swap_total_bytes and facts.swappiness is not None and facts.swappiness > 1:
        yield Found(
            f"vm.swappiness is {facts.swappiness}, with swap on", "sysctl -w vm.swappiness=1"
        )


def _dirty_background(facts: HostFacts) -> Iterator[Found]:
    ratio = facts.dirty_background_ratio
    if ratio is not None and ratio > 10:
        yield Found(
            f"vm.dirty_background_ratio is {ratio}", "sysctl -w vm.dirty_background_ratio=5"
        )


def _dirty(facts: HostFacts) -> Iterator[Found]:
    if facts.dirty_ratio is not None and facts.dirty_ratio > 60 and not facts.dirty_bytes:
        yield Found(f"vm.dirty_ratio is {facts.dirty_ratio}", "sysctl -w vm.dirty_ratio=40")


def _overcommit(facts: HostFacts) -> Iterator[Found]:
    if facts.overcommit_memory == 2:
        yield Found("vm.overcommit_memory is 2", "sysctl -w vm.overcommit_memory=0")


def _huge_pages(facts: HostFacts) -> Iterator[Found]:
    if facts.huge_pages == "always":
        yield Found(
            "transparent huge pages are on for every process",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def _backlog(facts: HostFacts) -> Iterator[Found]:
    if facts.somaxconn is not None and facts.somaxconn < _LEAST_BACKLOG:
        yield Found(
            f"net.core.somaxconn is {facts.somaxconn}; a listener asks for {_BACKLOG:,}",
            "sysctl -w net.core.somaxconn=4096",
        )


def _slow_start(facts: HostFacts) -> Iterator[Found]:
    if facts.slow_start_after_idle == 1:
        yield Found(
            "net.ipv4.tcp_slow_start_after_idle is 1",
            "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
        )


def _tcp_buffers(facts: HostFacts) -> Iterator[Found]:
    for name, most in (
        ("tcp_rmem", facts.tcp_receive_max_bytes),
        ("tcp_wmem", facts.tcp_send_max_bytes),
    ):
        if most is not None and most < _TCP_BYTES:
            yield Found(
                f"the maximum of net.ipv4.{name} is {size(most)}",
                f'sysctl -w net.ipv4.{name}="4096 131072 16777216"',
            )


# Disk --------------------------------------------------------------------------------------------


def _network_file_system(facts: HostFacts) -> Iterator[Found]:
    if facts.mount is not None and facts.mount.kind.startswith(_NETWORK_KINDS):
        yield Found(
            f"{facts.data_directory} is on {facts.mount.kind}, a network file system",
            "put the data directory on a local disk: penstock serve --data DIR",
        )


def _volatile_file_system(facts: HostFacts) -> Iterator[Found]:
    if facts.mount is None:
        return
    remedy = "put the data directory on a disk or a volume: penstock serve --data DIR"
    if facts.mount.kind in _MEMORY_KINDS:
        yield Found(f"{facts.data_directory} is on {facts.mount.kind}, in memory", remedy)
    elif facts.mount.kind == "overlay":
        yield Found(f"{facts.data_directory} is on overlay, a container's own layer", remedy)


def _other_file_system(facts: HostFacts) -> Iterator[Found]:
    kind = facts.mount.kind if facts.mount is not None else _TESTED_KINDS[0]
    if kind not in _TESTED_KINDS and not kind.startswith(_NETWORK_KINDS):
        yield Found(f"{facts.data_directory} is on {kind}", "use ext4 or xfs")


def _read_only(facts: HostFacts) -> Iterator[Found]:
    if facts.mount is not None and "ro" in facts.mount.options:
        yield Found(
            f"{facts.mount.path} is mounted read-only",
            f"mount -o remount,rw {facts.mount.path}, after dmesg says why",
        )


def _barriers(facts: HostFacts) -> Iterator[Found]:
    if facts.mount is not None:
        for option in ("nobarrier", "barrier=0"):
            if option in facts.mount.options:
                yield Found(
                    f"{facts.mount.path} is mounted with {option}",
                    f"remove the option from /etc/fstab; mount -o remount {facts.mount.path}",
                )


def _slow_mount(facts: HostFacts) -> Iterator[Found]:
    if facts.mount is not None:
        for option in ("sync", "strictatime"):
            if option in facts.mount.options:
                yield Found(
                    f"{facts.mount.path} is mounted with {option}",
                    "mount it with noatime and without this option",
                )


def _used(facts: HostFacts) -> float:
    room = facts.room
    return 1 - room.free_bytes / room.total_bytes if room is not None and room.total_bytes else 0.0


def _room_fact(facts: HostFacts) -> str:
    assert facts.room is not None, "the share used is above 0"
    left = f"{size(facts.room.free_bytes)} of {size(facts.room.total_bytes)}"
    return f"the disk of {facts.data_directory} is {percent(_used(facts))} full: {left} is free"


_MORE_ROOM: Final = (
    "add disk, lower retention.ms (penstock topic alter NAME -c retention.ms=1d), or move replicas:"
    " penstock reassign plan"
)


def _disk_filling(facts: HostFacts) -> Iterator[Found]:
    if 0.8 < _used(facts) <= 0.95:
        yield Found(_room_fact(facts), _MORE_ROOM)


def _disk_full(facts: HostFacts) -> Iterator[Found]:
    if _used(facts) > 0.95:
        yield Found(_room_fact(facts), _MORE_ROOM)


def _inodes(facts: HostFacts) -> Iterator[Found]:
    room = facts.room
    if room is not None and room.inodes and room.free_inodes < 0.2 * room.inodes:
        yield Found(
            f"{room.free_inodes:,} of {room.inodes:,} inodes are free",
            "raise segment.bytes, remove files, or make the file system with more inodes",
        )


def _sync_fact(facts: HostFacts) -> str:
    times = facts.sync_times
    assert times is not None, "the rule has looked at the times"
    return (
        f"fdatasync takes {times.median_ms:.1f} ms (median), {times.p99_ms:.1f} ms (p99),"
        f" {times.max_ms:.1f} ms (longest of {times.samples})"
    )


def _slow_sync(facts: HostFacts) -> Iterator[Found]:
    if facts.sync_times is not None and 20 < facts.sync_times.p99_ms <= 100:
        yield Found(
            _sync_fact(facts), "use an SSD with power-loss protection; keep other writers away"
        )


def _very_slow_sync(facts: HostFacts) -> Iterator[Found]:
    if facts.sync_times is not None and facts.sync_times.p99_ms > 100:
        yield Found(_sync_fact(facts), "move the data directory to a faster disk")


def _rotational(facts: HostFacts) -> Iterator[Found]:
    if facts.rotational:
        yield Found(
            f"{facts.data_directory} is on a disk that says that it rotates",
            "use an SSD (virtual disks may say so wrongly)",
        )


# Clock, processors, memory -----------------------------------------------------------------------


def _clock(facts: HostFacts) -> Iterator[Found]:
    if facts.clock_synchronised is False:
        yield Found(
            "the kernel's clock is not synchronised", "run chrony: systemctl enable --now chrony"
        )


def _clocksource(facts: HostFacts) -> Iterator[Found]:
    if facts.clocksource in _SLOW_CLOCKS:
        yield Found(
            f"the clock source is {facts.clocksource}",
            "choose tsc or kvm-clock in /sys/devices/system/clocksource/clocksource0",
        )


def _cores(facts: HostFacts) -> Iterator[Found]:
    if facts.cpu_quota is not None and facts.cpu_quota < 1:
        yield Found(
            f"the control group may use {facts.cpu_quota:.2f} cores",
            "allow at least one core (cpu.max)",
        )


def _throttled(facts: HostFacts) -> Iterator[Found]:
    if facts.cpu_throttled is not None and facts.cpu_throttled > 0.05:
        yield Found(
            f"the CPU limit stopped the control group in {percent(facts.cpu_throttled)} of all periods",
            "raise the CPU limit, or remove it",
        )


def _steal(facts: HostFacts) -> Iterator[Found]:
    if facts.cpu_steal is not None and facts.cpu_steal > 0.05:
        yield Found(
            f"other guests took {percent(facts.cpu_steal)} of the processor time since the start",
            "ask for dedicated cores, or another machine",
        )


def _governor(facts: HostFacts) -> Iterator[Found]:
    if facts.governor == "powersave" and facts.governor_driver not in _DYNAMIC_DRIVERS:
        yield Found(
            "the frequency governor is powersave",
            "cpupower frequency-set -g performance",
        )


def _memory(facts: HostFacts) -> Iterator[Found]:
    limit, total = facts.memory_limit_bytes, facts.memory_bytes
    least = min((amount for amount in (limit, total) if amount is not None), default=None)
    if least is not None and isfinite(least) and least < _GIB:
        yield Found(f"{size(least)} of memory is available", "allow at least 1 GiB")


def _oom(facts: HostFacts) -> Iterator[Found]:
    if facts.oom_kills:
        times = counted(facts.oom_kills, "time")
        yield Found(
            f"the kernel killed processes of this control group for lack of memory ({times})",
            "raise the memory limit of the container or unit",
        )


# Network, software -------------------------------------------------------------------------------


def _slow_nic(facts: HostFacts) -> Iterator[Found]:
    for nic in facts.nics or ():
        if nic.speed_mbps is not None and nic.speed_mbps < 1000:
            yield Found(
                f"{nic.name} runs at {nic.speed_mbps} Mbit/s", "check cable, port and switch"
            )
        elif nic.duplex == "half":
            yield Found(f"{nic.name} runs in half duplex", "check cable, port and switch")


def _nic_errors(facts: HostFacts) -> Iterator[Found]:
    for nic in facts.nics or ():
        lost = nic.errors + nic.dropped
        if lost > 100 and lost > nic.packets / 10_000:
            yield Found(
                f"{nic.name}: {nic.errors:,} errors and {nic.dropped:,} dropped of {nic.packets:,} packets",
                f"see: ethtool -S {nic.name}; enlarge its rings: ethtool -G",
            )


def _kernel(facts: HostFacts) -> Iterator[Found]:
    if facts.system == "Linux" and facts.kernel is not None and facts.kernel < (4, 13):
        yield Found(
            f"the kernel is {facts.kernel[0]}.{facts.kernel[1]}", "upgrade to 4.13 or later"
        )


def _system(facts: HostFacts) -> Iterator[Found]:
    if facts.system != "Linux":
        yield Found(f"the system is {facts.system or 'unknown'}", "run brokers on Linux")


def _uvloop(facts: HostFacts) -> Iterator[Found]:
    if facts.uvloop is False and facts.system != "Windows":
        yield Found("uvloop is not installed for this Python", "pip install uvloop")


def _python_debug(facts: HostFacts) -> Iterator[Found]:
    if facts.python_debug:
        yield Found(f"Python runs with {facts.python_debug}", "run without it in production")


_P, _W, _N = Severity.PROBLEM, Severity.WARNING, Severity.NOTE

HOST_CHECKS: Final[tuple[Check[HostFacts], ...]] = (
    Check("open-files", _W, "hard limit below 20,000, or fewer descriptors for segments than replicas", "Connections are refused, and segment files are closed and opened again and again.", _open_files),
    Check("swap-used", _W, "64 MiB or more in swap", "A broker whose pages are in swap stops for seconds, and its session may end.", _swap),
    Check("swappiness", _N, "swap is on and vm.swappiness is above 1", "The kernel swaps the broker out to keep file pages.", _swappiness),
    Check("dirty-background-ratio", _N, "vm.dirty_background_ratio is above 10", "Writing back begins late, and then all at once.", _dirty_background),
    Check("dirty-ratio", _W, "vm.dirty_ratio is above 60", "When so much is unwritten, every write of the broker waits for the disk.", _dirty),
    Check("overcommit", _N, "vm.overcommit_memory is 2", "The compaction worker may not start although memory is free.", _overcommit),
    Check("huge-pages", _N, "transparent huge pages are always on", "The kernel stops processes to build large pages, and memory use grows.", _huge_pages),
    Check("listen-backlog", _W, "net.core.somaxconn is below 1,024", "Clients that connect at once, as after a restart, are turned away.", _backlog),
    Check("slow-start-after-idle", _N, "net.ipv4.tcp_slow_start_after_idle is 1", "Connections that pause, such as long polls, begin slowly each time.", _slow_start),
    Check("tcp-buffers", _N, "the maximum of tcp_rmem or tcp_wmem is below 4 MiB", "One connection over a long path cannot fill the line.", _tcp_buffers),
    Check("network-file-system", _P, "the data directory is on NFS, CIFS, Ceph, FUSE, …", "Locks and syncs are not reliable there, and SQLite metadata may be damaged.", _network_file_system),
    Check("volatile-file-system", _W, "the data directory is on tmpfs or overlay", "Messages are lost with the host's memory or with the container.", _volatile_file_system),
    Check("other-file-system", _N, "the data directory is on neither ext4 nor xfs", "Brokers are tested on ext4 and xfs.", _other_file_system),
    Check("read-only-mount", _P, "the data directory's mount is read-only", "The broker cannot write. The kernel remounts a file system read-only after an error.", _read_only),
    Check("write-barriers-off", _W, "mounted with nobarrier or barrier=0", "After a power cut, data that was synced may be missing.", _barriers),
    Check("slow-mount-options", _N, "mounted with sync or strictatime", "Every write, or every read, waits for another write.", _slow_mount),
    Check("disk-filling", _W, "more than 80 % of the data directory's disk is used", "A full disk makes the broker reject writes.", _disk_filling),
    Check("disk-almost-full", _P, "more than 95 % of the data directory's disk is used", "A full disk makes the broker reject writes.", _disk_full),
    Check("inodes", _W, "fewer than 20 % of the inodes are free", "A segment cannot be created without an inode, however much room there is.", _inodes),
    Check("slow-sync", _W, "p99 of fdatasync is above 20 ms", "Metadata, and messages of topics that sync, wait for it.", _slow_sync),
    Check("very-slow-sync", _P, "p99 of fdatasync is above 100 ms", "Commits of offsets and metadata stall, and sessions end.", _very_slow_sync),
    Check("rotating-disk", _N, "the disk rotates", "Consumers that read old messages slow producers down.", _rotational),
    Check("clock-unsynchronised", _W, "adjtimex says that the clock is not synchronised", "Timestamps, retention by time and lag in seconds are wrong by the clock's error.", _clock),
    Check("slow-clock-source", _N, "the clock source is hpet, acpi_pm or jiffies", "Reading the time, which a broker does often, takes microseconds.", _clocksource),
    Check("cpu-quota", _W, "the control group may use less than one core", "A broker uses one core; below that it stops within each period.", _cores),
    Check("cpu-throttled", _W, "the CPU limit stopped the group in more than 5 % of all periods", "Each stop is a latency of tens of milliseconds for every client.", _throttled),
    Check("cpu-steal", _W, "more than 5 % of processor time is stolen", "The hypervisor stops the broker, and latency suffers.", _steal),
    Check("cpu-governor", _N, "the governor is powersave and the driver fixes the lowest frequency", "The processor stays at its lowest frequency.", _governor),
    Check("memory", _W, "less than 1 GiB of memory", "Consumers read from the page cache; what does not fit comes from the disk.", _memory),
    Check("out-of-memory-kills", _P, "the kernel killed a process of the control group for lack of memory", "A broker that is killed leaves its partitions to others, and recovers its logs.", _oom),
    Check("slow-network", _W, "an interface is below 1 Gbit/s or half duplex", "Replication and consumers share it with producers.", _slow_nic),
    Check("network-errors", _W, "more than 100 packets and 0.01 % have errors or are dropped", "TCP sends lost packets again after at least 200 ms.", _nic_errors),
    Check("old-kernel", _P, "the kernel is older than 4.13", "It may report a sync as done after the disk has failed to write.", _kernel),
    Check("not-linux", _N, "the system is not Linux", "Brokers are tested on Linux; most facts cannot be read elsewhere.", _system),
    Check("uvloop-missing", _P, "uvloop is not installed", "`penstock serve` does not start without it.", _uvloop),
    Check("python-debug", _W, "Python runs in development mode, with a debug allocator or as a debug build", "The broker is slower.", _python_debug),
)  # fmt: skip
