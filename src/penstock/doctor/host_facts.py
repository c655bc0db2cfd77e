"""Facts about a host that its checks need. Every one may be unknown (`None`): containers hide many."""

from dataclasses import dataclass, fields
from typing import NamedTuple


class Nic(NamedTuple):
    """A network interface that is up, with its counters since the start of the host."""

    name: str
    speed_mbps: int | None
    duplex: str | None
    packets: int
    errors: int
    dropped: int


class Mount(NamedTuple):
    path: str
    kind: str  # ext4, xfs, nfs4, …
    options: tuple[str, ...]
    device: str  # MAJOR:MINOR


class Room(NamedTuple):
    total_bytes: int
    free_bytes: int  # for users that are not root
    inodes: int  # 0: the file system has no fixed number
    free_inodes: int


class SyncTimes(NamedTuple):
    """Times of fdatasync after a write of 4 KiB each."""

    samples: int
    median_ms: float
    p99_ms: float
    max_ms: float


class Limits(NamedTuple):
    """Of open files; `None` is unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class HostFacts:
    system: str = "Linux"
    open_files: Limits | None = None
    replicas: int | None = None  # on the broker with the most, when the cluster was asked too
    swappiness: int | None = None
    swap_total_bytes: int | None = None
    swapped_bytes: int | None = None  # of the process if there is one, else of the host
    dirty_ratio: int | None = None
    dirty_background_ratio: int | None = None
    dirty_bytes: int | None = None
    overcommit_memory: int | None = None
    huge_pages: str | None = None  # always, madvise or never
    somaxconn: int | None = None
    slow_start_after_idle: int | None = None
    tcp_receive_max_bytes: int | None = None
    tcp_send_max_bytes: int | None = None
    data_directory: str | None = None
    mount: Mount | None = None
    room: Room | None = None
    rotational: bool | None = None
    sync_times: SyncTimes | None = None
    clock_synchronised: bool | None = None
    clocksource: str | None = None
    cpu_quota: float | None = None  # cores; infinite: no limit
    cpu_throttled: float | None = None  # share of the periods
    cpu_steal: float | None = None  # share of all time since the start of the host
    governor: str | None = None
    governor_driver: str | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: float | None = None  # infinite: no limit
    oom_kills: int | None = None
    nics: tuple[Nic, ...] | None = None
    kernel: tuple[int, int] | None = None
    uvloop: bool | None = None
    python_debug: str | None = None  # the switch that slows Python down; empty: none


_OPTIONAL = frozenset({"replicas", "governor", "governor_driver", "data_directory"})
_OF_DATA_DIRECTORY = frozenset({"mount", "room", "rotational", "sync_times"})


def unknown(facts: HostFacts) -> list[str]:
    """Return the names of the facts that could not be read. Those of no data directory are not missed."""
    skipped = _OPTIONAL if facts.data_directory else _OPTIONAL | _OF_DATA_DIRECTORY
    return [
        field.name.replace("_", " ")
        for field in fields(facts)
        if field.name not in skipped and getattr(facts, field.name) is None
    ]
