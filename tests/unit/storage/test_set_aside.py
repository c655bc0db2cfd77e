"""A new log is never measured by checkpoint entries of the old log, and never loses its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from penstock.model.errors import DiskFull
from penstock.model.ids import TopicId, format_topic_id
from penstock.storage import checkpoints, checksummed_json, names
from penstock.storage.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from penstock.storage.directory import STRAY_DELAY_MS, DataDirectory
from penstock.storage.log import Log
from penstock.storage.names import LogAside, log_aside, log_aside_path
from tests.simulation.disk import SimDisk
from tests.simulation.syscalls import Syscalls
from tests.unit.storage.logs import SMALL, put, values

TOPIC = TopicId(b"first-topic-id!!")
FILES = (LOG_STARTS, RECOVERY_POINTS, HIGH_WATERMARKS)
OLD_END, NEW_BEGIN, NEW_START, NEW_END = 40, 1000, 1030, 1060
_LOSSES = 12  # different ones, at each step
_OLD, _NEW = b"old", b"new"


class Crash(BaseException):
    """The process ends at this call."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimDisk]:
    root = tmp_path / "1"
    root.mkdir()
    made = SimDisk(str(root), lambda: 0)
    with Syscalls({str(root): made}).replaced():
        yield made


def opened(path: str | Path, boot_id: str = "boot") -> DataDirectory:
    return DataDirectory(str(path), boot_id=boot_id)


def log_in(directory: DataDirectory) -> Log:
    return directory.log_for("orders", TOPIC, 0, SMALL)


def checkpoint(directory: DataDirectory, high_watermark: int = 0) -> None:
    ticket = directory.checkpoint_begin({TOPIC: {0: high_watermark}})
    ticket.write()
    directory.checkpoint_end(ticket)


def write_old_log(directory: DataDirectory) -> None:
    put(log_in(directory), *[_OLD] * OLD_END)
    log_in(directory).flush()
    checkpoint(directory, OLD_END)


def write_new_log(directory: DataDirectory) -> Log:
    """As a follower of a leader whose log does not begin at 0."""
    log = log_in(directory)
    log.truncate_fully_and_start_at(NEW_BEGIN)
    put(log, *[_NEW] * (NEW_END - NEW_BEGIN))
    log.flush()
    log.delete_records_before(NEW_START)
    log.flush()
    return log


def check_new_log(directory: DataDirectory) -> None:
    log = log_in(directory)
    found = (log.start_offset, log.next_offset, log.recovery_point)
    assert found == (NEW_START, NEW_END, NEW_END)


# At every step ---------------------------------------------------------------------------------


class Run:
    """What happens, and what of it the disk has promised to keep."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._directory = opened(disk.root)
        self.is_new_log_named = False

    def go(self) -> None:
        directory = self._directory
        try:
            directory.give_up("orders", TOPIC, 0)
            checkpoint(directory)
            write_new_log(directory)
            checkpoint(directory, NEW_END)
            self.is_new_log_named = True
            checkpoint(directory, NEW_END - 1)  # as after an election
        except Crash:
            self._disk.before_call = lambda _: None
            directory.abandon()
            raise
        directory.close({TOPIC: {0: NEW_END}})


@contextmanager
def crash_at(disk: SimDisk, step: int) -> Iterator[list[bool]]:
    """Crash before call number `step` of those that change something. Yields the calls made."""
    made: list[bool] = []

    def before_call(changes: bool) -> None:
        if changes:
            made.append(True)
            if len(made) > step:
                raise Crash

    disk.before_call = before_call
    try:
        yield made
    finally:
        disk.before_call = lambda _: None


def crash(disk: SimDisk, step: int) -> Run | None:
    """A run that ends at that step; None if it was over before."""
    directory = opened(disk.root)
    write_old_log(directory)
    directory.close({TOPIC: {0: OLD_END}})
    disk.restart()
    run = Run(disk)
    with crash_at(disk, step) as made, suppress(Crash):
        run.go()
    disk.restart()
    return run if len(made) > step else None


def clear(disk: SimDisk) -> None:
    for path, folders, files in os.walk(disk.root, topdown=False):
        for name in files:
            os.unlink(f"{path}/{name}")
        for name in folders:
            os.rmdir(f"{path}/{name}")
    fd = os.open(disk.root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def check(disk: SimDisk, run: Run, what: str, boot_id: str) -> None:
    for _ in range(2):  # the first start may itself write something down
        directory = opened(disk.root, boot_id)
        log = log_in(directory)
        found = (log.start_offset, log.next_offset, log.recovery_point)
        if run.is_new_log_named:
            assert found == (NEW_START, NEW_END, NEW_END), what
        elif set(values(log, log.start_offset)) == {_OLD}:
            assert found == (0, OLD_END, OLD_END), what
        else:
            assert set(values(log, log.start_offset)) <= {_NEW}, what
            assert log.start_offset != OLD_END != log.recovery_point, what
        if run.is_new_log_named:
            assert directory.high_watermark(TOPIC, 0) in (NEW_END, NEW_END - 1), what
        elif log.start_offset >= NEW_BEGIN:
            assert directory.high_watermark(TOPIC, 0) in (None, 0, NEW_END), what
        directory.abandon()
        disk.restart()


def test_a_crash_at_any_step_leaves_each_log_its_own_entries(disk: SimDisk) -> None:
    step = 0
    while (run := crash(disk, step)) is not None:
        check(disk, run, f"step {step}", "boot")
        clear(disk)
        step += 1
    assert step > 50


@pytest.mark.parametrize("seed", range(_LOSSES))
def test_a_loss_of_power_at_any_step_leaves_each_log_its_own_entries(
    disk: SimDisk, seed: int
) -> None:
    step = 0
    while (run := crash(disk, step)) is not None:
        disk.lose_power(Random(f"{seed} {step}") if seed else None)
        check(disk, run, f"step {step}, seed {seed}", "later-boot")
        clear(disk)
        step += 1
    assert step > 50


# What the files say ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("boot_id", ["boot", "later-boot"])
def test_the_entries_of_a_new_log_count_however_the_run_ends(
    tmp_path: Path, boot_id: str, is_ended: bool
) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    directory.give_up("orders", TOPIC, 0)
    write_new_log(directory)
    ticket = directory.checkpoint_begin({TOPIC: {0: NEW_END}})
    ticket.write()
    if is_ended:
        directory.checkpoint_end(ticket)
    directory.abandon()

    again = opened(tmp_path, boot_id)
    check_new_log(again)
    assert again.high_watermark(TOPIC, 0) == NEW_END


def test_entries_of_a_checkpoint_that_began_before_the_log_was_set_aside_are_of_the_old_log(
    tmp_path: Path,
) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    ticket = directory.checkpoint_begin({TOPIC: {0: OLD_END - 1}})
    directory.give_up("orders", TOPIC, 0)
    ticket.write()
    directory.checkpoint_end(ticket)
    assert directory.high_watermark(TOPIC, 0) is None
    directory.abandon()

    again = opened(tmp_path)
    assert again.high_watermark(TOPIC, 0) is None
    log = log_in(again)
    assert (log.next_offset, log.recovery_point) == (0, 0)


def test_a_log_can_be_set_aside_again_and_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for _ in range(3):
        write_old_log(directory)
        for _ in range(2):
            put(log_in(directory))
            directory.give_up("orders", TOPIC, 0)
    write_new_log(directory)
    checkpoint(directory)
    directory.abandon()
    assert len(list(tmp_path.glob("~~*"))) == 6
    for _ in range(2):
        directory = opened(tmp_path, "later-boot")
        check_new_log(directory)
        directory.abandon()


def test_a_log_aside_is_kept_until_no_checkpoint_on_the_disk_names_it(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    directory.give_up("orders", TOPIC, 0)
    directory.abandon()
    directory = opened(tmp_path)
    assert directory.removable(0) == []
    assert directory.removable(STRAY_DELAY_MS) == []
    checkpoint(directory)
    (aside,) = directory.removable(STRAY_DELAY_MS + 1)
    assert log_aside(os.path.basename(aside)) == LogAside(TOPIC, 0, 1)


def test_a_log_that_begins_past_zero_is_whole_when_only_a_part_of_its_first_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    write_new_log(directory)
    ticket = directory.checkpoint_begin({})
    write = checkpoints.write
    left = 1

    def write_one(*arguments: object) -> None:
        nonlocal left
        if not left:
            raise Crash
        left -= 1
        write(*arguments)  # type: ignore[arg-type] # as they came

    with monkeypatch.context() as cut:
        cut.setattr(checkpoints, "write", write_one)
        with pytest.raises(Crash):
            ticket.write()
    directory.abandon()
    log = log_in(opened(tmp_path, "later-boot"))
    assert (log.start_offset, log.next_offset) == (NEW_START, NEW_END)


# Versions that write no numbers ------------------------------------------------------------------


def forget_numbers(path: Path) -> None:
    """As an older version would have written the files."""
    for name in FILES:
        content = checksummed_json.decode(name, (path / name).read_bytes())
        assert content.pop("number") > 0
        (path / name).write_bytes(checksummed_json.encode(name, content))


def test_files_of_an_older_version_are_newer_than_what_was_set_aside_before(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    directory.give_up("orders", TOPIC, 0)
    write_new_log(directory)
    checkpoint(directory, NEW_END)
    directory.abandon()
    forget_numbers(tmp_path)
    for _ in range(2):
        directory = opened(tmp_path, "later-boot")
        check_new_log(directory)
        assert directory.high_watermark(TOPIC, 0) == NEW_END
        directory.abandon()


def test_files_of_an_older_version_are_older_than_what_is_set_aside_later(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    directory.abandon()
    forget_numbers(tmp_path)
    directory = opened(tmp_path)
    assert log_in(directory).recovery_point == OLD_END
    directory.give_up("orders", TOPIC, 0)
    directory.abandon()
    directory = opened(tmp_path)
    assert log_in(directory).next_offset == 0
    assert directory.high_watermark(TOPIC, 0) is None


# Names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", "x" * 249, "a.partition-1", "b.0.5"])
def test_the_name_of_a_log_aside_tells_what_it_was(tmp_path: Path, topic: str) -> None:
    for _ in range(3):
        path = log_aside_path(str(tmp_path), topic, TOPIC, 12345, 10**12)
        os.mkdir(path)
        name = os.path.basename(path)
        assert names.is_aside(name)
        assert not names.is_topic(name)
        assert log_aside(name) == LogAside(TOPIC, 12345, 10**12)


def test_other_names_are_not_of_one_log(tmp_path: Path) -> None:
    others = [
        names.set_aside_path(str(tmp_path), "orders", TOPIC, names.DELETE_SUFFIX),
        names.set_aside_path(str(tmp_path), "a.partition-0.1", TOPIC, names.STRAY_SUFFIX),
        log_aside_path(str(tmp_path), "orders", None, 0, 1),
        f"orders~partition-0~1.{format_topic_id(TOPIC)}-stray",
    ]
    assert [log_aside(os.path.basename(path)) for path in others] == [None] * len(others)


# Checkpoints that overlap ------------------------------------------------------------------------


@pytest.mark.parametrize("written", [(0, 1), (1, 0)])
@pytest.mark.parametrize("ended", [(0, 1), (1, 0)])
def test_of_two_checkpoints_at_once_the_later_one_counts(
    tmp_path: Path, written: tuple[int, int], ended: tuple[int, int]
) -> None:
    """Whichever thread is first."""
    directory = opened(tmp_path)
    write_old_log(directory)
    earlier = directory.checkpoint_begin({TOPIC: {0: OLD_END - 1}})
    directory.give_up("orders", TOPIC, 0)
    write_new_log(directory)
    tickets = earlier, directory.checkpoint_begin({TOPIC: {0: NEW_END}})
    for index in written:
        tickets[index].write()
    for index in ended:
        directory.checkpoint_end(tickets[index])
    assert directory.high_watermark(TOPIC, 0) == NEW_END
    assert directory.checkpoint_begin({TOPIC: {0: NEW_END}}).files == {}
    directory.abandon()

    again = opened(tmp_path, "later-boot")
    check_new_log(again)
    assert again.high_watermark(TOPIC, 0) == NEW_END


def test_logs_set_aside_between_two_checkpoints_at_once_are_forgotten(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    directory.give_up("orders", TOPIC, 0)
    tickets = [directory.checkpoint_begin({}) for _ in range(2)]
    for ticket in tickets:
        ticket.write()
        directory.checkpoint_end(ticket)
    directory.abandon()
    assert log_in(opened(tmp_path)).next_offset == 0


def test_a_later_checkpoint_that_failed_is_written_again_after_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    write_old_log(directory)
    earlier = directory.checkpoint_begin({TOPIC: {0: OLD_END - 2}})
    later = directory.checkpoint_begin({TOPIC: {0: OLD_END - 1}})
    with monkeypatch.context() as full:
        full.setattr(checkpoints, "write", _no_room)
        with pytest.raises(DiskFull):
            later.write()
    earlier.write()
    directory.checkpoint_end(earlier)
    assert directory.high_watermark(TOPIC, 0) == OLD_END - 2
    assert set(directory.checkpoint_begin({TOPIC: {0: OLD_END - 2}}).files) == {HIGH_WATERMARKS}


def _no_room(*_: object) -> None:
    raise DiskFull("full")
