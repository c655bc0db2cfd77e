"""Records out of a batch and back; and what hostile bytes may do, which is raise CorruptBatch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptBatch
from penstock.records.batch import HEADER_SIZE, parse_header, renew_checksum, verify
from penstock.records.builder import assemble, build_batch, varint
from penstock.records.compression import Codec
from penstock.records.record import (
    VARLONG_BITS,
    Record,
    Span,
    decode_records,
    read_varint,
    records_bytes,
    scan,
)
from tests.unit.records.batches import codecs, producers, record_lists

RECORDS = [Record(i, 1_000, b"k", b"v" * i, (("h", b"x"), ("n", None))) for i in range(3)]


def _around(data: bytes, count: int, codec: Codec = Codec.NONE, last_delta: int = 9) -> bytearray:
    return assemble((0, 0), (codec, last_delta, 0, 0), (-1, -1, -1), count, data)


@given(record_lists(), codecs, producers())
def test_what_was_built_is_read(
    records: list[Record], codec: Codec, producer: dict[str, Any]
) -> None:
    batch = build_batch(records, codec=codec, **producer)
    verify(memoryview(batch))
    assert decode_records(batch) == records


def test_a_batch_keeps_the_holes_in_its_offsets() -> None:
    records = [Record(7, 5, b"a", None), Record(19, 3, None, b"")]
    batch = build_batch(records, base_offset=5, last_offset_delta=20)
    assert decode_records(batch) == records
    assert parse_header(batch).next_offset == 26


def test_a_batch_may_be_empty_when_compaction_made_it_so() -> None:
    batch = build_batch([], base_offset=5, last_offset_delta=20)
    assert decode_records(batch) == []
    assert len(batch) == HEADER_SIZE


def test_timestamps_count_from_the_delete_horizon_when_there_is_one() -> None:
    batch = build_batch(RECORDS, delete_horizon_ms=5_000)
    header = parse_header(batch)
    assert header.delete_horizon_ms == 5_000
    assert header.max_timestamp_ms == 1_000
    assert decode_records(batch) == RECORDS


def test_header_keys_that_are_not_utf8_survive_a_round_trip() -> None:
    data = b"\x00\x00\x00\x01\x01\x02\x04\xff\xfe\x01"
    batch = _around(varint(len(data)) + data, 1)
    records = decode_records(batch)
    assert decode_records(build_batch(records)) == records
    assert build_batch(records, last_offset_delta=9, leader_epoch=0) == batch


@given(st.binary(max_size=300), st.integers(-1, 400), codecs)
def test_garbage_under_a_right_checksum_is_corrupt_and_nothing_else(
    data: bytes, count: int, codec: Codec
) -> None:
    batch = _around(data, count, codec, last_delta=400)
    verify(memoryview(batch))
    try:
        records = decode_records(batch)
    except CorruptBatch:
        return
    assert len(records) == count


@given(record_lists(max_size=4), codecs, st.data())
def test_a_changed_byte_under_a_right_checksum_is_corrupt_or_still_records(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = build_batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    batch = batch[: len(batch) - cut]
    renew_checksum(memoryview(batch))
    try:
        decoded = decode_records(batch)
    except CorruptBatch:
        return
    size = sum(len(r.key or b"") + len(r.value or b"") for r in decoded)
    assert codec or size <= len(batch) - HEADER_SIZE


RECORD = b"\x0c\x00\x00\x00\x01\x01\x00"  # six bytes: null key, null value, no headers


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (RECORD, 2, "2 records in 7 bytes"),
        (RECORD, -1, "-1 records"),
        (RECORD + b"\x00" * 7, 1, "7 bytes are left"),
        (RECORD * 2, 2, "offset delta 0, not in 1 to 9"),
        (b"\x0c\x00\x00\x14\x01\x01\x00", 1, "offset delta 10, not in 0 to 9"),
        (b"\x0c\x00\x00\x01\x01\x01\x00", 1, "offset delta -1"),
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1, "record of 7 bytes at byte 0 of 7"),
        (b"\x0b\x00\x00\x00\x01\x01\x00", 1, "record of -6 bytes"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1, "ends at byte 7, not at 6"),
        (b"\x0c\x00\x00\x00\x64\x01\x00", 1, "runs past the 7"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, "-1 record headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x7e", 1, "63 record headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, "without a key"),
        (b"\x0c\x00\x00\x80\x80\x80\x80\x80\x00", 1, "longer than 32 bits"),
        (b"\x0c\x00\x00\xff\xff\xff\xff\x7f\x00", 1, "larger than 32 bits"),
        (b"\x80" * 20, 1, "longer than 32 bits"),
    ],
)
def test_a_malformed_record_is_corrupt_with_its_reason(
    data: bytes, count: int, reason: str
) -> None:
    with pytest.raises(CorruptBatch, match=reason):
        decode_records(_around(data, count))


def test_a_buffer_shorter_than_a_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="60 bytes"):
        decode_records(bytes(60))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_are_as_long_as_zigzag_makes_them(value: int) -> None:
    encoded = varint(value)
    raw = (value << 1) ^ (value >> 63)
    assert len(encoded) == max(1, -(-raw.bit_length() // 7))
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded)) == raw


def _plain_scan(data: bytes, count: int) -> list[Span]:
    """The twin of the hot loop: every varint through one function."""
    spans, end = [], 0
    for _ in range(count):
        start = end
        length, position = read_varint(data, start)
        end = position + length
        time_delta, position = read_varint(data, position + 1, VARLONG_BITS)
        offset_delta, position = read_varint(data, position)
        length, key = read_varint(data, position)
        key_end = key + length if length >= 0 else -1
        length, value = read_varint(data, max(key, key_end))
        value_end = value + length if length >= 0 else -1
        header_count, headers = read_varint(data, max(value, value_end))
        fields = (time_delta, offset_delta, key, key_end, value, value_end, headers, header_count)
        spans.append(Span(start, end, *fields))
    return spans


@given(record_lists())
def test_the_hot_loop_finds_what_its_plain_twin_finds(records: list[Record]) -> None:
    batch = build_batch(records)
    header = parse_header(batch)
    data = records_bytes(batch, header)
    assert scan(data, header) == _plain_scan(data, len(records))
