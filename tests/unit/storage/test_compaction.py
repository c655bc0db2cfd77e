"""What is compacted and when, and that a log on disk then reads as a naive compaction says."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import split_batches
from penstock.records.compression import Codec
from penstock.records.control import ControlType
from penstock.records.record import Record, decode_records
from penstock.storage import swap
from penstock.storage.compaction import (
    CLEANED_UPTO_FILE,
    Allowance,
    assess,
    choose,
    first_dirty,
)
from penstock.storage.files import write_atomically
from penstock.storage.log import Log, LogRead
from penstock.storage.recovery import Ending, Past
from tests.unit.records.histories import History, Step, steps
from tests.unit.records.peers import MemoryRecords
from tests.unit.storage.compacted import (
    NOW_MS,
    begin,
    candidate_of,
    config,
    extents,
    open_compacted,
    read_bytes,
    read_offsets,
    read_records,
    run,
    without_syncs,
    write,
    write_keys,
)


def _log(path: Path, **overrides: Any) -> Log:
    return open_compacted(str(path), topic_config=config(**overrides))


# What and when --------------------------------------------------------------------------------


def test_only_closed_segments_below_the_stable_offset_are_compacted(tmp_path: Path) -> None:
    log = _log(tmp_path)
    assert assess(log, 0, NOW_MS) is None
    write_keys(log, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"c", b"1")])
    log.append_as_follower(memoryview(_one(log.next_offset)))
    assert candidate_of(log).upto_offset == 4  # the active segment begins there
    assert candidate_of(log, stable_offset=3).upto_offset == 3
    assert candidate_of(log, stable_offset=2).upto_offset == 2
    assert assess(log, 1, NOW_MS) is None


def _one(offset: int, key: bytes = b"z") -> bytearray:
    history = History(next_offset=offset)
    history.append(Step(-1, False, None, Codec.NONE, [(key, b"", 1)]))
    return history.batches[0]


def test_a_topic_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    log = open_compacted(str(tmp_path), topic_config=config(cleanup_policy="delete"))
    write_keys(log, [(b"a", b"1")], [(b"a", b"2")])
    assert assess(log, log.next_offset, NOW_MS) is None
    log.configure(config(cleanup_policy="compact,delete"))
    assert assess(log, log.next_offset, NOW_MS) is not None


def test_a_log_is_due_above_its_dirty_ratio(tmp_path: Path) -> None:
    log = _log(tmp_path, min_cleanable_dirty_ratio=0.5)
    write_keys(log, [(b"a", b"1")], [(b"b", b"1")])
    assert candidate_of(log).dirty_ratio == 1
    run(begin(log))
    assert assess(log, log.next_offset, NOW_MS) is None
    write_keys(log, [(b"a", b"2")])
    assert candidate_of(log).dirty_ratio == pytest.approx(1 / 3)
    assert not candidate_of(log).is_due
    write_keys(log, [(b"a", b"3"), (b"a", b"4")])
    assert candidate_of(log).is_due


def test_the_dirtiest_log_comes_first_and_none_when_none_is_due(tmp_path: Path) -> None:
    logs = [_log(tmp_path / name) for name in "xyz"]
    for log in logs[:2]:
        write_keys(log, [(b"a", b"1")])
        run(begin(log))
    write_keys(logs[0], [(b"a", b"1"), (b"b", b"2")])
    write_keys(logs[1], [(b"a", b"1"), (b"b", b"2"), (b"c", b"2")])
    stable = [(log, log.next_offset) for log in logs]
    chosen = choose(stable, NOW_MS)
    assert chosen is not None
    assert chosen.log is logs[1]
    for log in logs[:2]:
        run(begin(log))
    assert choose(stable, NOW_MS) is None


def test_young_records_are_safe_from_compaction(tmp_path: Path) -> None:
    log = _log(tmp_path, min_compaction_lag_ms=50)
    for time_ms in (NOW_MS - 100, NOW_MS - 51, NOW_MS - 49, NOW_MS - 80):
        history = History(next_offset=log.next_offset)
        history.append(Step(-1, False, None, Codec.NONE, [(b"a", b"1", time_ms)]))
        write(log, history.batches)
    assert candidate_of(log).upto_offset == 2
    assert candidate_of(log, NOW_MS + 10).upto_offset == 4


def test_old_dirty_records_are_due_whatever_their_share(tmp_path: Path) -> None:
    log = _log(tmp_path, max_compaction_lag_ms=50, min_cleanable_dirty_ratio=0.9)
    write_keys(log, [(b"a", b"1"), (b"b", b"2")])
    run(begin(log, NOW_MS))
    history = History(next_offset=log.next_offset)
    history.append(Step(-1, False, None, Codec.NONE, [(b"a", b"1", NOW_MS)]))
    write(log, history.batches)
    assert not candidate_of(log, NOW_MS + 50).is_due
    assert candidate_of(log, NOW_MS + 51).is_due


# How far a log is clean ------------------------------------------------------------------------


def test_a_round_begins_where_the_last_one_ended_also_after_a_restart(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"a", b"2")])
    assert first_dirty(log) == 0
    run(begin(log))
    assert first_dirty(log) == 2
    log.close()
    assert first_dirty(open_compacted(str(tmp_path), Past(Ending.CLEAN, 2))) == 2


def test_what_was_clean_is_dirty_again_when_the_log_was_cut_and_went_on(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"a", b"2")])
    run(begin(log))
    log.truncate_to(1)
    assert first_dirty(log) == 0
    batches = [_one(log.next_offset), _one(log.next_offset + 1)]
    for batch in batches:
        batch[12:16] = b"\0\0\0\7"  # by another leader
    write(log, batches)
    assert first_dirty(log) == 0


@pytest.mark.parametrize("content", [b"", b"garbage\n", b"cleaned-upto 1 00000000\n{}\n"])
def test_a_damaged_note_of_it_means_that_all_is_dirty(tmp_path: Path, content: bytes) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1")])
    run(begin(log))
    Path(log.path, CLEANED_UPTO_FILE).write_bytes(content)
    assert first_dirty(log) == 0


def test_what_was_clean_but_is_deleted_leaves_the_start_of_the_log(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1")], [(b"b", b"1"), (b"c", b"1")])
    run(begin(log, stable_offset=1))
    log.delete_records_before(2)
    assert first_dirty(log) == 2


# Rounds ----------------------------------------------------------------------------------------


def test_small_neighbours_become_one_segment_that_ends_where_they_ended(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")], [(b"b", b"2")])
    outcome = run(begin(log, stable_offset=3))
    assert [swap.old for swap in outcome.swaps] == [(0, 1, 2)]
    assert extents(log) == [(0, 3), (3, 4), (4, 4)]
    assert read_offsets(log) == [1, 2, 3]
    run(begin(log))
    assert extents(log) == [(0, 4), (4, 4)]
    assert read_offsets(log) == [2, 3]


def test_segments_are_merged_up_to_the_segment_size(tmp_path: Path) -> None:
    log = _log(tmp_path)
    value = bytes(600_000)
    write_keys(log, *([(key, value)] for key in (b"a", b"b", b"c", b"d")))
    log.configure(config(segment_bytes=1_300_000))
    run(begin(log))
    assert extents(log) == [(0, 2), (2, 4), (4, 4)]
    assert read_offsets(log) == [0, 1, 2, 3]


def test_a_round_that_finds_nothing_to_change_swaps_nothing(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"b", b"1")])
    files = sorted(os.listdir(log.path))
    outcome = run(begin(log))
    assert outcome.swaps == ()
    assert outcome.clean_upto_offset == 2
    assert sorted(os.listdir(log.path)) == sorted([*files, CLEANED_UPTO_FILE])


def test_a_small_map_makes_small_rounds(tmp_path: Path) -> None:
    log = _log(tmp_path, min_cleanable_dirty_ratio=0)
    keys = (b"a", b"b", b"c")
    write_keys(log, *([(key, b"%d" % i)] for i in range(3) for key in keys))
    rounds = 0
    while (found := assess(log, log.next_offset, NOW_MS)) is not None:
        run(begin(log, allowance=Allowance(map_bytes=400, io_bytes_per_second=1e18)))
        assert first_dirty(log) > found.first_dirty_offset
        rounds += 1
    assert rounds == 5
    assert read_offsets(log) == [6, 7, 8]


def test_a_slice_that_was_handed_out_reads_the_old_bytes_after_the_swap(tmp_path: Path) -> None:
    log = _log(tmp_path)
    history = write_keys(log, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"b", b"2")])
    pieces = log.read(0, 1_000, upto_offset=4).slices
    assert len(pieces) == 2
    run(begin(log))
    assert b"".join(piece.read() for piece in pieces) == b"".join(history.batches)
    assert not any(piece.is_stale for piece in pieces)
    assert read_offsets(log) == [2, 3]


@pytest.mark.parametrize("change", ["truncate", "retain", "roll"])
def test_a_log_that_changed_while_the_worker_ran_is_left_as_it_is(
    tmp_path: Path, change: str
) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"b", b"2")])
    round_ = begin(log)
    round_.clean()
    assert round_.is_current()
    if change == "truncate":
        log.truncate_to(3)
    elif change == "retain":
        log.delete_records_before(2)
    else:  # an append is no change
        write_keys(log, [(b"a", b"3")])
    assert round_.is_current() is (change == "roll")
    expected = {"truncate": [0, 1, 2], "retain": [2, 3], "roll": [2, 3, 4]}[change]
    if round_.is_current():
        round_.prepare()
        assert round_.install()
    else:
        round_.abandon()
    assert read_offsets(log) == expected
    assert not [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]


def test_a_change_between_prepare_and_install_undoes_the_round(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")])
    round_ = begin(log)
    round_.clean()
    round_.prepare()
    log.truncate_to(2)
    assert not round_.install()
    assert read_offsets(log) == [0, 1]
    log.close()
    assert read_offsets(open_compacted(str(tmp_path), Past(Ending.CLEAN, 2))) == [0, 1]


@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "crashes"])
@pytest.mark.parametrize("moment", ["before the commit", "after it"])
def test_a_cut_above_what_is_compacted_loses_nothing_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, crashes: bool
) -> None:
    """It takes the files of the round away, and the segments that were read are as they were."""
    log = _log(tmp_path)
    kept = [(key, b"1") for key in (b"a", b"b", b"c", b"d")]
    write_keys(log, [*kept[:2], (b"x", b"1")], [*kept[2:], (b"x", b"2")])
    stable_offset = log.next_offset
    write_keys(log, [(b"e", b"1"), (b"f", b"1")])
    round_ = begin(log, stable_offset=stable_offset)
    round_.clean()

    def cut_first(*arguments: Any, **more: Any) -> None:
        log.truncate_to(stable_offset + 1)
        write_atomically(*arguments, **more)

    if moment == "before the commit":
        monkeypatch.setattr(swap, "write_atomically", cut_first)
        round_.prepare()
    else:
        round_.prepare()
        log.truncate_to(stable_offset + 1)
    expected = list(range(stable_offset + 1))
    if crashes:
        log = open_compacted(str(tmp_path), Past(Ending.PROCESS_CRASH, 0))
    else:
        assert not round_.install()
    assert read_offsets(log) == expected
    assert not [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]


def test_leftovers_of_a_round_that_failed_are_removed_by_the_next(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1")], [(b"a", b"2")])
    begin(log).clean()
    run(begin(log))
    assert read_offsets(log) == [1]


# The whole, by property ------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(steps, st.integers(0, 150)), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=1),
    st.booleans(),
)
def test_a_compacted_log_reads_as_a_naive_compaction_says(
    rounds: list[tuple[list[Step], int]], rolls: list[bool], reopened: bool
) -> None:
    with TemporaryDirectory() as path, without_syncs():
        log, history, now_ms = open_compacted(path), History(), NOW_MS
        for written, wait_ms in rounds:
            now_ms += wait_ms
            _write_history(log, history, written, rolls)
            stable_offset = history.last_stable_offset
            if assess(log, stable_offset, now_ms) is None:
                continue
            round_ = begin(log, now_ms, stable_offset)
            run(round_)
            _check(log, history, round_.job.upto_offset)
            if reopened:
                log.close()
                log = open_compacted(path, Past(Ending.CLEAN, log.next_offset))
                _check(log, history, round_.job.upto_offset)
        log.close()
        _check_replay(path, log)


def _write_history(log: Log, history: History, written: list[Step], rolls: list[bool]) -> None:
    before = len(history.batches)
    for step in written:
        history.append(step)
    for number, batch in enumerate(history.batches[before:]):
        write(log, [batch], roll=rolls[number % len(rolls)])
    log.roll()


def _check(log: Log, history: History, upto_offset: int) -> None:
    """Values per key are right, nothing aborted is left, and offsets have stayed."""
    read = read_records(log)
    assert read == [history.records[record.offset] for record in read]
    below = [record for record in read if record.offset < upto_offset]
    decided = [
        record
        for offset, record in history.records.items()
        if offset < upto_offset and offset not in history.aborted_offsets
    ]
    assert not {record.offset for record in below} & history.aborted_offsets
    assert _state(below) == _state(decided)
    assert len({record.key for record in below}) == len(below)
    above = [record for offset, record in history.records.items() if offset >= upto_offset]
    assert [record for record in read if record.offset >= upto_offset] == above
    assert log.next_offset == history.next_offset
    _check_segments(log)
    _check_peer(log, read)


def _state(records: list[Record]) -> dict[bytes, bytes]:
    latest = {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in latest.items() if value is not None}


def _check_segments(log: Log) -> None:
    """Each ends, by its last batch, where the next one begins."""
    for segment, following in zip(log.segments, list(log.segments)[1:], strict=False):
        *_, (_, last) = segment.headers()
        assert last.next_offset == segment.next_offset == following.base_offset


def _check_peer(log: Log, read: list[Record]) -> None:
    peer, found = MemoryRecords(read_bytes(log)), []
    while peer.has_next():
        batch = peer.next_batch()
        assert batch.validate_crc()
        if not batch.is_control_batch:
            found += [
                Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch
            ]
    assert found == read


def _check_replay(path: str, log: Log) -> None:
    """With all state files lost, the batches alone tell the same about every producer."""
    for name in ("producers.snapshot", "leader-epochs"):
        Path(log.path, name).unlink(missing_ok=True)
    again = open_compacted(path, Past(Ending.CLEAN, log.next_offset))
    assert _tails(again) == _tails(log)
    assert again.first_unstable_offset == log.first_unstable_offset
    assert again.latest_epoch == log.latest_epoch


def _tails(log: Log) -> dict[int, tuple[int, int]]:
    """Epoch and next sequence of each producer."""
    return {pid: (producer.epoch, producer.next_sequence) for pid, producer in log.producers}


def test_an_aborted_transaction_is_known_as_long_as_its_marker_is(tmp_path: Path) -> None:
    log, history = _log(tmp_path, min_cleanable_dirty_ratio=0), History()
    for step in (
        Step(1, True, None, Codec.NONE, [(b"a", b"1", 1)]),
        Step(-1, False, None, Codec.NONE, [(b"b", b"1", 1)]),
        Step(1, True, ControlType.ABORT, Codec.NONE, []),
        Step(1, True, None, Codec.NONE, [(b"c", b"1", 1)]),
        Step(1, True, ControlType.COMMIT, Codec.NONE, []),
    ):
        history.append(step)
        write(log, history.batches[-1:])
    run(begin(log))
    assert read_offsets(log) == [1, 3]
    assert _control_offsets(log) == [2, 4]
    assert [aborted.first_offset for aborted in log.aborted_transactions(0, 5)] == [0]
    for now_ms in (NOW_MS + 1, NOW_MS + 101):
        write_keys(log, [(b"d", b"1")])
        run(begin(log, now_ms))
    assert _control_offsets(log) == [4]
    assert log.aborted_transactions(0, 5) == []


def _control_offsets(log: Log) -> list[int]:
    batches = split_batches(memoryview(read_bytes(log)))
    return [header.base_offset for header, _ in batches if header.is_control]


def test_a_segment_that_left_the_log_before_it_was_synced_is_not_looked_for(tmp_path: Path) -> None:
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")], [(b"c", b"1")])
    log.delete_records_before(1)
    run(begin(log))
    log.flush()
    assert log.recovery_point == log.next_offset


@pytest.mark.parametrize("ending", list(Ending))
def test_a_log_does_not_start_later_because_its_first_records_are_compacted_away(
    tmp_path: Path, ending: Ending
) -> None:
    """Every offset stays a place where a reader may be, whatever is known of epochs after a crash."""
    log = _log(tmp_path)
    write_keys(log, [(b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"b", b"1")])
    run(begin(log))
    assert read_offsets(log) == [2, 3]
    log.flush()
    log.close()
    for epochs_file in (True, False):
        if not epochs_file:
            os.unlink(f"{log.path}/leader-epochs")
        found = open_compacted(str(tmp_path), Past(ending, 4))
        assert found.start_offset == 0
        assert read_offsets(found) == [2, 3]
        found.close()


def test_segments_of_which_nothing_is_left_are_read_together_with_what_follows(
    tmp_path: Path,
) -> None:
    """Answers without a record in them, again and again, would look like an error to librdkafka."""
    log = _log(tmp_path, segment_bytes=100)
    write_keys(log, *[[(b"a", b"%d" % number)] for number in range(12)], [(b"b", b"1")])
    run(begin(log))
    assert len(log.segments) > 10, "each ends with a batch, which may be empty"
    found = log.read(0, 1 << 20, upto_offset=log.next_offset)
    assert [record.offset for record in _records_of(found)] == [11, 12]
    assert found.next_offset == 13
    assert found.size_bytes == sum(len(piece) for piece in found.slices)
    first = log.read(0, 1, upto_offset=log.next_offset)
    assert (len(first.slices), first.next_offset) == (1, 1), "but not more than was asked for"
    few = log.read(0, 200, upto_offset=log.next_offset)
    assert (len(few.slices), few.size_bytes, few.next_offset) == (3, 183, 3)
    assert log.read(0, 1 << 20, upto_offset=5).next_offset == 5


def _records_of(found: LogRead) -> list[Record]:
    data = b"".join(piece.read() for piece in found.slices)
    return [r for _, batch in split_batches(memoryview(data)) for r in decode_records(batch)]
