"""A log that is to begin anew, or to be cut, on a disk that is full: it is as it was, or as it shall be, and can be tried again."""

import errno
import os
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from penstock.model.errors import BrokerError, DiskFull
from penstock.storage import files, swap
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from tests.unit.storage import test_swap as swaps
from tests.unit.storage.logs import (
    COMPACTED,
    NOW_MS,
    SMALL,
    copy_of,
    fill,
    headers,
    new_log,
    put,
    raw,
    reopened,
    values,
)


class FullDisk:
    """Takes so many new files and no more."""

    def __init__(self) -> None:
        self.left = 1 << 30
        self.error = errno.ENOSPC

    def make(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    full = FullDisk()
    write_all = files._write_all

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            full.make()
        return open_(path, flags, mode)

    def written(file: FileIO, data: bytes) -> None:
        full.make()
        write_all(file, data)

    open_ = os.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(files, "_write_all", written)
    return full


def whole(log: Log) -> tuple[int, int, int]:
    """Where it starts and ends, and how many batches it has; they fit together."""
    found = headers(raw(log, log.start_offset))
    assert log.segments == () or log.segments[-1].next_offset == log.next_offset
    if found:
        assert (found[0].base_offset, found[-1].next_offset) == (log.start_offset, log.next_offset)
    return log.start_offset, log.next_offset, len(found)


@pytest.mark.parametrize("offset", [0, 4, 7, 100])
@pytest.mark.parametrize("room", range(4))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.ENFILE], ids=errno.errorcode.get)
def test_a_log_begins_anew_whole_or_not_at_all(
    tmp_path: Path, disk: FullDisk, offset: int, room: int, error: int
) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    log.flush()
    disk.left, disk.error = room, error
    try:
        log.truncate_fully_and_start_at(offset)
    except BrokerError:
        assert whole(log) == (0, 20, 20)
    else:
        assert whole(log) == (offset, offset, 0)
    disk.left = 1 << 30
    crashed = copy_of(tmp_path, f"{tmp_path}-copy")
    assert whole(reopened(crashed, point=20))[2] in (0, 20)

    log.truncate_fully_and_start_at(offset)
    assert whole(log) == (offset, offset, 0)
    put(log, b"x")
    assert values(log, offset) == [b"x"]
    log.close()
    assert whole(reopened(tmp_path, Ending.CLEAN, offset + 1, start=offset)) == (
        offset,
        offset + 1,
        1,
    )


@pytest.mark.parametrize("room", range(3))
def test_a_log_that_was_never_written_begins_whole_or_not_at_all(
    tmp_path: Path, disk: FullDisk, room: int
) -> None:
    log = new_log(tmp_path)
    disk.left = room
    try:
        log.truncate_fully_and_start_at(40)
    except DiskFull:
        assert whole(log) == (0, 0, 0)
        assert log.read(0, 100, upto_offset=0).slices == []
    disk.left = 1 << 30
    log.truncate_fully_and_start_at(40)
    put(log, b"x")
    assert whole(log) == (40, 41, 1)


@pytest.mark.parametrize("offset", [0, 3, 17, 19])
@pytest.mark.parametrize("room", range(3))
def test_a_log_is_cut_or_is_not(tmp_path: Path, disk: FullDisk, offset: int, room: int) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    log.flush()
    disk.left = room
    try:
        log.truncate_to(offset)
    except DiskFull:
        assert whole(log) == (0, 20, 20)
    else:
        assert whole(log) == (0, offset, offset)
    disk.left = 1 << 30
    crashed = copy_of(tmp_path, f"{tmp_path}-copy")
    assert whole(reopened(crashed, point=20))[2] in (offset, 20)
    log.truncate_to(offset)
    put(log, b"x", epoch=2)
    log.close()
    found = reopened(tmp_path, Ending.CLEAN, offset + 1)
    assert whole(found) == (0, offset + 1, offset + 1)
    assert found.epochs.latest == 2


def test_files_of_a_log_that_began_anew_can_be_removed(tmp_path: Path, disk: FullDisk) -> None:
    """They are what the disk is full of."""
    log = new_log(tmp_path)
    fill(log, 20)
    disk.left = 2
    log.truncate_fully_and_start_at(50)
    assert len(log.removable(now_ms=0)) >= 2


def test_what_is_left_of_an_attempt_is_tidied_away(tmp_path: Path, disk: FullDisk) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    log.flush()
    disk.left = 1
    with pytest.raises(DiskFull):
        log.truncate_fully_and_start_at(50)
    assert [name for name in os.listdir(log.path) if name.startswith(f"{50:020d}")] == []


# Space is freed where there is none ------------------------------------------------------------


def test_what_may_go_goes_although_there_is_no_room_for_another_segment(
    tmp_path: Path, disk: FullDisk
) -> None:
    log = new_log(tmp_path, replace(SMALL, retention_ms=1000))
    fill(log, 20)
    disk.left = 0
    assert log.apply_retention(NOW_MS + 2000, upto_offset=20) > 0
    assert len(log.segments) == 1
    disk.left = 1 << 30
    assert log.apply_retention(NOW_MS + 2000, upto_offset=20) > 0
    assert log.start_offset == log.next_offset == 20


def test_records_are_deleted_although_there_is_no_room_for_another_segment(
    tmp_path: Path, disk: FullDisk
) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    disk.left = 0
    log.delete_records_before(20)
    assert (log.start_offset, len(log.segments)) == (20, 1)
    disk.left = 1 << 30
    put(log, b"x")
    assert values(log, 20) == [b"x"]


@pytest.mark.parametrize("ending", [Ending.PROCESS_CRASH, Ending.POWER_LOSS])
def test_that_offsets_are_missing_is_written_down_before_they_are_also_after_a_full_disk(
    tmp_path: Path, disk: FullDisk, ending: Ending
) -> None:
    """Else a crash would find a damaged log, and drop what lies behind the gap."""
    leader, follower = new_log(tmp_path / "leader"), new_log(tmp_path)
    follower.configure(COMPACTED)
    fill(leader, 9)
    whole_log = bytearray(raw(leader))
    size = len(whole_log) // 9
    follower.append_as_follower(memoryview(whole_log[: 2 * size]))
    disk.left = 0
    with pytest.raises(DiskFull):
        follower.append_as_follower(memoryview(whole_log[5 * size :]))
    disk.left = 1 << 30
    follower.append_as_follower(memoryview(whole_log[5 * size :]))
    assert len(values(reopened(tmp_path, ending, 0))) == 6


def test_a_log_that_lost_its_beginning_with_the_power_can_be_opened_when_there_is_room_again(
    tmp_path: Path, disk: FullDisk
) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    for path in Path(log.path).glob(f"{0:020d}.*"):
        path.unlink()
    disk.left = 0
    with pytest.raises(DiskFull):
        reopened(tmp_path, Ending.POWER_LOSS, 5)
    disk.left = 1 << 30
    assert whole(reopened(tmp_path, Ending.POWER_LOSS, 5)) == (5, 5, 0)


@pytest.mark.parametrize(("cut", "room"), [("truncate_to", 0), ("truncate_fully_and_start_at", 1)])
def test_a_cut_that_is_refused_leaves_a_compaction_as_it_was(
    tmp_path: Path, disk: FullDisk, cut: str, room: int
) -> None:
    log = swaps.log_of_segments(tmp_path)
    change = swaps.change_of(log)
    expected = swaps.left_of(log, change)
    swaps.write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    disk.left = room
    with pytest.raises(DiskFull):
        getattr(log, cut)(log.segments[3].base_offset + 1)
    disk.left = 1 << 30
    assert log.replace_segments(change)
    assert swaps.offsets(log) == expected
    log.close()
    assert swaps.offsets(reopened(tmp_path, Ending.CLEAN, 30)) == expected
