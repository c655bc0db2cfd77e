"""Compaction beside a naive one; and the rules that a naive one does not have."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    parse_header,
    renew_checksum,
    split_batches,
    verify,
)
from penstock.records.builder import build_batch
from penstock.records.compaction import (
    AbortedRange,
    OffsetMap,
    ProducerTail,
    Rules,
    Statistics,
    Transactions,
    compact,
)
from penstock.records.compression import Codec
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record, decode_records
from tests.unit.records.histories import History, Step, steps
from tests.unit.records.peers import MemoryRecords

RETENTION_MS = 100


@dataclass
class Cleaner:
    """Rounds of compaction over a history, as the worker runs them, without files."""

    history: History
    log: list[bytearray] = field(default_factory=list)
    taken: int = 0  # batches of the history that are in the log
    first_dirty_offset: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def round(self, upto_offset: int, now_ms: int, max_keys: int = 1_000) -> None:
        self.log += self.history.batches[self.taken :]
        self.taken = len(self.history.batches)
        rules = Rules(now_ms, RETENTION_MS, upto_offset, self.history.tails, {upto_offset})
        below = [batch for batch in self.log if parse_header(batch).next_offset <= upto_offset]
        latest = OffsetMap(max_keys)
        latest.fill(
            _split(below), Transactions(self.history.aborted), self.first_dirty_offset, rules
        )
        transactions = Transactions(self.history.aborted)
        left = compact(_split(below), latest, transactions, rules, self.statistics)
        self.log = [bytearray(batch) for _, batch in left] + self.log[len(below) :]
        self.first_dirty_offset = latest.upto_offset

    def headers(self) -> list[BatchHeader]:
        return [verify(memoryview(batch)) for batch in self.log]

    def records(self) -> list[Record]:
        return [
            record
            for batch in self.log
            if not parse_header(batch).is_control
            for record in decode_records(batch)
        ]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]


def _split(batches: list[bytearray]) -> list[tuple[BatchHeader, memoryview]]:
    return [(parse_header(batch), memoryview(batch)) for batch in batches]


@dataclass
class Naive:
    """A dict of the latest record per key, over all that was ever written."""

    history: History
    horizons: dict[int, int] = field(default_factory=dict)  # by the batch's base offset
    dropped: set[int] = field(default_factory=set)

    def round(self, upto_offset: int, clean_upto: int, now_ms: int) -> list[Record]:
        history = self.history
        latest: dict[bytes, int] = {}
        for offset, record in history.records.items():
            if (
                offset < clean_upto
                and offset not in history.aborted_offsets
                and record.key is not None
            ):
                latest[record.key] = offset
        for offset, record in history.records.items():
            if offset < upto_offset and not self._stays(record, latest, clean_upto, now_ms):
                self.dropped.add(offset)
        for batch in history.batches:
            header = parse_header(batch)
            offsets = range(header.base_offset, header.next_offset)
            if header.next_offset <= upto_offset and any(map(self._is_live_tombstone, offsets)):
                self.horizons.setdefault(header.base_offset, now_ms + RETENTION_MS)
        return [record for offset, record in history.records.items() if offset not in self.dropped]

    def _stays(
        self, record: Record, latest: dict[bytes, int], clean_upto: int, now_ms: int
    ) -> bool:
        if record.offset in self.history.aborted_offsets:
            return False
        if record.offset >= clean_upto:
            return True
        if record.key is None or latest[record.key] != record.offset:
            return False
        if record.value is not None:
            return True
        horizon_ms = self.horizons.get(self._base_offset(record.offset))
        return horizon_ms is None or now_ms < horizon_ms

    def _is_live_tombstone(self, offset: int) -> bool:
        record = self.history.records.get(offset)
        return record is not None and record.value is None and offset not in self.dropped

    def _base_offset(self, offset: int) -> int:
        return max(
            base
            for base in (parse_header(b).base_offset for b in self.history.batches)
            if base <= offset
        )


@given(
    st.lists(st.tuples(steps, st.integers(0, 120), st.integers(1, 8)), min_size=1, max_size=4),
    st.data(),
)
def test_what_is_left_is_what_a_naive_compaction_leaves(
    rounds: list[tuple[list[Step], int, int]], data: st.DataObject
) -> None:
    history, now_ms = History(), 1_000
    cleaner, naive = Cleaner(history), Naive(history)
    upto_offset = 0
    for written, wait_ms, max_keys in rounds:
        for step in written:
            history.append(step)
        now_ms += wait_ms
        ends = [end for end in history.boundaries() if end >= upto_offset]
        if not ends:
            continue
        upto_offset = data.draw(st.sampled_from(ends))
        cleaner.round(upto_offset, now_ms, max_keys)
        expected = naive.round(upto_offset, cleaner.first_dirty_offset, now_ms)
        assert cleaner.records() == expected
        _check_headers(cleaner, upto_offset)
        _check_readers(cleaner)
    assert cleaner.statistics.unreadable_batches == 0


def _check_headers(cleaner: Cleaner, upto_offset: int) -> None:
    """Batches stay where they were; those that something hangs on are all there."""
    history, headers = cleaner.history, cleaner.headers()
    original = {header.base_offset: header for header in map(parse_header, history.batches)}
    for header in headers:
        before = original[header.base_offset]
        assert header.last_offset == before.last_offset
        assert header[9:12] == before[9:12]  # producer id, epoch, sequence
        assert header.leader_epoch == before.leader_epoch
        assert header.attributes & 0x38 == before.attributes & 0x38
        if header.record_count:
            assert header.codec == before.codec
        else:
            assert header.size_bytes == HEADER_SIZE
    assert upto_offset in {header.next_offset for header in headers}
    last_offsets = {header.last_offset for header in headers}
    for tail in history.tails.values():
        assert tail.last_data_offset is None or tail.last_data_offset in last_offsets
    _check_markers(history, headers)


def _check_markers(history: History, headers: list[BatchHeader]) -> None:
    """A transaction that has data left has its marker left."""
    left = {header.last_offset for header in headers if header.is_control}
    markers = [h for h in map(parse_header, history.batches) if h.is_control]
    for header in headers:
        if header.is_transactional and not header.is_control:
            ends = [
                marker.last_offset
                for marker in markers
                if marker.producer_id == header.producer_id
                and marker.last_offset > header.last_offset
            ]
            assert not ends or ends[0] in left


def _check_readers(cleaner: Cleaner) -> None:
    """kafka-python reads the same, and so does who splits the bytes."""
    data = b"".join(cleaner.log)
    assert [batch for _, batch in split_batches(memoryview(data))] == cleaner.log
    peer, read = MemoryRecords(data), []
    while peer.has_next():
        batch = peer.next_batch()
        assert batch.validate_crc()
        if not batch.is_control_batch:
            read += [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == cleaner.records()


@given(steps, st.data())
def test_a_second_round_at_the_same_time_takes_no_record_more(
    written: list[Step], data: st.DataObject
) -> None:
    history = History()
    for step in written:
        history.append(step)
    if not (ends := history.boundaries()):
        return
    upto_offset = data.draw(st.sampled_from(ends))
    cleaner = Cleaner(history)
    cleaner.round(upto_offset, 1_000)
    before = cleaner.records()
    cleaner.round(upto_offset, 1_000)
    assert cleaner.records() == before
    again = list(cleaner.log)
    cleaner.round(upto_offset, 1_000)
    assert cleaner.log == again


@given(steps)
def test_in_the_end_every_marker_without_data_is_gone(written: list[Step]) -> None:
    history = History()
    for step in written:
        history.append(step)
    history.append(Step(-1, False, None, Codec.NONE, [(b"last", b"x", 0)]))
    history.tails = {}
    upto_offset = history.last_stable_offset
    if upto_offset not in history.boundaries():
        return
    cleaner = Cleaner(history)
    for now_ms in (1_000, 2_000, 3_000, 4_000):
        cleaner.round(upto_offset, now_ms)
    headers = [header for header in cleaner.headers() if header.next_offset < upto_offset]
    for marker in headers:
        if marker.is_control:
            previous = _previous_marker_offset(history, marker)
            assert any(
                header.producer_id == marker.producer_id
                and previous < header.base_offset < marker.base_offset
                for header in headers
            )
    assert all(header.record_count for header in headers)


def _previous_marker_offset(history: History, marker: BatchHeader) -> int:
    return max(
        (
            header.base_offset
            for header in map(parse_header, history.batches)
            if header.is_control
            and header.producer_id == marker.producer_id
            and header.base_offset < marker.base_offset
        ),
        default=-1,
    )


# Scenarios -------------------------------------------------------------------------------------


def _history(
    *entries: Sequence[tuple[bytes | None, bytes | None, int]], codec: Codec = Codec.NONE
) -> History:
    history = History()
    for entry in entries:
        history.append(Step(-1, False, None, codec, list(entry)))
    return history


@pytest.mark.parametrize("codec", Codec)
def test_survivors_keep_their_offsets_and_the_batch_its_extent(codec: Codec) -> None:
    history = _history(
        [(b"a", b"1", 10), (b"b", b"1", 30), (b"a", b"2", 20)], [(b"c", b"1", 5)], codec=codec
    )
    cleaner = Cleaner(history)
    cleaner.round(4, 1_000)
    assert cleaner.offsets() == [1, 2, 3]
    first, second = cleaner.headers()
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 2, 2)
    assert (first.first_timestamp_ms, first.max_timestamp_ms) == (10, 30)
    assert cleaner.log[1] == history.batches[1]  # untouched, byte for byte
    assert second.record_count == 1


def test_the_largest_timestamp_is_that_of_the_survivors_unless_the_broker_set_it() -> None:
    records = [Record(0, 99, b"a", b"1"), Record(1, 7, b"b", b"1"), Record(2, 8, b"a", b"2")]
    for append_time_ms, expected in ((None, 8), (500, 500)):
        history = History(next_offset=3)
        history.batches.append(build_batch(records, append_time_ms=append_time_ms))
        cleaner = Cleaner(history)
        cleaner.round(3, 1_000)
        assert cleaner.headers()[0].max_timestamp_ms == expected
        assert cleaner.offsets() == [1, 2]


def test_a_tombstone_goes_when_its_retention_since_the_first_cleaning_is_over() -> None:
    history = _history([(b"a", b"1", 1)], [(b"a", None, 2), (b"b", b"1", 3)], [(b"c", b"1", 4)])
    cleaner = Cleaner(history)
    cleaner.round(4, 1_000)
    assert cleaner.offsets() == [1, 2, 3]
    header = cleaner.headers()[0]
    assert header.delete_horizon_ms == 1_000 + RETENTION_MS
    assert [record.timestamp_ms for record in cleaner.records()] == [2, 3, 4]
    cleaner.round(4, 1_000 + RETENTION_MS - 1)
    assert cleaner.offsets() == [1, 2, 3]
    assert cleaner.headers()[0].delete_horizon_ms == 1_000 + RETENTION_MS  # it is not put off
    cleaner.round(4, 1_000 + RETENTION_MS)
    assert cleaner.offsets() == [2, 3]
    assert cleaner.headers()[0].base_offset == 1


def test_aborted_records_go_and_their_marker_one_retention_later() -> None:
    history = History()
    for step in (
        Step(1, True, None, Codec.NONE, [(b"a", b"1", 1)]),
        Step(1, True, ControlType.ABORT, Codec.NONE, []),
        Step(1, True, None, Codec.NONE, [(b"a", b"2", 2)]),
        Step(1, True, ControlType.COMMIT, Codec.NONE, []),
        Step(-1, False, None, Codec.NONE, [(b"z", b"1", 3)]),
    ):
        history.append(step)
    cleaner = Cleaner(history)

    def markers() -> list[int]:
        return [header.base_offset for header in cleaner.headers() if header.is_control]

    cleaner.round(5, 1_000)
    assert (cleaner.offsets(), markers()) == ([2, 4], [1, 3])
    cleaner.round(5, 2_000)  # now there is nothing before it: its horizon begins
    assert [h.delete_horizon_ms for h in cleaner.headers()] == [
        2_000 + RETENTION_MS,
        None,
        None,
        None,
    ]
    cleaner.round(5, 2_000 + RETENTION_MS)
    assert (cleaner.offsets(), markers()) == ([2, 4], [3])


def test_a_marker_without_data_goes_though_its_producer_has_data_elsewhere() -> None:
    history = History()
    history.append(Step(1, True, None, Codec.NONE, [(b"a", b"1", 1)]))
    history.append(Step(1, True, ControlType.COMMIT, Codec.NONE, []))
    history.append(Step(1, True, ControlType.COMMIT, Codec.NONE, []))
    history.append(Step(-1, False, None, Codec.NONE, [(b"z", b"1", 3)]))
    cleaner = Cleaner(history)
    for now_ms in (1_000, 2_000):
        cleaner.round(4, now_ms)
    assert [header.base_offset for header in cleaner.headers()] == [0, 1, 3]


def test_an_aborted_record_does_not_stand_in_for_an_older_committed_one() -> None:
    history = _history([(b"a", b"1", 1)])
    history.append(Step(1, True, None, Codec.NONE, [(b"a", b"2", 1)]))
    history.append(Step(1, True, ControlType.ABORT, Codec.NONE, []))
    cleaner = Cleaner(history)
    cleaner.round(3, 1_000)
    assert cleaner.offsets() == [0]


def test_the_index_of_aborted_transactions_keeps_those_that_had_data() -> None:
    aborted = [AbortedRange(1, 0, 1), AbortedRange(2, 2, 3)]
    transactions = Transactions(aborted)
    data = build_batch([Record(0, 0, b"a", b"")], producer_id=1, transactional=True)
    assert transactions.saw_data(parse_header(data))
    for pid, offset, discardable in ((1, 1, False), (2, 3, True)):
        marker = build_marker(
            EndMarker(ControlType.ABORT, 0),
            producer_id=pid,
            producer_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )
        assert transactions.saw_marker(parse_header(marker)) is discardable
    assert transactions.kept == aborted[:1]


def test_the_last_batch_of_an_active_producer_stays_as_an_empty_one() -> None:
    history = History()
    history.append(Step(1, False, None, Codec.GZIP, [(b"a", b"1", 9), (b"b", b"1", 8)]))
    history.append(Step(-1, False, None, Codec.NONE, [(b"a", b"2", 1), (b"b", b"2", 1)]))
    cleaner = Cleaner(history)
    cleaner.round(4, 1_000)
    empty = cleaner.headers()[0]
    assert (empty.size_bytes, empty.record_count, empty.codec) == (HEADER_SIZE, 0, Codec.NONE)
    assert (empty.base_offset, empty.last_offset, empty.last_sequence) == (0, 1, 1)
    assert (empty.first_timestamp_ms, empty.max_timestamp_ms) == (-1, 9)
    history.tails[1] = ProducerTail(0, 7)  # it went on: nothing hangs on this batch any more
    cleaner.round(4, 1_000)
    assert [header.base_offset for header in cleaner.headers()] == [2]


def test_a_marker_that_carries_a_producers_epoch_stays() -> None:
    history = History()
    history.append(Step(1, True, ControlType.COMMIT, Codec.NONE, []))
    history.append(Step(-1, False, None, Codec.NONE, [(b"a", b"2", 1)]))
    cleaner = Cleaner(history)
    for now_ms in (1_000, 2_000, 3_000):
        cleaner.round(2, now_ms)
    marker = cleaner.headers()[0]
    assert (marker.is_control, marker.record_count, marker.producer_epoch) == (True, 1, 0)
    history.tails[1] = ProducerTail(1, None)
    cleaner.round(2, 4_000)
    assert [header.base_offset for header in cleaner.headers()] == [1]


def test_the_last_batch_of_a_segment_stays_so_that_it_ends_where_it_ended() -> None:
    history = _history([(b"a", b"1", 1)], [(None, b"x", 1)])
    cleaner = Cleaner(history)
    cleaner.round(2, 1_000)
    assert [(h.base_offset, h.record_count) for h in cleaner.headers()] == [(0, 1), (1, 0)]
    assert cleaner.statistics.keyless_records == 1


def test_a_full_map_ends_the_round_there_and_the_next_goes_on() -> None:
    history = _history(*([(key, b"1", 1)] for key in (b"a", b"b", b"c", b"a", b"b", b"c", b"a")))
    cleaner = Cleaner(history)
    cleaner.round(7, 1_000, max_keys=2)
    assert cleaner.first_dirty_offset == 2
    assert cleaner.offsets() == [0, 1, 2, 3, 4, 5, 6]
    cleaner.round(7, 1_000, max_keys=2)
    assert (cleaner.first_dirty_offset, cleaner.offsets()) == (4, [1, 2, 3, 4, 5, 6])
    for _ in range(2):
        cleaner.round(7, 1_000, max_keys=2)
    assert (cleaner.first_dirty_offset, cleaner.offsets()) == (7, [4, 5, 6])


def test_a_batch_with_more_keys_than_the_map_holds_is_still_cleaned() -> None:
    history = _history([(b"a", b"1", 1), (b"b", b"1", 1), (b"a", b"2", 1)])
    cleaner = Cleaner(history)
    cleaner.round(3, 1_000, max_keys=1)
    assert (cleaner.first_dirty_offset, cleaner.offsets()) == (3, [1, 2])


def _undecodable(kind: str, **header: Any) -> bytearray:
    batch = build_batch([Record(1, 0, b"a", b"old")], base_offset=1, codec=Codec.ZSTD, **header)
    batch[HEADER_SIZE + 2] ^= 0xFF
    if kind == "garbage":
        renew_checksum(memoryview(batch))
    return batch


@pytest.mark.parametrize("kind", ["garbage", "bad checksum"])
def test_a_batch_that_does_not_decode_is_kept_as_it_is_and_counted(kind: str) -> None:
    history = _history([(b"a", b"1", 1)])
    history.batches.append(_undecodable(kind))
    history.next_offset = 2
    history.append(Step(-1, False, None, Codec.NONE, [(b"a", b"2", 1)]))
    cleaner = Cleaner(history)
    cleaner.round(3, 1_000)
    assert cleaner.log == history.batches[1:]
    assert cleaner.statistics.unreadable_batches == 1


def test_damage_in_a_marker_does_not_make_later_committed_records_aborted() -> None:
    history = History()
    for end in (ControlType.ABORT, ControlType.COMMIT):
        history.append(Step(1, True, None, Codec.NONE, [(b"a", b"1", 1)]))
        history.append(Step(1, True, end, Codec.NONE, []))
    history.batches[1][-1] ^= 1
    cleaner = Cleaner(history)
    cleaner.round(4, 1_000)
    assert cleaner.statistics.unreadable_batches == 1
    assert [parse_header(batch).base_offset for batch in cleaner.log] == [1, 2, 3]


def test_what_a_round_read_and_wrote_is_counted() -> None:
    history = _history([(b"a", b"1", 1)], [(b"a", b"2", 1)])
    cleaner = Cleaner(history)
    cleaner.round(2, 1_000)
    assert cleaner.statistics.read_bytes == sum(map(len, history.batches))
    assert cleaner.statistics.written_bytes == len(history.batches[1])
