"""A mirror is the source's log, whatever way its batches come; promoted, it knows nothing of the source's producers."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import CorruptBatch, DiskFull, ErrorCode, InvalidRecord, OffsetOutOfRange
from penstock.records.batch import BatchHeader, iter_headers, stamp
from penstock.records.control import ControlType, Promotion, decode_marker, decode_promotion
from penstock.records.crc32c import crc32c
from penstock.storage import snapshot
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.storage.snapshot import Mark
from tests.unit.storage.logs import (
    MIRROR,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    FaultyDisk,
    batch,
    failing,
    headers,
    new_log,
    put,
    raw,
    reopened,
    scratch,
)
from tests.unit.storage.test_producers import described, end, send

EPOCH = 9  # of the target's leader
Step = Callable[[Log], object]


class Source(NamedTuple):
    """Batches as they lie in a log, some of them taken out by compaction."""

    batches: list[bytes]

    def joined(self, first: int, last: int) -> memoryview:
        return memoryview(bytearray(b"".join(self.batches[first:last])))


def _begin(producer: int) -> Step:
    def step(log: Log) -> object:
        known = dict(log.producers).get(producer)
        sequence = 0 if known is None else known.next_sequence
        return send(log, sequence, 1 + producer % 2, producer=producer, txn=True)

    return step


def _end(producer: int, kind: ControlType) -> Step:
    return lambda log: end(log, kind, producer=producer)


steps = st.one_of(
    st.just(lambda log: put(log, b"plain", b"values")),
    st.integers(1, 3).map(_begin),
    st.tuples(st.integers(1, 3), st.sampled_from(ControlType)).map(lambda it: _end(*it)),
)


def source_of(path: str | Path, history: list[Step], *, gone: Collection[int] = ()) -> Source:
    log = new_log(f"{path}/source")
    for step in history:
        step(log)
    data = raw(log)
    found = [data[at : at + it.size_bytes] for at, it in iter_headers(memoryview(data))]
    return Source([piece for number, piece in enumerate(found) if number not in gone])


def at(base_offset: int, *values: bytes) -> memoryview:
    """A batch as it lies at an offset of the source."""
    made = batch(*values)
    stamp(made, base_offset, 3)
    return made


def mirror(log: Log, records: memoryview, continues_at: int = 0) -> None:
    log.append_mirrored(records, continues_at, EPOCH)


def without_epochs(data: bytes) -> bytes:
    copy = bytearray(data)
    for position, header in list(iter_headers(memoryview(data))):
        stamp(memoryview(copy)[position:], header.base_offset, -1)
    return bytes(copy)


def content(log: Log) -> object:
    """What readers and producers meet."""
    end = log.next_offset
    return (
        without_epochs(raw(log, log.start_offset)),
        described(log),
        log.start_offset,
        end,
        log.aborted_transactions(log.start_offset, end) if end > log.start_offset else [],
        log.last_stable_offset(end),
    )


# Appending -------------------------------------------------------------------------------------


@given(st.lists(steps, min_size=1, max_size=25), st.data())
@settings(max_examples=60, deadline=None)
def test_any_pieces_repetitions_and_overlaps_give_the_same_log(
    history: list[Step], data: st.DataObject
) -> None:
    with scratch() as path:
        gone = data.draw(st.sets(st.integers(0, len(history) - 1), max_size=len(history) // 2))
        source = source_of(path, history, gone=gone)
        count = len(source.batches)
        at_once, in_pieces = new_log(f"{path}/a"), new_log(f"{path}/b")
        if count:
            mirror(at_once, source.joined(0, count))
        done = 0
        while done < count:
            first = data.draw(st.integers(0, done))
            last = data.draw(st.integers(first + 1, count))
            mirror(in_pieces, source.joined(first, last))
            done = max(done, last)

        assert content(in_pieces) == content(at_once)
        assert without_epochs(raw(at_once, at_once.start_offset)) == without_epochs(
            b"".join(source.batches)
        )
        assert {it.leader_epoch for it in headers(raw(at_once, at_once.start_offset))} <= {EPOCH}
        assert at_once.epochs.latest in (-1, EPOCH)
        again = reopened(f"{path}/b", start=at_once.start_offset)
        assert content(again) == content(at_once)


@given(st.lists(steps, min_size=1, max_size=20), st.data())
@settings(max_examples=60, deadline=None)
def test_a_follower_of_a_mirror_is_the_same_log(history: list[Step], data: st.DataObject) -> None:
    with scratch() as path:
        gone = data.draw(st.sets(st.integers(0, len(history) - 1), max_size=len(history) // 2))
        source = source_of(path, history, gone=gone)
        leader, follower = new_log(f"{path}/a", MIRROR), new_log(f"{path}/b", MIRROR)
        for number in range(len(source.batches)):
            mirror(leader, source.joined(number, number + 1))
            if follower.next_offset < leader.start_offset:
                follower.truncate_fully_and_start_at(leader.start_offset)
            follower.append_as_follower(memoryview(raw(leader, follower.next_offset)))
        assert content(follower) == content(leader)
        assert raw(follower, follower.start_offset) == raw(leader, leader.start_offset)
        if leader.next_offset:
            assert follower.end_offset_for(EPOCH) == leader.end_offset_for(EPOCH)


def test_an_epoch_begins_where_the_log_ended_also_before_a_gap(tmp_path: Path) -> None:
    """Else a follower that has more of the epoch before would not be cut."""
    leader, follower = new_log(tmp_path / "a", MIRROR), new_log(tmp_path / "b", MIRROR)
    put(leader, b"0", epoch=1)
    leader.append_mirrored(at(50, b"1"), 1, 2)
    follower.append_as_follower(memoryview(raw(leader)))
    for log in (leader, follower):
        assert log.end_offset_for(1) == (1, 1)
        assert log.end_offset_for(2) == (2, 51)


@pytest.mark.parametrize("first", [500, 5_000_000_000])
def test_an_empty_mirror_begins_where_the_source_does(tmp_path: Path, first: int) -> None:
    log = new_log(tmp_path)
    mirror(log, at(first, b"a", b"b"))
    mirror(log, at(first + 10, b"c"))
    assert (log.start_offset, log.next_offset) == (first, first + 11)
    again = reopened(tmp_path, Ending.PROCESS_CRASH, 0)
    assert (again.start_offset, again.next_offset) == (first, first + 11)
    assert [it.base_offset for it in headers(raw(again, first))] == [first, first + 10]


def test_a_gap_that_no_segment_can_hold_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"0")
    with pytest.raises(InvalidRecord, match="too far for a segment"):
        mirror(log, at((1 << 31) + 1, b"1"))
    assert log.next_offset == 1
    mirror(log, at(1 << 31, b"1"))
    assert [it.base_offset for it in headers(raw(log))] == [0, 1 << 31]


def test_what_comes_before_must_be_there(tmp_path: Path) -> None:
    """Two requests that change places lose nothing, also where gaps are allowed."""
    log = new_log(tmp_path)
    with pytest.raises(OffsetOutOfRange, match="what comes before 500 was not sent"):
        mirror(log, at(510, b"b"), continues_at=500)
    mirror(log, at(490, b"a"))  # the source has nothing before
    with pytest.raises(OffsetOutOfRange, match="ends at offset 491"):
        mirror(log, at(510, b"b"), continues_at=500)
    mirror(log, at(510, b"b"), continues_at=491)
    mirror(log, at(490, b"a"), continues_at=100)
    assert [it.base_offset for it in headers(raw(log, 490))] == [490, 510]


def refusal(log: Log, data: bytes, kind: type[Exception]) -> str:
    before = content(log)
    with pytest.raises(kind) as refused:
        mirror(log, memoryview(bytearray(data)))
    assert content(log) == before, "nothing was written"
    return str(refused.value)


def test_what_is_no_continuation_is_refused_and_nothing_of_it_written(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    mirror(log, at(0, b"a", b"b", b"c"))
    good = bytes(at(3, b"d"))
    straddling = bytes(at(2, b"c", b"d"))
    damaged = bytearray(at(4, b"e"))
    damaged[-1] ^= 1
    backwards = bytes(at(9, b"f")) + bytes(at(5, b"e"))

    assert "inside the batch 2..3" in refusal(log, straddling, InvalidRecord)
    assert "checksum" in refusal(log, good + damaged, CorruptBatch)
    assert "where 10 is next" in refusal(log, backwards, InvalidRecord)
    assert "10 bytes are left" in refusal(log, good + good[:10], CorruptBatch)
    assert "magic" in refusal(log, good + bytes(80), CorruptBatch)
    assert InvalidRecord("").code is ErrorCode.INVALID_RECORD


def test_a_full_disk_takes_what_it_can_and_the_rest_comes_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, disk)
    source = source_of(tmp_path, [lambda log: put(log, b"v" * 200)] * 9)
    disk.fault = failing("write", 28, after=3)
    with pytest.raises(DiskFull):
        mirror(log, source.joined(0, 9))
    kept = log.next_offset
    disk.fault = lambda _call, _size: None
    mirror(log, source.joined(0, 9))
    assert 0 < kept < 9
    assert without_epochs(raw(log)) == without_epochs(b"".join(source.batches))


# Promotion -------------------------------------------------------------------------------------


def promote(log: Log, number: int = 5) -> None:
    log.promote(number, leader_epoch=EPOCH, now_ms=NOW_MS)


def opened_source(tmp_path: Path) -> Source:
    """Producers 1 and 2 have transactions open, 3 has none."""
    history = [_begin(1), _begin(3), _end(3, ControlType.COMMIT), _begin(2), _begin(1)]
    return source_of(tmp_path, history)


def test_promotion_aborts_what_is_open_and_forgets_all_producers(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    source = opened_source(tmp_path)
    mirror(log, source.joined(0, 5))
    ended_at = log.next_offset
    promote(log)

    assert [(it.producer_id, it.first_offset) for it in log.aborted_transactions(0, ended_at)] == [
        (1, 0),
        (2, 5),
    ]
    assert log.last_stable_offset(log.next_offset) == log.next_offset
    assert len(log.producers) == 0
    assert log.is_promoted(5)
    assert not log.is_promoted(6)
    data = memoryview(raw(log, ended_at))
    kinds = [_kind(data[at : at + it.size_bytes], it) for at, it in iter_headers(data)]
    assert kinds == [(1, ControlType.ABORT), (2, ControlType.ABORT), Promotion(TOPIC_ID, 5)]


def _kind(data: memoryview, header: BatchHeader) -> object:
    marker = decode_marker(data, header)
    if marker is not None:
        return header.producer_id, marker.type
    return decode_promotion(data, header)


@pytest.mark.parametrize("ending", [Ending.CLEAN, Ending.PROCESS_CRASH])
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_promotion_outlives_any_restart(
    tmp_path: Path, ending: Ending, with_snapshot: bool
) -> None:
    log = new_log(tmp_path)
    mirror(log, opened_source(tmp_path).joined(0, 5))
    promote(log)
    send(log, 7, producer=1, txn=True)  # a producer of the target's own, by chance with the same id
    if with_snapshot:
        log.roll()
    send(log, 8, producer=1, txn=True)
    expected = described(log), log.producers.promotion, log.first_unstable_offset
    if ending is Ending.CLEAN:
        log.close()
        if not with_snapshot:
            (tmp_path / "t/partition-0/producers.snapshot").unlink()
    again = reopened(tmp_path, ending)
    assert (described(again), again.producers.promotion, again.first_unstable_offset) == expected
    assert again.is_promoted(5)


@pytest.mark.parametrize("cut_to", [0, 1, 2, 3])
def test_a_promotion_that_was_torn_is_made_again(tmp_path: Path, cut_to: int) -> None:
    log = new_log(tmp_path)
    mirror(log, opened_source(tmp_path).joined(0, 5))
    ended_at = log.next_offset
    promote(log)
    log.truncate_to(ended_at + cut_to)
    assert log.is_promoted(5) == (cut_to == 3)
    if cut_to < 3:
        promote(log)
    assert log.next_offset == ended_at + 3
    assert log.is_promoted(5)
    assert len(log.producers) == 0
    assert len(log.aborted_transactions(0, ended_at)) == 2


def test_a_source_that_was_promoted_itself_does_not_promote_its_mirror(tmp_path: Path) -> None:
    first = new_log(tmp_path / "first")
    first.topic_id = type(TOPIC_ID)(bytes(16))
    mirror(first, opened_source(tmp_path).joined(0, 5))
    promote(first)
    send(first, 0, producer=1, txn=True)
    second = new_log(tmp_path / "second")
    mirror(second, memoryview(bytearray(raw(first))))
    assert described(second) == described(first), "what the source forgot is forgotten"
    assert not second.is_promoted(5)
    promote(second)
    assert second.is_promoted(5)
    assert second.first_unstable_offset is None


def test_a_client_may_write_with_any_sequence_after_it(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    mirror(log, opened_source(tmp_path).joined(0, 5))
    promote(log)
    send(log, 0, producer=1, epoch=0)
    send(log, 0, producer=2, epoch=0, txn=True)
    assert sorted(producer_id for producer_id, _ in log.producers) == [1, 2]


def test_a_snapshot_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    """Written by hand, as brokers wrote it before there were promotions."""
    log = new_log(tmp_path)
    send(log, 0)
    ((section, now),) = snapshot.decode(
        snapshot.encode([snapshot.section_of(1, Mark(1, 2), log.producers, {}, 0)])
    )
    before = now[:24] + now[48:]
    body = b"\x00\x02" + before + before
    data = b"PSNP\x00\x01" + crc32c(body).to_bytes(4, "big") + body
    assert [(found.offset, found.promotion, bits) for found, bits in snapshot.decode(data)] == [
        (section.offset, None, now)
    ] * 2
