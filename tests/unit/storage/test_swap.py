"""Compacted segments take the place of old ones entirely or not at all, wherever a crash falls."""

import os
import shutil
from pathlib import Path

import pytest

from penstock.model.errors import StorageFault
from penstock.storage import swap
from penstock.storage.files import Disk
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.storage.swap import Swap
from tests.unit.storage.logs import (
    copy_of,
    fill,
    headers,
    new_log,
    put,
    raw,
    reopened,
    values,
)

ALL_ENDINGS = list(Ending)


def log_of_segments(path: Path) -> Log:
    log = new_log(path)
    fill(log, 30)
    log.flush()
    return log


def write_cleaned(log: Log, change: Swap, keep_every: int = 3) -> None:
    """What a compaction would leave of the old segments: every third batch."""
    end = next(s.next_offset for s in log.segments if s.base_offset == change.old[-1])
    ends = (*change.new[1:], end)
    for base_offset, until in zip(change.new, ends, strict=True):
        data = raw(log, base_offset, upto=until)
        left, position = b"", 0
        for header in headers(data):
            if header.base_offset % keep_every == 0:
                left += data[position : position + header.size_bytes]
            position += header.size_bytes
        Path(f"{log.path}/{base_offset:020d}.log.cleaned").write_bytes(left)


def change_of(log: Log, old: slice = slice(0, 3)) -> Swap:
    bases = tuple(segment.base_offset for segment in log.segments)[old]
    return Swap(bases, bases[:1])


def left_of(log: Log, change: Swap) -> list[int]:
    end = next(s.next_offset for s in log.segments if s.base_offset == change.old[-1])
    return [n for n in range(30) if not change.old[0] <= n < end or n % 3 == 0]


def offsets(log: Log) -> list[int]:
    return [header.base_offset for header in headers(raw(log)) if header.record_count]


def test_compacted_segments_replace_old_ones(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    expected, count = left_of(log, change), len(log.segments)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)

    assert log.replace_segments(change)
    assert offsets(log) == expected
    assert len(log.segments) == count - 2
    for offset in range(30):
        assert headers(raw(log, offset))[0].next_offset > offset, "reads go on after a gap"
    assert put(log, b"x").base_offset == 30
    log.flush()
    for ending in ALL_ENDINGS:
        found = reopened(tmp_path, ending, 31, start=0)
        assert offsets(found) == [*expected, 30]


def test_a_segment_of_which_nothing_is_left_keeps_its_place(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log, slice(1, 3))
    write_cleaned(log, change, keep_every=1000)
    swap.prepare(log.path, change, 100)
    assert log.replace_segments(change)

    gone = log.segments[1]
    assert [h.record_count for _, h in gone.headers()] == [0]
    assert len(values(log)) == 30 - (gone.next_offset - gone.base_offset)
    assert reopened(tmp_path, Ending.PROCESS_CRASH, 30, start=0).next_offset == 30


def test_a_missing_segment_is_noticed_also_after_compaction(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    write_cleaned(log, change, keep_every=1000)
    swap.prepare(log.path, change, 100)
    assert log.replace_segments(change)
    log.close()
    os.unlink(log.segments[1].file.path)

    with pytest.raises(StorageFault, match="the next segment begins at"):
        reopened(tmp_path, Ending.PROCESS_CRASH, 30)


def test_readers_of_the_old_segments_are_not_disturbed(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    piece = log.read(0, 1 << 20, upto_offset=30).slices[0]
    before = piece.read()
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    log.replace_segments(change)

    assert (piece.read(), piece.is_stale) == (before, False)


@pytest.mark.parametrize("ending", [Ending.PROCESS_CRASH, Ending.POWER_LOSS])
def test_what_was_not_committed_is_undone(tmp_path: Path, ending: Ending) -> None:
    log = log_of_segments(tmp_path)
    write_cleaned(log, change_of(log))

    found = reopened(tmp_path, ending, 30, start=0)
    assert offsets(found) == list(range(30))
    assert not [name for name in os.listdir(log.path) if name.endswith(".cleaned")]


def test_what_was_committed_is_finished_wherever_the_crash_falls(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path / "a")
    change = change_of(log)
    expected = left_of(log, change)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    real = (os.rename, os.unlink)
    for limit in range(40):
        copy = copy_of(tmp_path / "a", tmp_path / f"{limit}")
        done = [0]

        def step(number: int, *arguments: str, done: list[int] = done, limit: int = limit) -> None:
            if done[0] >= limit:
                raise KeyboardInterrupt
            done[0] += 1
            real[number](*arguments)

        os.rename = lambda a, b, step=step: step(0, a, b)  # type: ignore[assignment, misc] # counts
        os.unlink = lambda a, step=step: step(1, a)  # type: ignore[assignment, misc] # counts
        try:
            directory = f"{copy}/t/partition-0"
            swap.complete(directory, os.listdir(directory))
            finished = True
        except KeyboardInterrupt:
            finished = False
        finally:
            os.rename, os.unlink = real
        found = reopened(copy, Ending.PROCESS_CRASH, 30, start=0)
        assert offsets(found) == expected
        left = {name.split(".", 1)[1] for name in os.listdir(found.path) if name[0] == "0"}
        assert left <= {"log", "index", "timeindex"}
        shutil.rmtree(copy)
        if finished:
            return
    pytest.fail("it never came to its end")


def test_old_segments_that_changed_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    log.delete_records_before(log.segments[1].base_offset)

    assert not log.replace_segments(change)
    assert not [n for n in os.listdir(log.path) if n.endswith((".cleaned", ".swap"))]
    assert len(values(log, log.start_offset)) == 30 - log.start_offset


def test_a_cut_withdraws_a_swap_so_that_a_crash_cannot_bring_back_what_was_cut(
    tmp_path: Path,
) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    log.truncate_to(2)
    put(log, b"other", epoch=2)

    found = reopened(tmp_path, Ending.PROCESS_CRASH, 30)
    assert (found.next_offset, values(found, 2)) == (3, [b"other"])
    assert not log.replace_segments(change)


def test_who_withdraws_a_swap_does_not_mind_another_who_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut, on the loop, while a round that failed tidies up, in a thread or in the worker."""
    log = log_of_segments(tmp_path)
    change = change_of(log)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    seen = os.listdir(log.path)
    swap.discard(log.path, Disk())
    monkeypatch.setattr(os, "listdir", lambda _: seen)
    log.truncate_to(2)
    assert log.next_offset == 2


def test_a_damaged_commit_is_a_fault_and_nothing_is_guessed(tmp_path: Path) -> None:
    log = log_of_segments(tmp_path)
    change = change_of(log)
    write_cleaned(log, change)
    swap.prepare(log.path, change, 100)
    path = Path(change.path(log.path))
    path.write_bytes(path.read_bytes()[:-5])
    before = sorted(os.listdir(log.path))

    with pytest.raises(StorageFault, match=r"\.swap: cannot be read"):
        reopened(tmp_path, Ending.PROCESS_CRASH, 30)
    assert sorted(os.listdir(log.path)) == before
    swap.discard(log.path, Disk())
    assert offsets(reopened(tmp_path, Ending.PROCESS_CRASH, 30, start=0)) == list(range(30))
