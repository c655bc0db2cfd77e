"""Disks under the brokers of a cluster, each its own: to be filled, to lose power, to rot."""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.records.batch import iter_headers
from penstock.storage import checksummed_json, markers
from tests.support.cluster import ClusterOfServers, PartitionView
from tests.support.faulty_disk import FaultyDisk
from tests.support.private_disk import PrivateDisk, ext4_disk, ram_disk
from tests.support.server import until

_SIZE_MIB: Final = 128
_MOUNT: Final = "-o loop,commit=300"
_VALUE_BYTE: Final = 100  # of a batch: past its header, under its checksum
_LENGTH_BYTE: Final = 9  # a megabyte more: past the end of the file, wherever the batch lies
_LOOK_S: Final = 0.02
_BIT: Final = 0x10


# Disks -------------------------------------------------------------------------------------------


@contextmanager
def disks(
    home: Path, brokers: Iterable[int], *, ram: str | None = None
) -> Iterator[dict[int, PrivateDisk]]:
    """One for each of these brokers. `ram`: of that size; else such as can lose its power."""
    with ExitStack() as stack:
        made = {}
        for number in brokers:
            own = home / f"disk-of-{number}"
            own.mkdir()
            disk = ext4_disk(own, _SIZE_MIB) if ram is None else ram_disk(own, ram)
            made[number] = stack.enter_context(disk)
        yield made


def put_on(cluster: ClusterOfServers, mounted: Mapping[int, PrivateDisk]) -> ClusterOfServers:
    """The brokers' data will be there. Before they are started."""
    for number, disk in mounted.items():
        cluster.servers[number].data_dir = disk.view / "data"
    return cluster


def faulty_disks(home: Path, brokers: Iterable[int]) -> dict[int, FaultyDisk]:
    """Their variables are for the brokers' environment."""
    made = {}
    for number in brokers:
        own = home / f"faults-of-{number}"
        own.mkdir()
        made[number] = FaultyDisk(own)
    return made


def cut_power(cluster: ClusterOfServers, mounted: Mapping[int, PrivateDisk]) -> None:
    """Of all these brokers at one moment; they stay down.

    Brokers stand still first: a sync that is under way when ext4 shuts down would return 0.
    """
    for number in mounted:
        cluster.servers[number].process.send_signal(signal.SIGSTOP)
    for number in mounted:
        until(partial(_stands_still, cluster.servers[number].pid), "it stands still")
    for disk in mounted.values():
        disk.cut_power()
    for number, disk in mounted.items():
        cluster.kill(number)
        disk.mount_again(f"{_MOUNT} {disk.path.parent / 'image'}")
        _forge_reboot(cluster.servers[number].data_dir)


def _stands_still(pid: int) -> bool:
    return "stopped" in Path(f"/proc/{pid}/status").read_text()


def _forge_reboot(data: Path) -> None:
    """A broker tells the loss of power from a crash by the machine's boot, which a test cannot change."""
    running = data / markers.RUNNING
    content = checksummed_json.decode(markers.RUNNING, running.read_bytes())
    running.write_bytes(
        checksummed_json.encode(markers.RUNNING, content | {"boot_id": "of another time"})
    )


# Damage ------------------------------------------------------------------------------------------


def closed_segment(cluster: ClusterOfServers, number: int, topic: str, partition: int = 0) -> Path:
    """One that is neither the first nor in use; waits until there is one."""
    server = cluster.servers[number]
    until(lambda: len(server.segments(topic, partition)) > 3, "there are closed segments")
    return server.segments(topic, partition)[1]


def flip_value(file: Path) -> None:
    """A bit that only a checksum can miss."""
    _flip(file, _third_batch(file) + _VALUE_BYTE)


def flip_length(file: Path) -> None:
    """A bit by which neither the batch nor those after it can be found."""
    _flip(file, _third_batch(file) + _LENGTH_BYTE)


def _third_batch(file: Path) -> int:
    positions = [position for position, _ in iter_headers(memoryview(file.read_bytes()))]
    return positions[min(2, len(positions) - 1)]


def _flip(file: Path, position: int) -> None:
    """In place: a broker may have it open."""
    fd = os.open(file, os.O_RDWR)
    try:
        (found,) = os.pread(fd, 1, position)
        os.pwrite(fd, bytes([found ^ _BIT]), position)
        os.fsync(fd)
    finally:
        os.close(fd)


# Leaders -----------------------------------------------------------------------------------------


def isr_expansions(cluster: ClusterOfServers) -> float:
    """How often a replica came back in sync."""
    name = "kafka_server_replicamanager_isrexpands_total"
    return sum(server.metric(name) for server in cluster.servers.values())


class LeaderWatch:
    """Who leads a partition, and who is in sync, at every moment that brokers tell of."""

    def __init__(self, cluster: ClusterOfServers, topic: str, partition: int = 0) -> None:
        self.seen: list[PartitionView] = []
        self._cluster = cluster
        self._place = (topic, partition)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            found = self._cluster.partition(*self._place)
            if found.leader_epoch >= 0 and (not self.seen or self.seen[-1] != found):
                self.seen.append(found)
            time.sleep(_LOOK_S)

    def leaders(self, after_epoch: int) -> list[int]:
        """Of the epochs after that one, in order; -1 where nobody led."""
        return [view.leader for view in self.seen if view.leader_epoch > after_epoch]
