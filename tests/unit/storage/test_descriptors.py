"""A lack of descriptors or memory passes: nothing fails for good, and nothing counts as durable that was not synced."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import OutOfResources, StorageFault
from penstock.storage import checkpoints, identity, layout, markers, state, swap, usage
from penstock.storage.directory import DataDirectory, remove_tree
from penstock.storage.files import Disk, OpenFiles, SegmentFile, refuse, write_atomically
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.storage.worker import Worker, WorkerFailed
from tests.unit.storage.logs import (
    SMALL,
    TOPIC_ID,
    FaultyDisk,
    descriptors_left,
    failing,
    fill,
    new_log,
    paths,
    put,
    reopened,
    scratch,
    values,
)
from tests.unit.storage.test_swap import change_of, log_of_segments, write_cleaned


def test_a_flush_without_descriptors_is_put_off_and_counts_for_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, disk=disk)
    fill(log, 20)
    size_bytes = log.unflushed_bytes
    ticket = log.flush_begin()
    with descriptors_left(0), pytest.raises(OutOfResources, match="Too many open files"):
        ticket.sync()
    log.flush_put_off(ticket)
    assert log.recovery_point == 0
    assert log.unflushed_bytes == size_bytes, "a later flush says how much it has synced"
    disk.calls.clear()
    log.flush()
    assert log.recovery_point == log.next_offset
    assert {"sync partition-0", "sync t"} <= set(disk.calls), "the names of new files too"
    assert disk.calls.count("sync") >= 3, "the segment and the small files"


def test_a_flush_goes_on_where_descriptors_ran_out(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, disk=disk)
    put(log, b"v")
    ticket = log.flush_begin()
    with descriptors_left(0), pytest.raises(OutOfResources):
        ticket.sync()
    ticket.sync()
    log.flush_end(ticket)
    assert log.recovery_point == 1
    assert disk.calls[-1].startswith("sync "), "directories come last"


def test_a_flush_that_cannot_begin_keeps_count_of_what_is_not_synced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"v")
    size_bytes = log.unflushed_bytes
    log._files.close_all()
    with descriptors_left(0), pytest.raises(OutOfResources):
        log.flush_begin()
    assert log.unflushed_bytes == size_bytes
    log.flush()
    assert (log.unflushed_bytes, log.recovery_point) == (0, 1)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.EAGAIN])
def test_a_sync_that_fails_is_final_whatever_it_says(tmp_path: Path, code: int) -> None:
    """After it nobody knows what is on the disk: the kernel may have dropped the pages."""
    log = new_log(tmp_path, disk=FaultyDisk(failing("sync", code)))
    put(log, b"v")
    ticket = log.flush_begin()
    with pytest.raises(StorageFault):
        ticket.sync()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EMFILE, OutOfResources),
        (errno.ENFILE, OutOfResources),
        (errno.ENOMEM, OutOfResources),
        (errno.EIO, StorageFault),
        (errno.EAGAIN, StorageFault),
        (errno.EROFS, StorageFault),
    ],
)
def test_only_a_lack_of_descriptors_or_memory_passes(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        refuse(OSError(code, os.strerror(code)), "a call")


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE])
def test_an_append_without_memory_leaves_no_byte_and_can_be_repeated(
    tmp_path: Path, code: int
) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, disk=disk)
    put(log, b"one")
    disk.fault = failing("write", code)
    with pytest.raises(OutOfResources):
        put(log, b"two")
    disk.fault = lambda _call, _size: None
    put(log, b"two")
    assert values(log) == [b"one", b"two"]


NEED_DESCRIPTORS: dict[str, Callable[[Log], Any]] = {
    "swap.discard": lambda log: swap.discard(log.path, Disk()),
    "remove_tree": lambda log: remove_tree(log.path),
    "identity.read": lambda log: identity.read(log.path),
    "state.read_epochs": lambda log: state.read_epochs(log.path),
    "state.read_sections": lambda log: state.read_sections(log.path),
    "layout.tidy": lambda log: layout.tidy(log.path),
    "layout.size_bytes": lambda log: layout.size_bytes(log.path),
    "usage.log_size_bytes": lambda log: usage.log_size_bytes(log.path),
    "write_atomically": lambda log: write_atomically(f"{log.path}/x", b"", disk=Disk()),
    "a cut": lambda log: log.truncate_to(2),
    "a new start": lambda log: log.truncate_fully_and_start_at(100),
}


@pytest.mark.parametrize("use", NEED_DESCRIPTORS.values(), ids=NEED_DESCRIPTORS)
def test_what_needs_a_descriptor_is_rejected_without_one_and_changes_nothing(
    tmp_path: Path, use: Callable[[Log], Any]
) -> None:
    """Above all, a small file that cannot be opened now is not taken for one that is lost."""
    log = new_log(tmp_path)
    fill(log, 20)
    log.flush()
    before = values(log)
    log._files.close_all()
    with descriptors_left(0), pytest.raises(OutOfResources):
        use(log)
    assert values(log) == before
    put(log, b"later")
    assert values(log) == [*before, b"later"]
    log.close()
    assert values(reopened(tmp_path, point=None)) == [*before, b"later"]


def _replace(log: Log) -> object:
    return log.replace_segments(change_of(log))


CHANGES: dict[str, Callable[[Log], Any]] = {
    "a cut": lambda log: log.truncate_to(7),
    "a cut in the last segment": lambda log: log.truncate_to(29),
    "a cut to nothing": lambda log: log.truncate_fully_and_start_at(50),
    "a compaction": _replace,
    "deleted records": lambda log: log.delete_records_before(12),
    "all records deleted": lambda log: log.delete_records_before(30),
    "a roll": lambda log: log.roll(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_made_or_rejected_whole_however_few_descriptors_there_are(
    change: Callable[[Log], Any],
) -> None:
    """And if it is rejected, it can be repeated later."""
    outcomes = set()
    for count in range(12):
        with scratch() as path:
            log = log_of_segments(Path(path))
            log.flush()
            if change is _replace:
                write_cleaned(log, change_of(log))
                swap.prepare(log.path, change_of(log), 100)
            log._files.close_all()
            before = values(log)
            log._files.close_all()
            try:
                with descriptors_left(count):
                    change(log)
                made = True
            except OutOfResources:
                made = False
            outcomes.add(made)
            if not made:
                assert values(log) == before
                change(log)
            after, end = values(log, log.start_offset), log.next_offset
            put(log, b"later")
            assert values(log, log.start_offset) == [*after, b"later"], count
            log.flush()
            for ending in (Ending.PROCESS_CRASH, Ending.POWER_LOSS):
                again = reopened(path, ending, log.recovery_point, start=log.start_offset)
                assert again.next_offset == end + 1, count
                assert values(again, again.start_offset) == [*after, b"later"], count
    assert True in outcomes


def test_a_start_without_descriptors_takes_no_small_file_for_lost(tmp_path: Path) -> None:
    DataDirectory(str(tmp_path), boot_id="b").close()
    for use in (
        lambda: checkpoints.read(str(tmp_path), checkpoints.RECOVERY_POINTS),
        lambda: markers.read_last_run(str(tmp_path), "b"),
    ):
        with descriptors_left(0), pytest.raises(OutOfResources):
            use()


def test_a_log_that_cannot_be_opened_now_is_opened_later(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), boot_id="b")
    put(directory.log_for("t", TOPIC_ID, 0, SMALL), b"v")
    directory.close()
    again = DataDirectory(str(tmp_path), boot_id="b")
    for count in range(3):
        with descriptors_left(count), suppress(OutOfResources):
            again.log_for("t", TOPIC_ID, 0, SMALL)
    assert values(again.log_for("t", TOPIC_ID, 0, SMALL)) == [b"v"]
    again.close()


def test_a_clean_stop_needs_few_descriptors_for_many_logs(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), boot_id="b", open_files_limit=8)
    for partition in range(60):
        put(directory.log_for("t", TOPIC_ID, partition, SMALL), b"v")
    directory.files.close_all()
    with descriptors_left(30):
        directory.close()
    again = DataDirectory(str(tmp_path), boot_id="b")
    assert again.is_as_left("t", TOPIC_ID, 59)
    assert values(again.log_for("t", TOPIC_ID, 59, SMALL)) == [b"v"]
    again.close()


def test_a_log_with_more_closed_segments_than_descriptors_is_flushed_and_closed(
    tmp_path: Path,
) -> None:
    directory = DataDirectory(str(tmp_path), boot_id="b", open_files_limit=8)
    log = directory.log_for("t", TOPIC_ID, 0, SMALL)
    fill(log, 200)
    assert len(paths(log, ".log")) > 30
    end = log.next_offset
    directory.files.close_all()
    with descriptors_left(6):
        log.flush()
        assert log.recovery_point == end
        fill(log, 200)
        directory.close()
    again = DataDirectory(str(tmp_path), boot_id="b")
    assert again.is_as_left("t", TOPIC_ID, 0)
    assert again.log_for("t", TOPIC_ID, 0, SMALL).next_offset == log.next_offset
    again.close()


def test_a_checkpoint_that_may_or_may_not_be_on_the_disk_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put in place, and then there was no descriptor to sync the directory."""
    directory = DataDirectory(str(tmp_path), boot_id="b")
    log = directory.log_for("t", TOPIC_ID, 0, SMALL)
    fill(log, 3)
    log.flush()
    ticket = directory.checkpoint_begin({})

    def unable(_: Disk, path: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "fsync_directory", unable)
        with pytest.raises(OutOfResources):
            ticket.write()
    log.truncate_to(0)
    again = directory.checkpoint_begin({})
    again.write()
    directory.checkpoint_end(again)
    directory.abandon()
    assert checkpoints.read(str(tmp_path), checkpoints.RECOVERY_POINTS).get(TOPIC_ID, 0) == 0


def test_a_worker_that_cannot_be_started_is_tried_again_later() -> None:
    worker = Worker()
    with descriptors_left(0), pytest.raises(WorkerFailed, match="cannot be started"):
        worker.prepare("nowhere", [], 1)
    assert not worker.is_running


def test_files_are_given_back_least_used_first(tmp_path: Path) -> None:
    opened = OpenFiles()
    made = [SegmentFile(opened, str(tmp_path), number, ".log") for number in range(5)]
    for file in made:
        file.create()
        assert file.handle is not None
        file.handle.used = file is made[0]
    assert opened.give_back(3) == 3
    assert [file.handle is not None for file in made] == [True, False, False, False, True]
    assert opened.give_back() == 2
    assert opened.give_back() == 0
