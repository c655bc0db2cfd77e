"""Replicas of a compacted log agree where each leader epoch ends, whatever compaction took out and whoever copied it when."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.epochs import EpochEnd
from penstock.storage.log import Log
from penstock.storage.recovery import Ending, Past
from penstock.storage.state import EPOCHS_FILE
from tests.unit.storage.compacted import begin, open_compacted, run, without_syncs
from tests.unit.storage.logs import copy_of, put, raw, scratch, values


def written(path: Path | str, *counts: int, roll_every: int = 3) -> Log:
    """So many batches in each epoch, all of the same key; compacted."""
    log = open_compacted(f"{path}/leader")
    for epoch, count in enumerate(counts, 1):
        log.begin_epoch(epoch)
        for _ in range(count):
            put(log, b"v%d" % log.next_offset, epoch=epoch)
            if log.next_offset % roll_every == 0:
                log.roll()
    log.roll()
    with without_syncs():
        run(begin(log))
    return log


def copied(path: Path | str, leader: Log) -> Log:
    log = open_compacted(f"{path}/follower")
    log.append_as_follower(memoryview(bytearray(raw(leader))))
    return log


def test_a_copy_of_a_compacted_log_has_the_epochs_of_the_original(tmp_path: Path) -> None:
    leader = written(tmp_path, 10, 5, 3)
    follower = copied(tmp_path, leader)
    assert values(follower) == [b"v17"]
    assert leader.epochs.entries() == [(1, 0), (2, 10), (3, 15)]
    assert follower.epochs.entries() == leader.epochs.entries()


def test_a_log_that_lost_its_epochs_finds_them_in_what_compaction_left(tmp_path: Path) -> None:
    leader = written(tmp_path, 10, 5, 3)
    known = leader.epochs.entries()
    leader.close()
    (Path(leader.path) / EPOCHS_FILE).unlink()
    found = open_compacted(f"{tmp_path}/leader", Past(Ending.CLEAN, leader.next_offset))
    assert found.epochs.entries() == known


def test_a_gap_between_two_epochs_is_of_the_later_one_also_after_a_crash(tmp_path: Path) -> None:
    """What a mirror is sent may lack offsets there: its epoch begins before them, at every replica."""
    source = open_compacted(f"{tmp_path}/source")
    for _ in range(9):
        put(source, b"v")
    whole = bytearray(raw(source))
    size = len(whole) // 9
    leader = open_compacted(f"{tmp_path}/leader")
    leader.append_mirrored(memoryview(whole[: 2 * size]), 0, 1)
    leader.begin_epoch(2)
    leader.append_mirrored(memoryview(whole[5 * size :]), 2, 2)
    follower = copied(tmp_path, leader)
    crashed = open_compacted(f"{tmp_path}/follower", Past(Ending.PROCESS_CRASH, 0))
    for log in (leader, follower, crashed):
        assert log.epochs.entries() == [(1, 0), (2, 2)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_whoever_comes_back_is_told_the_same_by_a_copy_as_by_the_original(
    tmp_path: Path, epoch: int
) -> None:
    leader = written(tmp_path, 10, 5, 3)
    follower = copied(tmp_path, leader)
    assert follower.end_offset_for(epoch) == leader.end_offset_for(epoch)
    assert leader.end_offset_for(1) == EpochEnd(1, 10)


@pytest.mark.parametrize("ending", list(Ending))
@pytest.mark.parametrize("offset", [20, 18, 14])
def test_a_log_that_is_cut_after_a_gap_does_not_give_the_offsets_of_the_gap_again(
    tmp_path: Path, offset: int, ending: Ending
) -> None:
    leader = open_compacted(f"{tmp_path}/leader")
    put(leader, b"a")
    for _ in range(19):
        put(leader, b"b")
    leader.roll()
    put(leader, b"c")
    leader.roll()
    with without_syncs():
        run(begin(leader))
    put(leader, b"d", epoch=2)
    follower = copied(tmp_path, leader)
    follower.flush()
    point = follower.recovery_point

    follower.truncate_to(offset)
    assert follower.next_offset == offset
    crashed = copy_of(f"{tmp_path}/follower", f"{tmp_path}/copy")
    found = open_compacted(crashed, Past(ending, point if ending is not Ending.CLEAN else offset))
    assert found.next_offset == offset
    assert found.epochs.entries() == follower.epochs.entries()
    assert put(follower, b"e", epoch=3).base_offset == offset


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_no_history_of_epochs_is_changed_by_compaction_and_copying(
    counts: list[int], roll_every: int
) -> None:
    with scratch() as path:
        counts = [*counts, 1]
        leader = written(path, *counts, roll_every=roll_every)
        expected = leader.epochs.entries()
        second = copied(path, leader)
        assert second.epochs.entries() == expected
        put(leader, b"again", epoch=len(counts))
        leader.roll()
        with without_syncs():
            run(begin(leader, now_ms=2_000_000))
        third = open_compacted(f"{path}/third")
        third.append_as_follower(memoryview(bytearray(raw(leader))))
        assert third.epochs.entries() == expected
