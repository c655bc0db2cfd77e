"""Batches that are written together: the log is what it would be had each come by itself."""

import errno
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, StorageFault
from penstock.storage.log import Appended, Log
from tests.unit.storage.logs import (
    NOW_MS,
    FaultyDisk,
    batch,
    failing,
    headers,
    new_log,
    put,
    raw,
    reopened,
    scratch,
    values,
)

ROOMY = TopicConfig(segment_bytes=100_000, index_interval_bytes=100)
TIGHT = TopicConfig(
    segment_bytes=900, index_interval_bytes=100, segment_ms=60_000, max_message_bytes=400
)
SHORT_INDEX = TopicConfig(segment_bytes=100_000, index_interval_bytes=0, segment_index_bytes=60)
SHORT_LIVED = TopicConfig(segment_bytes=100_000, segment_ms=60_000)


def run_of(log: Log, *batches: memoryview, epoch: int = 1) -> list[Appended] | None:
    return log.append_run(batches, leader_epoch=epoch, now_ms=NOW_MS)


def begun(path: Path, disk: FaultyDisk | None = None) -> Log:
    """A log with a segment that has room."""
    log = new_log(path, ROOMY, disk)
    put(log, b"first")
    return log


# What they become ------------------------------------------------------------------------------


def test_a_run_gets_its_offsets_and_is_one_write(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = begun(tmp_path, disk)
    disk.calls.clear()
    appended = run_of(log, batch(b"a", b"b"), batch(b"c"), batch(b"d"), epoch=3)
    assert appended == [
        Appended(1, 2, -1, 0, False),
        Appended(3, 3, -1, 0, False),
        Appended(4, 4, -1, 0, False),
    ]
    assert disk.calls == ["write"]
    assert values(log) == [b"first", b"a", b"b", b"c", b"d"]
    assert [it.leader_epoch for it in headers(raw(log))] == [1, 3, 3, 3]
    assert log.latest_epoch == 3
    assert log.end_offset_for(1).end_offset == 1


def test_each_batch_of_a_run_can_be_read_from(tmp_path: Path) -> None:
    log = begun(tmp_path)
    run_of(log, *(batch(b"%03d" % number * 30) for number in range(20)))
    log.roll()
    log.flush()
    again = reopened(tmp_path, config=ROOMY)
    for offset in range(1, 21):
        (found,) = headers(raw(again, offset, max_bytes=1, upto=offset + 1))
        assert found.base_offset == offset


def test_a_producers_batches_follow_each_other_in_a_run(tmp_path: Path) -> None:
    log = begun(tmp_path)
    first, second = (
        batch(b"x", producer_id=7, producer_epoch=0, base_sequence=sequence)
        for sequence in (0x7FFFFFFF, 0)  # sequences begin anew after the last
    )
    assert run_of(log, first, second) is not None
    put(log, b"y", producer_id=7, producer_epoch=0, base_sequence=1)
    assert put(log, b"x", producer_id=7, producer_epoch=0, base_sequence=0).duplicate


# When they do not go together ------------------------------------------------------------------


def check_untouched(log: Log, *batches: memoryview) -> None:
    before, came = raw(log), [bytes(it) for it in batches]
    assert run_of(log, *batches) is None
    assert (raw(log), log.next_offset) == (before, 1)
    assert [bytes(it) for it in batches] == came


def damaged() -> memoryview:
    found = batch(b"damaged")
    found[-1] ^= 1
    return found


@pytest.mark.parametrize(
    "odd",
    [
        damaged(),
        batch(b"v", base_offset=5),
        batch(b"v" * 200_000),  # a segment of its own
        batch(b"v", time_ms=NOW_MS + 10_000_000_000),
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=9),  # after 3
        batch(b"v", producer_id=7, producer_epoch=1, base_sequence=4),
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=3),  # twice
        batch(b"v", producer_id=7, producer_epoch=0, base_sequence=4, transactional=True),
    ],
)
def test_one_that_may_not_enter_as_it_is_leaves_all_as_they_were(
    tmp_path: Path, odd: memoryview
) -> None:
    sound = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=3)
    check_untouched(begun(tmp_path), batch(b"a"), sound, memoryview(bytearray(odd)), batch(b"b"))


def test_a_duplicate_of_what_the_log_has_is_no_part_of_a_run(tmp_path: Path) -> None:
    log = new_log(tmp_path, ROOMY)
    put(log, b"v", producer_id=7, producer_epoch=0, base_sequence=0)
    check_untouched(log, batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0), batch(b"w"))


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(message_timestamp_type="LogAppendTime"),
        TopicConfig(cleanup_policy=frozenset({"compact"})),
        TopicConfig(compression_type="lz4"),
    ],
)
def test_a_topic_that_looks_into_batches_takes_them_one_by_one(
    tmp_path: Path, config: TopicConfig
) -> None:
    log = new_log(tmp_path, config)
    put(log, b"first")
    check_untouched(log, batch(b"a"), batch(b"b"))


def test_a_run_that_an_index_has_no_room_for_is_none(tmp_path: Path) -> None:
    log = new_log(tmp_path, SHORT_INDEX)
    put(log, b"first")
    check_untouched(log, *(batch(b"v") for _ in range(6)))
    assert run_of(log, *(batch(b"v") for _ in range(5))) is not None
    assert len(log.segments) == 1


def test_an_empty_log_takes_its_first_batch_by_itself(tmp_path: Path) -> None:
    log = new_log(tmp_path, ROOMY)
    assert run_of(log, batch(b"a"), batch(b"b")) is None
    assert log.next_offset == 0


# A disk that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageFault)])
def test_a_write_that_fails_changes_nothing_and_each_can_be_tried_again(
    tmp_path: Path, code: int, error: type[Exception]
) -> None:
    disk = FaultyDisk()
    log = begun(tmp_path, disk)
    run = [batch(b"a"), batch(b"b", producer_id=7, producer_epoch=0, base_sequence=0)]
    before = raw(log), [bytes(it) for it in run]
    disk.fault = failing("write", code)
    with pytest.raises(error):
        run_of(log, *run)
    assert (raw(log), [bytes(it) for it in run]) == before
    disk.fault = lambda _call, _size: None
    for each in run:
        log.append_as_leader(each, leader_epoch=1, now_ms=NOW_MS)
    assert values(log) == [b"first", b"a", b"b"]


@pytest.mark.parametrize("taken", [0, 1, 75, 76, 77, 150])
def test_a_disk_that_takes_a_part_gets_the_rest(tmp_path: Path, taken: int) -> None:
    disk = FaultyDisk()
    log = begun(tmp_path, disk)
    gone: list[int] = []

    def short(call: str, _size: int) -> int | None:
        if call != "write" or gone:
            return None
        gone.append(taken)
        return taken

    disk.fault = short
    run_of(log, batch(b"a"), batch(b"b"), batch(b"c"))
    assert values(log) == [b"first", b"a", b"b", b"c"]


def test_a_disk_that_fills_up_in_the_middle_of_a_run_is_left_without_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = begun(tmp_path, disk)
    writes: list[int] = []

    def filling(call: str, _size: int) -> int | None:
        if call == "write":
            writes.append(1)
            if len(writes) > 1:
                raise OSError(errno.ENOSPC, "full")
            return 100
        return None

    disk.fault = filling
    with pytest.raises(DiskFull):
        run_of(log, batch(b"a"), batch(b"b"), batch(b"c"))
    assert values(log) == [b"first"]
    assert Path(log.segments[0].file.path).stat().st_size == log.size_bytes


# Whatever comes --------------------------------------------------------------------------------


class Sent(NamedTuple):
    size: int
    records: int
    producer: int  # -1: none
    epoch: int
    step: int  # from the sequence that would be next
    later_ms: int
    damaged: bool


SENT = st.builds(
    Sent,
    st.sampled_from([1, 30, 30, 120, 500]),
    st.integers(1, 3),
    st.sampled_from([-1, -1, 7, 8]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, -1, 2]),
    st.sampled_from([0, 0, 50, 100_000]),
    st.sampled_from([False] * 9 + [True]),
)


def built(sent: Sent, next_sequences: dict[int, int]) -> bytes:
    fields: dict[str, Any] = {}
    if sent.producer >= 0:
        sequence = max(next_sequences.get(sent.producer, 0) + sent.step, 0)
        next_sequences[sent.producer] = sequence + sent.records
        fields = {
            "producer_id": sent.producer,
            "producer_epoch": sent.epoch,
            "base_sequence": sequence,
        }
    made = batch(*[b"v" * sent.size] * sent.records, time_ms=NOW_MS + sent.later_ms, **fields)
    if sent.damaged:
        made[-1] ^= 1
    return bytes(made)


def one_by_one(log: Log, run: list[bytes]) -> list[Appended | str]:
    outcomes: list[Appended | str] = []
    for each in run:
        records = memoryview(bytearray(each))
        try:
            outcomes.append(log.append_as_leader(records, leader_epoch=1, now_ms=NOW_MS))
        except BrokerError as error:
            outcomes.append(str(error))
    return outcomes


def described(log: Log) -> object:
    return (
        raw(log),
        log.next_offset,
        log.unflushed_bytes,
        [(it.base_offset, it.size_bytes, it.newest()) for it in log.segments],
        [
            (len(it.indexes.offsets), it.indexes.offsets.last(), it.indexes.times.last())
            for it in log.segments
        ],
        [
            (number, it.epoch, it.next_sequence, it.batches, it.last_timestamp_ms)
            for number, it in log.producers
        ],
    )


@settings(max_examples=150, deadline=None)
@given(
    config=st.sampled_from([ROOMY, TIGHT, SHORT_INDEX, SHORT_LIVED]),
    runs=st.lists(st.lists(SENT, min_size=1, max_size=6), min_size=1, max_size=5),
)
def test_a_log_cannot_tell_whether_batches_came_together(
    config: TopicConfig, runs: list[list[Sent]]
) -> None:
    with scratch() as here, scratch() as there:
        alone, together = new_log(here, config), new_log(there, config)
        sequences: dict[int, int] = {}
        for run in runs:
            batches = [built(sent, sequences) for sent in run]
            expected = one_by_one(alone, batches)
            views = [memoryview(bytearray(it)) for it in batches]
            found = run_of(together, *views)
            if found is None:
                assert [bytes(it) for it in views] == batches
                assert one_by_one(together, batches) == expected
            else:
                assert found == expected
            assert described(together) == described(alone)
