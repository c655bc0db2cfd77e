"""After any end a log opens with its longest valid prefix, or says where it is damaged. See docs/storage-format.md."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from struct import iter_unpack, pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.storage.segment import DamagedLog
from tests.unit.storage.logs import (
    NOW_MS,
    SMALL,
    ForgetfulDisk,
    batch,
    copy_of,
    fill,
    flip,
    new_log,
    paths,
    put,
    raw,
    reopened,
    scratch,
    values,
)

ALL_ENDINGS = list(Ending)
CRASHES = [Ending.PROCESS_CRASH, Ending.POWER_LOSS]
sizes = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def log_of(path: str | Path, lengths: list[int], config: TopicConfig = SMALL) -> Log:
    log = new_log(path, config)
    for number, length in enumerate(lengths):
        put(log, b"%d" % number * length, time_ms=NOW_MS + number)
    return log


def closed(path: Path, count: int = 30) -> Log:
    """A log of several segments that was closed as it should be."""
    log = new_log(path)
    fill(log, count)
    log.close()
    return log


# Torn tails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", CRASHES)
def test_a_crash_at_any_byte_of_a_write_leaves_what_was_before_it(
    tmp_path: Path, ending: Ending
) -> None:
    log = log_of(tmp_path / "a", [30, 5, 70], TopicConfig(index_interval_bytes=0))
    log.flush()
    before = log.size_bytes
    put(log, b"last" * 10)
    name = paths(log)[0].name
    whole = paths(log)[0].read_bytes()
    for end in range(before, len(whole)):
        copy = copy_of(tmp_path / "a", tmp_path / f"{end}")
        (Path(copy) / "t/partition-0" / name).write_bytes(whole[:end])

        found = reopened(copy, ending, point=3)
        assert (found.next_offset, raw(found)) == (3, whole[:before])
        assert found.recovery.dropped_bytes == end - before
        assert put(found, b"again").base_offset == 3
        shutil.rmtree(copy)


@settings(max_examples=60, deadline=None)
@given(sizes, st.data())
def test_a_crash_loses_no_synced_record_and_invents_none(
    lengths: list[int], data: st.DataObject
) -> None:
    synced_count = data.draw(st.integers(0, len(lengths)))
    with scratch() as path:
        disk = ForgetfulDisk()
        log = new_log(f"{path}/a", SMALL, disk)
        for number, length in enumerate(lengths):
            if number == synced_count:
                log.flush()
            put(log, b"%d" % number * length)
        if synced_count == len(lengths):
            log.flush()
        everything, synced = values(log), log.recovery_point
        left = disk.after_power_loss(
            f"{path}/a", f"{path}/b", lambda size: data.draw(st.integers(0, size))
        )

        found = reopened(left, Ending.POWER_LOSS, point=synced)
        assert synced_count == synced <= found.next_offset <= len(lengths)
        assert values(found) == everything[: found.next_offset]
        assert put(found, b"next").base_offset == found.next_offset - 1
        assert values(found)[-1] == b"next"
        assert found.epochs.entries() == [(1, 0)]
        for number in range(found.next_offset):
            assert values(found, number) == values(found)[number:]


@settings(max_examples=40, deadline=None)
@given(sizes, st.binary(max_size=200), st.sampled_from(CRASHES))
def test_garbage_after_the_last_batch_is_cut_off(
    lengths: list[int], garbage: bytes, ending: Ending
) -> None:
    with scratch() as path:
        log = log_of(path, lengths)
        everything = values(log)
        with paths(log)[-1].open("ab") as file:
            file.write(garbage)

        found = reopened(path, ending)
        assert values(found) == everything
        assert found.recovery.dropped_bytes == len(garbage)


def test_segments_after_a_torn_one_go_too(tmp_path: Path) -> None:
    log = closed(tmp_path)
    second = paths(log)[1]
    end = log.segments[1].base_offset + 1
    second.write_bytes(second.read_bytes()[: len(second.read_bytes()) // 2])

    found = reopened(tmp_path, point=log.segments[1].base_offset)
    assert found.next_offset >= end
    assert found.next_offset < 30
    assert len(found.segments) == 2
    assert len(values(found)) == found.next_offset
    assert put(found, b"x").base_offset == found.next_offset - 1


def test_a_crash_between_making_a_segment_and_its_first_batch_is_harmless(tmp_path: Path) -> None:
    log = closed(tmp_path)
    (Path(log.path) / f"{30:020d}.log").touch()

    for number, ending in enumerate(ALL_ENDINGS):
        found = reopened(tmp_path, ending, point=30)
        assert len(values(found)) == found.next_offset == 30 + number
        put(found, b"x")
        found.flush()


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_directory_without_anything_in_it_is_a_log_never_written(
    tmp_path: Path, ending: Ending
) -> None:
    (tmp_path / "t/partition-0").mkdir(parents=True)
    found = reopened(tmp_path, ending)
    assert put(found, b"x").base_offset == 0


# Damage where nothing can be torn --------------------------------------------------------------


@pytest.mark.parametrize("ending", CRASHES)
def test_a_flipped_bit_below_the_recovery_point_is_named_and_nothing_is_dropped(
    tmp_path: Path, ending: Ending
) -> None:
    log = closed(tmp_path)
    last, size = paths(log)[-1], log.segments[-1].size_bytes
    flip(last, size - 5)
    before = last.read_bytes()

    with pytest.raises(DamagedLog, match=rf"{last.name}: damaged at byte \d+ \(offset 29\)"):
        reopened(tmp_path, ending, point=30)
    assert last.read_bytes() == before


def wrong_checksum(files: list[Path]) -> None:
    flip(files[-1], files[-1].stat().st_size - 5)


def no_header(files: list[Path]) -> None:
    with files[-1].open("ab") as file:
        file.write(b"\0" * 100)


def short_before_the_last(files: list[Path]) -> None:
    files[1].write_bytes(files[1].read_bytes()[:-1])


def gap(files: list[Path]) -> None:
    files[1].unlink()


@pytest.mark.parametrize("damage", [wrong_checksum, no_header, short_before_the_last, gap])
def test_what_no_crash_of_a_process_leaves_is_damage_where_there_are_copies(
    tmp_path: Path, damage: Callable[[list[Path]], None]
) -> None:
    """Nothing of it was synced, and so it would be cut off."""
    log = closed(tmp_path)
    damage(paths(log))
    before = [path.read_bytes() for path in paths(log)]
    with pytest.raises(DamagedLog, match="no more than a short last batch"):
        reopened(tmp_path, has_copies=True)
    assert [path.read_bytes() for path in paths(log)] == before, "kept for whoever wants to know"
    assert reopened(tmp_path, Ending.POWER_LOSS, has_copies=True).recovery.dropped_bytes


def test_a_short_last_batch_is_no_damage_where_there_are_copies(tmp_path: Path) -> None:
    log = closed(tmp_path)
    last = paths(log)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    found = reopened(tmp_path, has_copies=True)
    assert (found.next_offset, values(found)[-1]) == (29, values(found)[28])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_byte_below_the_recovery_point_that_is_scanned_is_guarded(data: st.DataObject) -> None:
    with scratch() as path:
        log = log_of(path, [40] * 4, TopicConfig())
        log.flush()
        file = paths(log)[0]
        position = data.draw(st.integers(0, log.size_bytes - 1))
        flip(file, position)

        if 12 <= position % (log.size_bytes // 4) < 16:
            return  # the leader epoch, which no checksum covers
        with pytest.raises(DamagedLog):
            reopened(path, Ending.POWER_LOSS, point=4)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_file_that_is_too_short_is_named(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    last = paths(log)[-1]
    last.write_bytes(last.read_bytes()[:-1])

    with pytest.raises(DamagedLog, match=last.name):
        reopened(tmp_path, ending, point=30)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_file_that_lacks_exactly_its_last_batch_is_named(tmp_path: Path, ending: Ending) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    before = log.size_bytes
    fill(log, 1)
    log.close()
    os.truncate(paths(log)[0], before)

    with pytest.raises(DamagedLog, match=r"ends at offset 3 .*though synced to offset 4"):
        reopened(tmp_path, ending, point=4)


@pytest.mark.parametrize("ending", CRASHES)
def test_an_old_segment_that_is_too_short_is_named(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    second = paths(log)[1]
    batch_bytes = second.stat().st_size // (
        log.segments[2].base_offset - log.segments[1].base_offset
    )
    os.truncate(second, second.stat().st_size - batch_bytes)

    with pytest.raises(DamagedLog, match=rf"{second.name}: ends at offset \d+ .*the next segment"):
        reopened(tmp_path, ending, point=30)


@pytest.mark.parametrize("ending", CRASHES)
def test_a_segment_missing_in_the_middle_is_noticed(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    paths(log)[2].unlink()

    with pytest.raises(DamagedLog, match="the next segment begins at"):
        reopened(tmp_path, ending, point=30)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_segment_missing_at_the_end_is_noticed(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    paths(log)[-1].unlink()

    with pytest.raises(DamagedLog, match="though synced to offset 30"):
        reopened(tmp_path, ending, point=30)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_segment_missing_at_the_front_is_noticed(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    paths(log)[0].unlink()

    with pytest.raises(DamagedLog, match="though the log starts at 0: a segment is missing"):
        reopened(tmp_path, ending, point=30, start=0)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_log_that_is_gone_altogether_is_noticed(tmp_path: Path, ending: Ending) -> None:
    log = closed(tmp_path)
    shutil.rmtree(log.path)

    with pytest.raises(DamagedLog, match="no segment is there, though it was synced to offset 30"):
        reopened(tmp_path, ending, point=30)


# How far it was synced is not known ------------------------------------------------------------


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_without_a_recovery_point_a_torn_end_is_still_only_that(
    tmp_path: Path, ending: Ending
) -> None:
    log = closed(tmp_path)
    last = paths(log)[-1]
    last.write_bytes(last.read_bytes()[:-1])

    assert reopened(tmp_path, ending, point=None).next_offset == 29


@pytest.mark.parametrize("ending", ALL_ENDINGS)
@pytest.mark.parametrize("segment", [0, 2, -1])
def test_without_a_recovery_point_damage_is_not_taken_for_a_torn_end(
    tmp_path: Path, ending: Ending, segment: int
) -> None:
    log = closed(tmp_path)
    flip(paths(log)[segment], 70)

    with pytest.raises(DamagedLog, match="how far it was synced is not known"):
        reopened(tmp_path, ending, point=None)


# Hints -----------------------------------------------------------------------------------------


def _shifted(data: bytes, suffix: str) -> bytes:
    """Each entry of an offset index with the position of the next: places where batches do begin."""
    if suffix != ".index" or len(data) < 16:
        return data[::-1]
    entries = list(iter_unpack(">ii", data))
    later = [position for _, position in entries[1:]] + [entries[-1][1]]
    return b"".join(pack(">ii", key, place) for (key, _), place in zip(entries, later, strict=True))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(b"\x7e" * path.stat().st_size),
    "flipped": lambda path: flip(path, path.stat().st_size - 1),
    "shifted": lambda path: path.write_bytes(_shifted(path.read_bytes(), path.suffix)),
    "of another": lambda path: path.write_bytes(path.read_bytes()[::-1]),
}


@pytest.mark.parametrize("ending", ALL_ENDINGS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", "leader-epochs", "producers.snapshot"])
def test_a_damaged_hint_changes_nothing(
    tmp_path: Path, suffix: str, damage: str, ending: Ending
) -> None:
    log = new_log(tmp_path)
    for number in range(30):
        put(log, b"%040d" % number, time_ms=NOW_MS + number, epoch=1 + number // 10)
    log.close()
    found_files = paths(log, suffix)
    assert found_files
    for path in found_files:
        DAMAGES[damage](path)

    found = reopened(tmp_path, ending, point=30)
    assert len(values(found)) == 30
    for number in range(30):
        assert values(found, number) == values(found)[number:]
        lookup = found.offset_for_timestamp(NOW_MS + number)
        assert lookup is not None
        assert lookup.offset == number
    assert found.epochs.entries() == [(1, 0), (2, 10), (3, 20)]


def test_an_index_that_went_bad_while_the_log_was_open_is_rebuilt(tmp_path: Path) -> None:
    log = closed(tmp_path)
    found = reopened(tmp_path, Ending.CLEAN, 30)
    assert len(values(found, 5)) == 25
    for path in paths(log, ".index"):
        path.write_bytes(b"\x11" * path.stat().st_size)

    for number in range(30):
        segment = found.segments[0]
        segment._cursor = segment._cursor._replace(offset=-1)
        assert len(values(found, number)) == 30 - number


# Leftovers -------------------------------------------------------------------------------------


def test_what_was_under_way_when_the_process_died_is_cleared_away(tmp_path: Path) -> None:
    log = closed(tmp_path)
    directory = Path(log.path)
    leftovers = (
        f"{0:020d}.log.cleaned",
        f"{0:020d}.index.cleaned",
        "leader-epochs.tmp",
        f"{77:020d}.index",
        f"{77:020d}.timeindex",
    )
    for name in leftovers:
        (directory / name).write_bytes(b"left over")

    found = reopened(tmp_path, point=30)
    assert len(values(found)) == 30
    assert not {path.name for path in directory.iterdir()} & set(leftovers)


def test_segments_that_were_on_their_way_out_stay_out(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    log.delete_records_before(20)
    log.flush()

    found = reopened(tmp_path, point=30, start=0)
    assert found.start_offset == found.segments[0].base_offset > 0
    found.checkpointed(0, found.start_offset)
    assert any(path.endswith(".log.deleted") for path in found.removable(NOW_MS))


@pytest.mark.parametrize("ending", ALL_ENDINGS)
def test_a_cut_log_is_not_taken_for_a_damaged_one(tmp_path: Path, ending: Ending) -> None:
    """The recovery point on disk is from before the cut."""
    log = new_log(tmp_path)
    fill(log, 30)
    log.flush()
    log.truncate_to(12)
    put(log, b"other", epoch=2)

    found = reopened(tmp_path, ending, point=30)
    assert (found.next_offset, values(found, 12)) == (13, [b"other"])


def test_a_crash_while_a_log_is_emptied_leaves_one_that_can_be_filled(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    log.flush()
    for segment in reversed(list(log.segments)):
        segment.retire()

    found = reopened(tmp_path, point=30)
    assert (found.start_offset, found.next_offset) == (30, 30), "no offset is given twice"
    assert put(found, b"x").base_offset == 30
    found.checkpointed(found.truncations, 30)
    assert {str(path) for path in paths(found, ".deleted")} == set(found.removable(NOW_MS))


def test_the_lowest_of_several_cuts_is_remembered(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    log = new_log(tmp_path / "a", TopicConfig(), disk)
    fill(log, 30)
    log.flush()
    log.truncate_to(0)
    log.flush()
    fill(log, 20)
    log.truncate_to(10)
    (disk.durable[f"{log.path}/leader-epochs"],) = {
        path.read_bytes() for path in paths(log, "leader-epochs")
    }
    left = disk.after_power_loss(str(tmp_path / "a"), str(tmp_path / "b"), lambda _size: 0)

    found = reopened(left, Ending.POWER_LOSS, 30, config=TopicConfig())
    assert found.next_offset == 0, "none of the ten was ever synced"


def test_a_second_crash_before_the_recovery_point_is_written_is_no_damage_either(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    log.flush()
    log.truncate_to(12)
    for number in range(3):
        log = reopened(tmp_path, point=30)
        assert log.next_offset == 12 + number
        put(log, b"x", epoch=2)
        log.flush()


def test_scanning_begins_near_the_recovery_point(tmp_path: Path) -> None:
    config = TopicConfig(index_interval_bytes=1000)
    log = new_log(tmp_path, config)
    fill(log, 200)
    log.flush()
    fill(log, 5)

    found = reopened(tmp_path, point=log.recovery_point, config=config)
    assert found.next_offset == 205
    assert 0 < found.recovery.scanned_bytes < log.size_bytes / 5
    assert found.unflushed_bytes == found.recovery.scanned_bytes


def test_a_batch_larger_than_what_is_read_at_once_is_recovered(tmp_path: Path) -> None:
    config = TopicConfig(max_message_bytes=4 << 20)
    log = new_log(tmp_path, config)
    put(log, b"x" * (3 << 20))
    put(log, b"y")

    found = reopened(tmp_path, Ending.POWER_LOSS, config=config)
    assert [len(value or b"") for value in values(found)] == [3 << 20, 1]


def test_the_same_batch_twice_in_a_file_is_damage(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"x")
    log.flush()
    with paths(log)[0].open("ab") as file:
        file.write(batch(b"x"))

    found = reopened(tmp_path, point=1)
    assert (found.next_offset, found.recovery.dropped_from_offset) == (1, 1)
