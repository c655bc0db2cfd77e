"""The simulated disk loses what a real one may lose, and nothing else."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.model.errors import DiskFull, OutOfResources, StorageFault
from penstock.storage import machine
from penstock.storage.files import Disk, OpenFiles, SegmentFile, write_atomically
from tests.simulation.disk import PAGE_BYTES, Faults, SimDisk
from tests.simulation.syscalls import Syscalls
from tests.simulation.threads import ProcessEnded

_SEEDS = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimDisk]:
    root = tmp_path / "1"
    root.mkdir()
    made = SimDisk(str(root), lambda: 0)
    with Syscalls({str(root): made}).replaced():
        yield made
        made.faults = Faults()


def _file(disk: SimDisk, data: bytes) -> SegmentFile:
    file = SegmentFile(OpenFiles(), disk.root, 0, ".log")
    file.create()
    file.append(data)
    return file


def _sync(file: SegmentFile) -> None:
    Disk.fdatasync(file.fileno())
    Disk().fsync_directory(file.directory)


def _left(disk: SimDisk) -> bytes | None:
    try:
        return Path(f"{disk.root}/{0:020d}.log").read_bytes()
    except FileNotFoundError:
        return None


def test_what_was_synced_survives_every_loss_of_power(disk: SimDisk) -> None:
    file = _file(disk, b"a" * 9000)
    _sync(file)
    for seed in range(_SEEDS):
        file.append(b"b" * 5000)
        disk.lose_power(Random(seed))
        left = _left(disk)
        assert left is not None
        assert left[:9000] == b"a" * 9000
        file.close()
        file.size = 9000
        file.truncate(9000)
        _sync(file)


def test_pages_that_were_not_synced_persist_independently(disk: SimDisk) -> None:
    seen = set()
    for seed in range(_SEEDS):
        file = _file(disk, b"")
        _sync(file)
        file.append(b"".join(bytes([65 + page]) * PAGE_BYTES for page in range(3)))
        disk.lose_power(Random(seed))
        left = _left(disk)
        assert left is not None
        seen.add(tuple(left[page * PAGE_BYTES : page * PAGE_BYTES + 1] for page in range(3)))
        file.unlink()
    assert (b"\0", b"B", b"\0") in seen, "a page in the middle alone"
    assert (b"\0", b"\0", b"\0") in seen, "the size without the pages"
    assert (b"A", b"B", b"C") in seen
    assert (b"", b"", b"") in seen


def test_a_cut_that_was_not_synced_may_be_undone(disk: SimDisk) -> None:
    seen = set()
    for seed in range(_SEEDS):
        file = _file(disk, b"a" * 100)
        _sync(file)
        file.truncate(50)
        disk.lose_power(Random(seed))
        seen.add(_left(disk))
        file.unlink()
    assert seen == {b"a" * 100, b"a" * 50}


def test_names_change_in_their_order_and_come_back_until_their_directory_is_synced(
    disk: SimDisk,
) -> None:
    one, two, three = (f"{disk.root}/{name}" for name in ("one", "two", "three"))
    seen = set()
    for seed in range(_SEEDS):
        write_atomically(one, b"old", disk=Disk())
        os.rename(one, two)
        write_atomically(three, b"new")
        disk.lose_power(Random(seed))
        seen.add(frozenset(os.listdir(disk.root)))
        for name in os.listdir(disk.root):
            os.unlink(f"{disk.root}/{name}")
        Disk().fsync_directory(disk.root)
    assert {"one"} in seen
    assert {"two", "three"} in seen
    assert {"one", "three"} not in seen, "the rename came first"


def test_a_directory_whose_name_was_not_synced_is_lost_with_its_files(disk: SimDisk) -> None:
    os.makedirs(f"{disk.root}/t/p")
    write_atomically(f"{disk.root}/t/p/x", b"x", disk=Disk())
    disk.lose_power(None)
    assert os.listdir(disk.root) == []


def test_pages_of_a_failed_sync_are_never_written(disk: SimDisk) -> None:
    file = _file(disk, b"a" * PAGE_BYTES)
    _sync(file)
    file.append(b"b" * PAGE_BYTES)
    disk.faults.bad_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        _sync(file)
    file.append(b"c" * PAGE_BYTES)
    _sync(file)
    assert _left(disk) == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES + b"c" * PAGE_BYTES
    disk.evict()
    assert _left(disk) == b"a" * PAGE_BYTES + bytes(PAGE_BYTES) + b"c" * PAGE_BYTES


def test_a_full_disk_takes_a_part_and_room_comes_back_with_a_cut(disk: SimDisk) -> None:
    file = _file(disk, b"")
    disk.faults.free_bytes = 10
    assert Disk.pwrite(file.fileno(), b"x" * 100, 0) == 10
    with pytest.raises(OSError, match="No space") as caught:
        Disk.pwrite(file.fileno(), b"x" * 100, 10)
    assert caught.value.errno == errno.ENOSPC
    file.truncate(0)
    assert disk.free_bytes == 10
    with pytest.raises(DiskFull):
        file.append(b"x" * 11)
    assert _left(disk) == b""


def test_descriptors_run_out_and_come_back(disk: SimDisk) -> None:
    files = OpenFiles()
    disk.faults.free_descriptors = 3
    held = []
    for number in range(3):
        file = SegmentFile(files, disk.root, number, ".log")
        file.create()
        held.append(file.handle)
    another = SegmentFile(files, disk.root, 3, ".log")
    with pytest.raises(OutOfResources):
        another.create()
    held.clear()  # and connections take two of them
    another.create()


def test_a_read_only_disk_takes_no_change(disk: SimDisk) -> None:
    file = _file(disk, b"a")
    disk.faults.is_read_only = True
    with pytest.raises(StorageFault):
        file.append(b"b")
    with pytest.raises(StorageFault):
        write_atomically(f"{disk.root}/x", b"x", disk=Disk())
    assert file.read_at(0, 10) == b"a"
    assert disk.faults.has_failed


def test_a_process_that_ended_while_it_took_the_lock_does_not_keep_it(disk: SimDisk) -> None:
    def end(changes: bool) -> None:
        if changes and disk.lock_fd >= 0:  # it writes its number into the file that it has locked
            raise ProcessEnded

    disk.before_call = end
    with pytest.raises(ProcessEnded):
        machine.lock(disk.root)
    disk.before_call = lambda _changes: None
    disk.restart()
    os.close(machine.lock(disk.root))
