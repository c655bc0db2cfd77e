"""A lack of memory or descriptors in the middle of a change: the log is right, or it takes nothing more."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import OutOfResources, StorageFault
from penstock.storage.files import Disk
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from tests.unit.storage.logs import (
    SMALL,
    fill,
    headers,
    new_log,
    paths,
    put,
    reopened,
    values,
)


class DiskWithoutMemory(Disk):
    """Reads fail with ENOMEM once `reads_left` are made."""

    __slots__ = ("reads_left",)

    def __init__(self) -> None:
        self.reads_left: int | None = None

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return os.pread(fd, size, position)


@pytest.mark.parametrize("reads", range(12))
def test_a_cut_that_lacks_memory_halfway_lets_no_record_vanish(tmp_path: Path, reads: int) -> None:
    disk = DiskWithoutMemory()
    log = new_log(tmp_path, disk=disk)
    fill(log, 42)
    disk.reads_left = reads
    try:
        log.truncate_to(12)
    except StorageFault:
        return  # the directory goes offline: nothing is acknowledged any more
    except OutOfResources:
        pass
    disk.reads_left = None
    put(log, b"acknowledged", epoch=2)
    log._files.close_all()
    assert b"acknowledged" in values(log)


def test_readers_skip_no_segment_whose_indexes_could_not_be_rebuilt_at_once(tmp_path: Path) -> None:
    disk = DiskWithoutMemory()
    config = replace(SMALL, segment_bytes=60_000)
    log = new_log(tmp_path, config=config, disk=disk)
    fill(log, 2000, 80)
    log.close()
    for path in (paths(log, ".index")[0], paths(log, ".timeindex")[0]):
        path.unlink()
    end = log.next_offset
    log = reopened(tmp_path, Ending.CLEAN, end, config=config, disk=disk)
    disk.reads_left = 0
    with pytest.raises(OutOfResources):
        log.read(5, 1 << 20, upto_offset=end)
    disk.reads_left = None
    assert first_offset(log, 5) == 5


def first_offset(log: Log, offset: int) -> int:
    found = log.read(offset, 1 << 20, upto_offset=log.next_offset)
    return headers(b"".join(piece.read() for piece in found.slices))[0].base_offset
