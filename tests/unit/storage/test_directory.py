"""A data directory has one owner, knows how its last run ended, and gives no log away by mistake."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.configs import TopicConfig
from penstock.model.errors import DiskFull, OutOfResources, StorageFault
from penstock.model.ids import TopicId
from penstock.storage import checkpoints, checksummed_json, files, swap
from penstock.storage.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from penstock.storage.directory import (
    DELETE_DELAY_MS,
    STRAY_DELAY_MS,
    DataDirectory,
    remove_tree,
)
from penstock.storage.files import Disk, OpenFiles
from penstock.storage.log import Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past
from penstock.storage.segment import DamagedLog
from tests.unit.storage.logs import NOW_MS, SMALL, fill, flip, paths, put, values
from tests.unit.storage.test_swap import change_of, write_cleaned

FIRST, SECOND = TopicId(b"first-topic-id!!"), TopicId(b"second-topic-id!")
CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)


def open_at(path: Path, boot_id: str = "boot-1") -> DataDirectory:
    return DataDirectory(str(path), boot_id=boot_id)


def log_in(
    directory: DataDirectory, topic: str = "orders", topic_id: TopicId = FIRST, partition: int = 0
) -> Log:
    return directory.log_for(topic, topic_id, partition, SMALL)


def checkpoint(directory: DataDirectory) -> None:
    ticket = directory.checkpoint_begin({})
    ticket.write()
    directory.checkpoint_end(ticket)


# One owner -------------------------------------------------------------------------------------


def test_a_second_process_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    script = (
        "import sys\n"
        "from penstock.model.errors import StorageFault\n"
        "from penstock.storage.directory import DataDirectory\n"
        "try: DataDirectory(sys.argv[1])\n"
        "except StorageFault as fault: print(fault)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": "src"},
    )
    assert found.stdout == (
        f"{tmp_path} is in use by another broker (process {os.getpid()}); "
        "give this one its own directory\n"
    )
    directory.close()
    open_at(tmp_path).close()


def test_a_directory_keeps_its_id_and_its_cluster(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    assert directory.cluster_id is None
    directory.join("cluster-a", 3)
    directory.close()
    again = open_at(tmp_path)

    assert (again.id, again.cluster_id) == (directory.id, "cluster-a")
    again.join("cluster-a", 3)
    with pytest.raises(StorageFault, match=r"belongs to cluster\.id cluster-a, not cluster-b"):
        again.join("cluster-b", 3)
    with pytest.raises(StorageFault, match=r"belongs to node\.id 3, not 4"):
        again.join("cluster-a", 4)


@pytest.mark.parametrize("damage", [b"", b"version=2\ndirectory.id=x\n", b"\xff\xfe"])
def test_a_damaged_identity_is_not_guessed(tmp_path: Path, damage: bytes) -> None:
    open_at(tmp_path).close()
    (tmp_path / "meta.properties").write_bytes(damage)
    with pytest.raises(StorageFault, match=r"meta\.properties"):
        open_at(tmp_path)


def test_a_lost_identity_is_not_made_anew(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    (tmp_path / "meta.properties").unlink()
    for _ in range(2):
        with pytest.raises(StorageFault, match=r"meta\.properties is missing"):
            open_at(tmp_path)


# How a run ends --------------------------------------------------------------------------------


def test_a_new_directory_begins_clean(tmp_path: Path) -> None:
    assert open_at(tmp_path).ending is Ending.CLEAN


def test_the_end_of_a_run_is_known_to_the_next(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    directory = open_at(tmp_path)
    assert directory.ending is Ending.CLEAN
    directory.abandon()
    directory = open_at(tmp_path)
    assert directory.ending is Ending.PROCESS_CRASH
    directory.abandon()
    assert open_at(tmp_path, boot_id="boot-2").ending is Ending.POWER_LOSS


def test_a_run_whose_disk_failed_counts_as_a_loss_of_power(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    directory.note_registered(7)
    directory.note_failed()
    directory.note_broker_epoch(8)  # a later session of the same run
    directory.abandon()
    directory = open_at(tmp_path)
    assert (directory.ending, directory.last_run.broker_epoch) == (Ending.POWER_LOSS, 8)
    assert directory.last_run.untold is Ending.POWER_LOSS
    directory.close()
    assert open_at(tmp_path).ending is Ending.CLEAN


def test_a_failed_disk_is_noted_without_a_sync_if_none_succeeds(tmp_path: Path) -> None:
    class Failing(Disk):
        is_broken = False

        def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
            if self.is_broken:
                raise OSError(errno.EDQUOT, "no room for what was written")
            os.fdatasync(fd)

    disk = Failing()
    directory = DataDirectory(str(tmp_path), boot_id="boot-1", disk=disk, disk_reserve_bytes=4096)
    directory.note_registered(7)
    disk.is_broken = True
    directory.note_failed()
    assert not (tmp_path / "ballast").exists(), "the note may need its room"
    directory.abandon()
    directory = open_at(tmp_path)
    assert (directory.ending, directory.last_run.broker_epoch) == (Ending.POWER_LOSS, 7)


def test_a_disk_that_fails_while_all_is_closed_counts_as_a_loss_of_power(tmp_path: Path) -> None:
    class Failing(Disk):
        def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/clean.tmp"):
                raise OSError(errno.EIO, "broken")

    directory = DataDirectory(str(tmp_path), boot_id="boot-1", disk=Failing())
    with pytest.raises(StorageFault, match="clean"):
        directory.close()
    assert open_at(tmp_path).ending is Ending.POWER_LOSS


def test_a_loss_of_power_is_remembered_until_the_controller_has_heard_of_it(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    directory.note_registered(7)
    directory.abandon()
    for _ in range(2):  # starts that come to nothing: nobody could be told
        directory = open_at(tmp_path, boot_id="boot-2")
        assert directory.last_run.untold is Ending.POWER_LOSS
        directory.close()
    directory = open_at(tmp_path, boot_id="boot-2")
    assert (directory.ending, directory.last_run.untold) == (Ending.CLEAN, Ending.POWER_LOSS)
    directory.abandon()
    directory = open_at(tmp_path, boot_id="boot-2")
    assert directory.last_run.untold is Ending.POWER_LOSS, "a crash is less, and does not hide it"
    directory.note_broker_epoch(8)
    directory.close()
    directory = open_at(tmp_path, boot_id="boot-2")
    assert (directory.last_run.broker_epoch, directory.last_run.untold) == (8, Ending.POWER_LOSS)
    directory.note_registered(9)
    directory.close()
    assert open_at(tmp_path, boot_id="boot-2").last_run.untold is Ending.CLEAN


def test_a_start_without_descriptors_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory(str(tmp_path)).close()
    sync = Disk.fsync_directory

    def fsync_directory(disk: Disk, path: str) -> None:
        if not (tmp_path / "clean").exists():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        sync(disk, path)

    monkeypatch.setattr(Disk, "fsync_directory", fsync_directory)
    with pytest.raises(OutOfResources, match="raise the limit of open files"):
        DataDirectory(str(tmp_path))


@pytest.mark.parametrize("name", ["running", "clean"])
@pytest.mark.parametrize("damage", [b"", b"garbage\n"])
def test_a_damaged_marker_is_never_taken_for_a_clean_end(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    open_at(tmp_path).close()
    (tmp_path / name).write_bytes(damage)
    assert open_at(tmp_path).ending is not Ending.CLEAN


def test_a_directory_that_has_lost_its_markers_is_not_a_new_one(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    for name in ("running", "clean"):
        (tmp_path / name).unlink()
    assert open_at(tmp_path).ending is Ending.POWER_LOSS


def test_a_clean_marker_of_an_older_run_is_not_believed(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    old = (tmp_path / "clean").read_bytes()
    open_at(tmp_path).abandon()
    (tmp_path / "clean").write_bytes(old)
    assert open_at(tmp_path).ending is Ending.PROCESS_CRASH


def test_the_broker_epoch_of_the_last_run_is_known(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    directory.note_broker_epoch(42)
    directory.abandon()
    assert open_at(tmp_path).last_run.broker_epoch == 42


def test_a_log_that_was_not_opened_since_a_crash_is_still_to_be_recovered(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    for partition in (0, 1):
        fill(log_in(directory, partition=partition), 3)
    directory.abandon()
    torn = tmp_path / "orders/partition-1/00000000000000000000.log"
    with torn.open("ab") as file:
        file.write(b"torn")
    for _ in range(2):  # runs that end well, and never look at partition 1
        directory = open_at(tmp_path)
        log_in(directory, partition=0)
        directory.close()

    directory = open_at(tmp_path)
    assert directory.ending is Ending.CLEAN
    assert log_in(directory, partition=1).recovery.dropped_bytes == 4
    assert log_in(directory, partition=0).recovery.scanned_bytes == 0


def test_the_worst_end_counts_for_a_log_that_nobody_looked_at(tmp_path: Path) -> None:
    directory = open_at(tmp_path, boot_id="boot-1")
    fill(log_in(directory), 3)
    directory.abandon()
    open_at(tmp_path, boot_id="boot-2").abandon()  # saw a power loss, then crashed
    directory = open_at(tmp_path, boot_id="boot-2")
    assert directory.ending is Ending.PROCESS_CRASH
    assert directory._past_of(FIRST, 0).ending is Ending.POWER_LOSS


# Logs ------------------------------------------------------------------------------------------


def test_logs_come_back_as_they_were_left(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 30)
    log.delete_records_before(7)
    directory.close({FIRST: {0: 25}})
    directory = open_at(tmp_path)
    log = log_in(directory)

    assert (log.start_offset, log.next_offset, log.recovery_point) == (7, 30, 30)
    assert len(values(log, 7)) == 23
    assert directory.high_watermark(FIRST, 0) == 25
    assert log_in(directory) is log


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("damage", [Path.unlink, cut])
@pytest.mark.parametrize("number", [1, -2])
def test_a_segment_that_is_gone_or_cut_since_a_clean_end_is_noticed(
    tmp_path: Path, damage: Callable[[Path], None], number: int
) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 60)
    files = paths(log)
    assert len(files) > 4
    directory.close()
    open_at(tmp_path).close()  # a run that does not look at it
    damage(files[number])
    directory = open_at(tmp_path)
    assert not directory.is_as_left("orders", FIRST, 0)
    with pytest.raises(DamagedLog, match="one is missing, or was cut"):
        log_in(directory)


def test_a_log_that_is_as_it_was_left_is_found_so(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    fill(log_in(directory), 60)
    fill(log_in(directory, partition=1), 3)
    assert directory.is_as_left("orders", FIRST, 0), "nothing was written down yet"
    directory.close()
    directory = open_at(tmp_path)
    assert all(directory.is_as_left("orders", FIRST, number) for number in range(3))
    log = log_in(directory)
    log.truncate_to(20)
    log.apply_retention(NOW_MS, upto_offset=20)
    directory.close()
    directory = open_at(tmp_path)
    assert directory.is_as_left("orders", FIRST, 0)
    assert log_in(directory).next_offset == 20
    directory.give_up("orders", FIRST, 1)
    directory.close()
    directory = open_at(tmp_path)
    assert directory.is_as_left("orders", FIRST, 1)
    assert log_in(directory, partition=1).next_offset == 0


def test_sizes_do_not_count_after_a_crash_nor_after_a_version_that_wrote_none(
    tmp_path: Path,
) -> None:
    directory = open_at(tmp_path)
    fill(log_in(directory), 3)
    directory.close()
    directory = open_at(tmp_path)
    fill(log_in(directory), 3)
    directory.abandon()
    directory = open_at(tmp_path)
    assert directory.is_as_left("orders", FIRST, 0)
    assert log_in(directory).next_offset == 6
    directory.close()
    clean = tmp_path / "clean"
    content = checksummed_json.decode("clean", clean.read_bytes())
    del content["sizes"]
    clean.write_bytes(checksummed_json.encode("clean", content))
    fill_behind_its_back(tmp_path)
    directory = open_at(tmp_path)
    assert directory.is_as_left("orders", FIRST, 0)
    assert log_in(directory).next_offset == 7


def fill_behind_its_back(tmp_path: Path) -> None:
    """As another version of the broker would."""
    log = open_log(OpenFiles(), str(tmp_path / "orders"), 0, FIRST, SMALL, Past(Ending.CLEAN, 6))
    fill(log, 1)
    log.close()


def test_what_compaction_left_undone_is_no_damage(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 30)
    change = change_of(log)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    directory.close()
    directory = open_at(tmp_path)
    log = log_in(directory)
    assert log.next_offset == 30
    directory.close()
    directory = open_at(tmp_path)
    assert directory.is_as_left("orders", FIRST, 0)


def test_the_layout_is_the_one_in_the_documentation(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    put(log_in(directory), b"x")
    directory.close()

    assert sorted(os.listdir(tmp_path)) == [
        "clean", "high-watermarks", "lock", "log-starts", "meta.log-sizes", "meta.properties", "orders",
        "recovery-points", "running",
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path / "orders/partition-0")) == [
        "00000000000000000000.log", "00000000000000000000.timeindex", "leader-epochs",
        "partition.metadata", "producers.snapshot",
    ]  # fmt: skip


@pytest.mark.parametrize("topic", ["clean", "lock", "meta.properties", "running.tmp", "metadata.sqlite", "a.b-delete", "x" * 249])  # fmt: skip
def test_a_topic_may_have_the_name_of_a_file_of_ours(tmp_path: Path, topic: str) -> None:
    directory = open_at(tmp_path)
    put(log_in(directory, topic), b"x")
    directory.close()
    directory = open_at(tmp_path)
    assert directory.ending is Ending.CLEAN
    assert values(log_in(directory, topic)) == [b"x"]
    assert directory.set_aside_unknown({topic: FIRST}) == []
    directory.delete_topic(topic, FIRST)
    assert log_in(directory, topic).next_offset == 0


def test_a_damaged_log_can_be_given_up_and_begun_anew(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 5)
    log.flush()
    checkpoint(directory)
    directory.abandon()
    flip(paths(log)[0], 100)
    directory = open_at(tmp_path, boot_id="boot-2")
    with pytest.raises(DamagedLog):
        log_in(directory)
    directory.give_up("orders", FIRST, 0)

    assert log_in(directory).next_offset == 0
    put(log_in(directory), b"new")
    directory.close()
    assert values(log_in(open_at(tmp_path))) == [b"new"]
    assert any(name.endswith("-stray") for name in os.listdir(tmp_path))


# Checkpoints -----------------------------------------------------------------------------------


def test_what_a_full_disk_kept_from_being_forgotten_is_forgotten_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a log that comes back to this broker later would seem to have lost what it once had."""
    directory = open_at(tmp_path)
    fill(log_in(directory), 30)
    log_in(directory).flush()
    checkpoint(directory)
    directory.give_up("orders", FIRST, 0)
    with monkeypatch.context() as full:
        full.setattr(files, "_write_all", _no_room)
        with pytest.raises(DiskFull):
            checkpoint(directory)
    checkpoint(directory)
    directory.abandon()
    assert log_in(open_at(tmp_path)).next_offset == 0


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "cut"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_damaged_checkpoint_loses_no_record(tmp_path: Path, name: str, damage: str) -> None:
    directory = open_at(tmp_path)
    fill(log_in(directory), 30)
    directory.close({FIRST: {0: 30}})
    _damage(tmp_path / name, damage)
    directory = open_at(tmp_path)
    log = log_in(directory)

    assert (log.start_offset, log.next_offset) == (0, 30)
    assert directory.high_watermark(FIRST, 0) == (None if name == HIGH_WATERMARKS else 30)


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "cut"])
def test_lost_recovery_points_do_not_hide_damage(tmp_path: Path, damage: str) -> None:
    directory = open_at(tmp_path)
    for partition in (0, 1):
        log = log_in(directory, partition=partition)
        fill(log, 30)
        log.flush()
    checkpoint(directory)
    directory.abandon()
    for partition in (0, 1):
        flip(paths(log_in_path(tmp_path, partition))[-1], 100)
    _damage(tmp_path / RECOVERY_POINTS, damage)

    directory = open_at(tmp_path)
    with pytest.raises(DamagedLog, match="how far it was synced is not known"):
        log_in(directory, partition=0)
    fill(log_in(directory, partition=2), 1)
    directory.close()
    with pytest.raises(DamagedLog, match="how far it was synced is not known"):
        log_in(open_at(tmp_path), partition=1)  # also not by a later run, nor by a later checkpoint


def log_in_path(path: Path, partition: int) -> Log:
    from penstock.storage.files import OpenFiles

    return Log(OpenFiles(1), f"{path}/orders", partition, FIRST, SMALL)


def _damage(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path, len(data) - 4)
    else:
        path.write_bytes(b"" if damage == "empty" else data[:-1])


def test_a_partition_that_is_not_named_in_a_whole_checkpoint_has_nothing_synced(
    tmp_path: Path,
) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 5)
    directory.abandon()
    flip(paths(log)[0], 100)
    assert log_in(open_at(tmp_path)).recovery.dropped_bytes > 0


def test_a_checkpoint_is_written_only_when_something_changed(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 3)
    log.flush()
    assert set(directory.checkpoint_begin({}).files) == {RECOVERY_POINTS, LOG_STARTS}
    checkpoint(directory)
    assert directory.checkpoint_begin({}).files == {}
    assert set(directory.checkpoint_begin({FIRST: {0: 3}}).files) == {HIGH_WATERMARKS}


def test_a_topic_deleted_while_a_checkpoint_is_written_is_not_in_the_next(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 3)
    log.flush()
    ticket = directory.checkpoint_begin({})
    directory.delete_topic("orders", FIRST)
    ticket.write()
    directory.checkpoint_end(ticket)
    checkpoint(directory)
    assert checkpoints.read(str(tmp_path), RECOVERY_POINTS).get(FIRST, 0) is None


def test_the_revision_of_the_metadata_store_is_remembered(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    directory.store_revision = 77
    directory.close()
    assert open_at(tmp_path).store_revision == 77


# Topics that go --------------------------------------------------------------------------------


def test_a_deleted_topic_is_out_of_use_at_once_and_removed_later(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    log = log_in(directory)
    fill(log, 5)
    piece = log.read(0, 1 << 20, upto_offset=5).slices[0]
    before = piece.read()
    directory.delete_topic("orders", FIRST)

    assert not (tmp_path / "orders").exists()
    assert directory.removable(NOW_MS) == []
    assert directory.removable(NOW_MS + DELETE_DELAY_MS - 1) == []
    (aside,) = directory.removable(NOW_MS + DELETE_DELAY_MS)
    remove_tree(aside)
    assert piece.read() == before, "a queued slice keeps its file"
    assert directory.removable(NOW_MS + 10 * DELETE_DELAY_MS) == []


def test_a_topic_made_anew_under_the_same_name_inherits_nothing(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    fill(log_in(directory), 30)
    directory.delete_topic("orders", FIRST)
    new = log_in(directory, topic_id=SECOND)
    put(new, b"new")
    directory.abandon()

    assert values(log_in(open_at(tmp_path), topic_id=SECOND)) == [b"new"]


def test_files_of_an_earlier_topic_of_the_same_name_are_set_aside_and_kept(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    fill(log_in(directory), 30)
    directory.close()
    directory = open_at(tmp_path)

    assert log_in(directory, topic_id=SECOND).next_offset == 0
    assert directory.removable(NOW_MS) == []
    assert directory.removable(NOW_MS + STRAY_DELAY_MS - 1) == []
    (aside,) = directory.removable(NOW_MS + STRAY_DELAY_MS)
    assert (Path(aside) / "00000000000000000000.log").exists()


def test_topics_that_the_cluster_does_not_know_are_set_aside(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    for topic in ("orders", "left-over"):
        put(log_in(directory, topic), b"x")
    directory.close()
    directory = open_at(tmp_path)

    assert directory.set_aside_unknown({"orders": FIRST}) == ["left-over"]
    assert values(log_in(directory)) == [b"x"]
    assert directory.set_aside_unknown({"orders": FIRST}) == []


def test_what_was_set_aside_before_a_restart_is_still_removed(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    put(log_in(directory), b"x")
    directory.delete_topic("orders", FIRST)
    directory.close()
    directory = open_at(tmp_path)
    directory.removable(NOW_MS)
    assert len(directory.removable(NOW_MS + DELETE_DELAY_MS)) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_log_whose_owner_is_lost_is_kept_if_it_is_known_to_be_the_topics(
    tmp_path: Path, damage: bytes
) -> None:
    directory = open_at(tmp_path)
    put(log_in(directory), b"x")
    directory.close()
    (tmp_path / "orders/partition-0/partition.metadata").write_bytes(damage)

    assert log_in(open_at(tmp_path)).next_offset == 1


def test_a_log_that_nobody_can_vouch_for_is_set_aside(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    put(log_in(directory), b"x")
    directory.abandon()
    (tmp_path / "orders/partition-0/partition.metadata").unlink()

    assert log_in(open_at(tmp_path)).next_offset == 0
    assert any(name.endswith("unknown-stray") for name in os.listdir(tmp_path))


def test_a_hundred_thousand_partitions_that_were_never_written_cost_little(tmp_path: Path) -> None:
    directory = open_at(tmp_path)
    config = TopicConfig()
    logs = [directory.log_for("orders", FIRST, index, config) for index in range(1000)]

    assert sum(sys.getsizeof(log) for log in logs) < 260_000
    assert not (tmp_path / "orders").exists()
    assert len(directory.files) == 0


@pytest.mark.parametrize("is_written_again", [False, True])
def test_a_log_that_was_set_aside_before_a_crash_is_not_missed(
    tmp_path: Path, is_written_again: bool
) -> None:
    """The checkpoints still name it; the partition may be hosted here again, with a log that is shorter."""
    directory = DataDirectory(str(tmp_path), boot_id="b")
    fill(directory.log_for("t", FIRST, 0, SMALL), 40)
    directory.log_for("t", FIRST, 0, SMALL).flush()
    checkpoint(directory)
    directory.give_up("t", FIRST, 0)
    if is_written_again:
        put(directory.log_for("t", FIRST, 0, SMALL), b"v")
    directory.abandon()

    again = DataDirectory(str(tmp_path), boot_id="b")
    log = again.log_for("t", FIRST, 0, SMALL)
    assert log.next_offset == is_written_again
    fill(log, 60)
    log.flush()
    checkpoint(again)
    again.abandon()

    last = DataDirectory(str(tmp_path), boot_id="b")
    assert last.log_for("t", FIRST, 0, SMALL).recovery_point == 60 + is_written_again
    last.abandon()
