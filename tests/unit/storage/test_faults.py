"""A disk that is full costs the client a retry; a disk that fails costs the directory; nothing half-written is seen."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, StorageFault
from penstock.storage.files import Buffer, OpenFiles
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from tests.unit.storage.logs import (
    SMALL,
    TOPIC_ID,
    FaultyDisk,
    ForgetfulDisk,
    failing,
    fill,
    new_log,
    paths,
    put,
    reopened,
    scratch,
    values,
)

BIG = TopicConfig()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_the_append_and_the_log_stays_as_it_was(
    tmp_path: Path, code: int
) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, BIG, disk)
    fill(log, 3)
    before = paths(log)[0].read_bytes()
    disk.fault = failing("write", code)

    with pytest.raises(DiskFull, match="free some space") as refused:
        put(log, b"x")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.next_offset, len(values(log))) == (3, 3)
    assert paths(log)[0].read_bytes() == before


def test_appends_go_on_by_themselves_when_there_is_room_again(tmp_path: Path) -> None:
    disk = FaultyDisk(failing("write", errno.ENOSPC))
    log = new_log(tmp_path, SMALL, disk)
    for _ in range(3):
        with pytest.raises(DiskFull):
            put(log, b"x")
    disk.fault = FaultyDisk().fault
    assert put(log, b"y").base_offset == 0
    assert values(log) == [b"y"]


def test_a_producer_whose_batch_did_not_fit_can_send_it_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, BIG, disk)
    fields = {"producer_id": 7, "producer_epoch": 0}
    put(log, b"a", base_sequence=0, **fields)
    disk.fault = failing("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        put(log, b"b", base_sequence=1, **fields)
    disk.fault = FaultyDisk().fault

    again = put(log, b"b", base_sequence=1, **fields)
    assert (again.base_offset, again.duplicate) == (1, False)


def test_a_write_that_is_cut_short_is_finished(tmp_path: Path) -> None:
    disk = FaultyDisk(lambda call, size: 7 if call == "write" and size > 7 else None)
    log = new_log(tmp_path, BIG, disk)
    put(log, b"x" * 50)

    assert values(log) == [b"x" * 50]
    assert disk.calls.count("write") > 10
    assert reopened(tmp_path, config=BIG).next_offset == 1


def test_what_a_short_write_left_before_the_disk_was_full_is_cut_off(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, BIG, disk)
    fill(log, 1)
    size = log.size_bytes
    written = []

    def fault(call: str, _size: int) -> int | None:
        if call != "write":
            return None
        written.append(call)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "full")
        return 30

    disk.fault = fault
    with pytest.raises(DiskFull):
        put(log, b"x" * 50)
    assert paths(log)[0].stat().st_size == log.size_bytes == size


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_any_other_failure_of_a_write_is_a_fault(tmp_path: Path, code: int) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, BIG, disk)
    fill(log, 1)
    disk.fault = failing("write", code)

    with pytest.raises(StorageFault, match=r"0\.log: write at \d+ failed"):
        put(log, b"x")
    assert log.next_offset == 1


def test_a_write_that_can_neither_be_finished_nor_undone_is_a_fault(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, BIG, disk)
    fill(log, 1)

    def fault(call: str, _size: int) -> int | None:
        raise OSError(errno.ENOSPC if call == "write" else errno.EIO, "it failed")

    disk.fault = fault
    with pytest.raises(StorageFault, match="cutting it off failed too"):
        put(log, b"x")


def test_a_failed_sync_is_a_fault_and_moves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(failing("sync", errno.EIO))
    log = new_log(tmp_path, BIG, disk)
    fill(log, 5)
    ticket = log.flush_begin()

    with pytest.raises(StorageFault, match=r"0\.log: cannot be made durable"):
        ticket.sync()
    assert disk.calls.count("sync") == 1, "never tried again"
    assert log.recovery_point == 0


def test_a_full_disk_while_rolling_leaves_the_log_whole(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, disk)
    fill(log, 4)
    disk.fault = failing("write", errno.ENOSPC)
    for _ in range(5):
        with pytest.raises(DiskFull):
            put(log, b"x" * 300)
    assert len(values(log)) == 4
    disk.fault = FaultyDisk().fault
    put(log, b"x" * 300)
    log.flush()

    assert log.recovery_point == 5
    found = reopened(tmp_path, point=5)
    assert len(values(found)) == 5
    assert found.offset_for_timestamp(0) == log.offset_for_timestamp(0)


def test_a_flush_without_room_for_indexes_still_syncs_but_promises_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, disk)
    fill(log, 30)
    disk.fault = failing("write", errno.ENOSPC)
    log.flush()
    assert (log.recovery_point, "sync" in disk.calls) == (0, True)
    disk.fault = FaultyDisk().fault
    log.flush()
    assert log.recovery_point == 30


class NoRoomForIndexes(ForgetfulDisk):
    """Batches still find some."""

    __slots__ = ()

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:  # type: ignore[override] # static there
        if not self._paths[fd].endswith(".log"):
            raise OSError(errno.ENOSPC, "full")
        return os.pwrite(fd, data, position)


def test_the_batches_of_a_closed_segment_are_synced_also_without_room_for_its_indexes(
    tmp_path: Path,
) -> None:
    disk = NoRoomForIndexes()
    log = new_log(tmp_path, SMALL, disk)
    fill(log, 30)
    assert len(log.segments) > 2
    log.flush()
    for path in paths(log):
        assert disk.durable[str(path)] == path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=25), st.data())
def test_a_disk_that_is_full_now_and_then_loses_and_invents_nothing(
    sizes: list[int], data: st.DataObject
) -> None:
    def fault(call: str, size: int) -> int | None:
        outcome = data.draw(st.sampled_from(["well", "well", "short", "full"]))
        if call == "write" and outcome == "full":
            raise OSError(errno.ENOSPC, "full")
        return size // 2 if call == "write" and outcome == "short" and size > 1 else None

    with scratch() as path:
        log = new_log(path, SMALL, FaultyDisk(fault))
        kept = []
        for number, size in enumerate(sizes):
            value = b"%d" % number * size
            try:
                put(log, value)
            except DiskFull:
                continue
            kept.append(value)
        assert values(log) == kept
        assert values(reopened(path, Ending.PROCESS_CRASH)) == kept


# Open files ------------------------------------------------------------------------------------


def test_many_logs_share_a_few_open_files(tmp_path: Path) -> None:
    files = OpenFiles(4)
    logs = [Log(files, f"{tmp_path}/t", partition, TOPIC_ID, BIG) for partition in range(20)]
    for round_number in range(3):
        for log in logs:
            put(log, b"%d" % round_number)
            assert len(files) <= 4
    assert all(values(log) == [b"0", b"1", b"2"] for log in logs)
    assert len(_descriptors(tmp_path)) <= 5


def test_the_most_used_files_stay_open(tmp_path: Path) -> None:
    files = OpenFiles(3)
    logs = [Log(files, f"{tmp_path}/t", partition, TOPIC_ID, BIG) for partition in range(10)]
    put(logs[0], b"x")
    for log in logs[1:]:
        put(log, b"x")
        put(logs[0], b"x")
    assert logs[0].segments[0].file.handle is not None


def test_too_many_open_files_is_the_operators_to_change_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    real_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".log"):
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BrokerError, match="raise the limit of open files"):
        put(log, b"x")
    monkeypatch.undo()
    assert put(log, b"x").base_offset == 0


def _descriptors(directory: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if path.startswith(str(directory)):
            found.append(path)
    return found
