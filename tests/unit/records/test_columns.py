"""Columns hold what the plain decoder reads, of any batches, in chunks of any size."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptBatch
from penstock.records.batch import TimestampType, parse_header, split_batches
from penstock.records.builder import build_batch
from penstock.records.columns import (
    MAX_BYTES,
    BinaryColumn,
    ColumnDecoder,
    Columns,
    Wanted,
    as_utf8,
)
from penstock.records.compression import Codec
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record, decode_records
from tests.unit.records.batches import codecs, record_lists

EVERYTHING = Wanted(key=True, value=True, headers=True)
END = (1 << 63) - 1


class Row(NamedTuple):
    record: Record
    timestamp_type: int


def cells(column: BinaryColumn) -> list[bytes | None]:
    assert column.ends.dtype == np.int32
    assert column.ends[0] == 0
    assert column.ends[-1] == len(column.data)
    data = column.data.tobytes()
    return [
        data[start:end] if valid else None
        for (start, end), valid in zip(pairwise(column.ends.tolist()), column.valid, strict=True)
    ]


def rows_of(columns: Columns) -> list[Row]:
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    names, values = cells(columns.headers.key), cells(columns.headers.value)
    entries = [
        (name.decode(), value)
        for name, value in zip(names, values, strict=True)
        if name is not None
    ]
    headers = [tuple(entries[a:b]) for a, b in pairwise(columns.headers.ends.tolist())]
    fields = (columns.offset.tolist(), columns.timestamp_ms.tolist(), cells(columns.key))
    records = zip(*fields, cells(columns.value), headers, strict=True)
    types = columns.timestamp_type.tolist()
    return [Row(Record(*record), kind) for record, kind in zip(records, types, strict=True)]


def decoded(
    data: bytes | bytearray,
    from_offset: int = 0,
    upto_offset: int = END,
    *,
    aborted: Sequence[tuple[int, int]] = (),
    read_committed: bool = False,
    **limits: int,
) -> tuple[list[Row], int]:
    """The rows, and where to read on."""
    decoder = ColumnDecoder(EVERYTHING, read_committed=read_committed)
    rows: list[Row] = []
    for chunk in decoder.decode(
        memoryview(data),
        from_offset=from_offset,
        upto_offset=upto_offset,
        aborted=aborted,
        **limits,
    ):
        assert 0 < chunk.count <= limits.get("max_rows", END)
        rows += rows_of(chunk)
        assert rows[-1].record.offset < decoder.next_offset
    return rows, decoder.next_offset


def plainly(data: bytes | bytearray, from_offset: int = 0, upto_offset: int = END) -> list[Row]:
    """The twin: record by record, in Python."""
    return [
        Row(record, header.timestamp_type)
        for header, batch in split_batches(memoryview(data))
        if not header.is_control
        for record in decode_records(batch, header)
        if from_offset <= record.offset < upto_offset
    ]


@st.composite
def logs(draw: st.DrawFn) -> bytearray:
    """Batches one after another, of any codec and clock, with holes between and within them."""
    data, next_offset = bytearray(), draw(st.integers(0, 3) | st.integers(0, 1 << 62))
    for _ in range(draw(st.integers(1, 5))):
        base_offset = next_offset + draw(st.sampled_from((0, 0, 0, 1, 1000)))
        records = draw(record_lists(max_size=6, base_offset=base_offset))
        last_delta = len(records) - 1 + draw(st.sampled_from((0, 0, 5, 1 << 20)))
        data += build_batch(
            [record for record in records if draw(st.integers(0, 4))],
            base_offset=base_offset,
            codec=draw(codecs),
            append_time_ms=draw(st.none() | st.integers(-1, 1 << 45)),
            delete_horizon_ms=draw(st.none() | st.none() | st.integers(0, 1 << 45)),
            last_offset_delta=last_delta,
        )
        next_offset = base_offset + last_delta + 1
    return data


@given(logs(), st.integers(1, 8), st.integers(1, 600))
def test_columns_hold_what_the_plain_decoder_reads(
    data: bytearray, max_rows: int, max_bytes: int
) -> None:
    rows, next_offset = decoded(data)
    assert rows == plainly(data)
    assert next_offset == [header.next_offset for header, _ in split_batches(memoryview(data))][-1]
    assert decoded(data, max_rows=max_rows, max_bytes=max_bytes) == (rows, next_offset)


@given(logs(), st.data())
def test_a_range_gives_its_rows_and_says_where_to_read_on(
    data: bytearray, choice: st.DataObject
) -> None:
    headers = [header for header, _ in split_batches(memoryview(data))]
    first, last = headers[0].base_offset, headers[-1].last_offset
    edges = st.sampled_from([h.base_offset for h in headers] + [h.last_offset for h in headers])
    offsets = st.integers(max(0, first - 2), last + 2) | edges
    from_offset, upto_offset = sorted((choice.draw(offsets), choice.draw(offsets)))
    rows, next_offset = decoded(data, from_offset, upto_offset)
    assert rows == plainly(data, from_offset, upto_offset)
    assert next_offset == max(from_offset, min(upto_offset, last + 1))


@given(logs(), st.data())
def test_a_partial_batch_at_the_end_waits_for_the_next_fetch(
    data: bytearray, choice: st.DataObject
) -> None:
    cut = choice.draw(st.integers(0, len(data)))
    whole = list(split_batches(memoryview(data)[:cut]))
    from_offset = parse_header(data).base_offset
    rows, next_offset = decoded(data[:cut], from_offset)
    assert rows == plainly(data[:cut])
    assert next_offset == (whole[-1][0].next_offset if whole else from_offset)
    start = sum(header.size_bytes for header, _ in whole)
    assert rows + decoded(data[start:], next_offset)[0] == plainly(data)


@given(logs(), st.integers(1, 4))
def test_who_stops_after_a_chunk_goes_on_where_it_ended(data: bytearray, max_rows: int) -> None:
    decoder = ColumnDecoder(EVERYTHING, read_committed=True)
    rows: list[Row] = []
    next_offset = 0
    while chunk := next(
        decoder.decode(memoryview(data), from_offset=next_offset, max_rows=max_rows), None
    ):
        rows += rows_of(chunk)
        next_offset = decoder.next_offset
    assert rows == plainly(data)


class History(NamedTuple):
    """Transactions of some producers side by side, and what came of them."""

    batches: list[bytearray]
    committed: set[int]
    aborted: list[tuple[int, int, int]]  # producer, first offset, marker's offset


@st.composite
def histories(draw: st.DrawFn) -> History:
    batches, committed, aborted = [], set(), []
    pending: dict[int, list[int]] = {}
    offset = 0
    for _ in range(draw(st.integers(1, 25))):
        producer = draw(st.integers(1, 3))
        options: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0}
        action = draw(st.sampled_from(("data", "data", "plain", "end")))
        if action == "end" and producer in pending:
            kind, offsets = draw(st.sampled_from(ControlType)), pending.pop(producer)
            marker = build_marker(EndMarker(kind, 0), timestamp_ms=5, base_offset=offset, **options)
            if draw(st.booleans()) and draw(st.booleans()):  # emptied by compaction
                marker = build_batch(
                    (), base_offset=offset, transactional=True, control=True, last_offset_delta=0,
                    **options,
                )  # fmt: skip
            batches.append(marker)
            if kind is ControlType.COMMIT:
                committed |= set(offsets)
            else:
                aborted.append((producer, offsets[0], offset))
            offset += 1
        elif action in ("data", "plain"):
            offsets = list(range(offset, offset + draw(st.integers(1, 3))))
            transactional = action == "data"
            records = [Record(o, 5, None, b"%d" % o) for o in offsets]
            codec = draw(codecs)
            batches.append(
                build_batch(
                    records, base_offset=offset, codec=codec, transactional=transactional,
                    base_sequence=0, **options,
                )
            )  # fmt: skip
            if transactional:
                pending.setdefault(producer, []).extend(offsets)
            else:
                committed |= set(offsets)
            offset = offsets[-1] + 1
    for (
        offsets
    ) in pending.values():  # what is open lies past the last stable offset; here it counts
        committed |= set(offsets)
    return History(batches, committed, aborted)


@given(histories(), st.data())
def test_readers_of_committed_records_see_no_aborted_one(
    history: History, choice: st.DataObject
) -> None:
    skipped = choice.draw(st.integers(0, max(0, len(history.batches) - 1)))
    data = b"".join(history.batches[skipped:])
    from_offset = parse_header(data).base_offset if data else 0
    aborted = [(who, first) for who, first, marker in history.aborted if marker >= from_offset]
    aborted = choice.draw(st.permutations(aborted))
    rows, next_offset = decoded(data, from_offset, aborted=aborted, read_committed=True)
    everything, same = decoded(data, from_offset, aborted=aborted, read_committed=False)
    assert everything == plainly(data)
    assert next_offset == same
    assert [row.record.offset for row in rows] == [
        row.record.offset for row in everything if row.record.offset in history.committed
    ]


def test_what_gives_no_row_is_passed_all_the_same() -> None:
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    data = build_batch(
        [Record(3, 1, None, b"x")], base_offset=3, transactional=True, base_sequence=0, **options
    )
    data += build_marker(EndMarker(ControlType.ABORT, 0), timestamp_ms=1, base_offset=4, **options)
    data += build_batch([], base_offset=10, last_offset_delta=9)
    assert decoded(data, 3, aborted=[(7, 3)], read_committed=True) == ([], 20)


def test_only_what_was_asked_for_is_copied() -> None:
    data = build_batch([Record(0, 1, b"k", b"v", (("h", b"x"),))])
    (chunk,) = ColumnDecoder(Wanted(False, False), read_committed=False).decode(
        memoryview(data), from_offset=0
    )
    assert (chunk.key, chunk.value, chunk.headers) == (None, None, None)
    assert chunk.offset.tolist() == [0]
    assert chunk.timestamp_type.tolist() == [TimestampType.CREATE_TIME]


def test_a_row_larger_than_a_chunk_comes_alone() -> None:
    values = (b"a", b"b" * 1000, b"c", b"d")
    data = build_batch([Record(i, 1, None, value) for i, value in enumerate(values)])
    decoder = ColumnDecoder(read_committed=False)
    chunks = decoder.decode(memoryview(data), from_offset=0, max_bytes=100)
    assert [chunk.offset.tolist() for chunk in chunks] == [[0], [1], [2, 3]]


def test_many_small_compressed_batches_come_in_one_chunk() -> None:
    data = b"".join(
        build_batch([Record(i, 1, None, b"v")], base_offset=i, codec=Codec((i + 1) % 5))
        for i in range(50)
    )
    decoder = ColumnDecoder(read_committed=False)
    assert [chunk.count for chunk in decoder.decode(memoryview(data), from_offset=0)] == [50]


def test_chunks_stay_as_they_are_when_the_buffer_is_used_again() -> None:
    data = build_batch([Record(0, 1, b"k", b"value", (("h", b"x"),))])
    expected = plainly(data)
    decoder = ColumnDecoder(EVERYTHING, read_committed=False)
    (chunk,) = decoder.decode(memoryview(data), from_offset=0)
    data[:] = bytes(len(data))
    assert rows_of(chunk) == expected


def test_a_header_key_that_is_not_utf8_gets_the_replacement_character() -> None:
    header = ("a\udcffb", b"x")
    data = build_batch([Record(0, 1, None, None, (header, ("é", None)))])
    ((record, _),), _ = decoded(data)
    assert record.headers == (("a\ufffdb", b"x"), ("é", None))


@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(str.encode), max_size=6))
def test_a_column_made_utf8_holds_what_was_utf8(values: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    data = np.frombuffer(b"".join(values), np.uint8)
    column = as_utf8(BinaryColumn(ends, data, np.ones(len(values), np.bool_)))
    assert cells(column) == [value.decode(errors="replace").encode() for value in values]


@pytest.mark.parametrize("limits", [(0, 1), (1, 0), (1, MAX_BYTES + 1)])
def test_a_chunk_has_room_for_something_and_fits_in_arrow(limits: tuple[int, int]) -> None:
    decoder = ColumnDecoder(read_committed=False)
    with pytest.raises(ValueError, match="chunks of"):
        decoder.decode(memoryview(b""), from_offset=0, max_rows=limits[0], max_bytes=limits[1])


def test_a_large_fetch_is_read_like_a_small_one() -> None:
    dice = random.Random(6)
    data, offset = bytearray(), 0
    for _ in range(40):
        records = [
            Record(
                offset + i, dice.randrange(1 << 41), dice.randbytes(i % 9), dice.randbytes(i % 300)
            )
            for i in range(dice.randrange(1, 400))
        ]
        data += build_batch(records, base_offset=offset, codec=Codec(dice.randrange(5)))
        offset += len(records)
    assert decoded(data) == (plainly(data), offset)
    assert decoded(data, max_rows=1000, max_bytes=50_000) == (plainly(data), offset)


def test_the_error_says_where() -> None:
    good = build_batch([Record(0, 1, None, b"v")])
    bad = build_batch([Record(1, 1, None, b"v")], base_offset=1)
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch, match="batch at offset 1: checksum"):
        decoded(good + bad)
    assert decoded(good + bad, upto_offset=1) == (plainly(good), 1)
