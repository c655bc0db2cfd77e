"""The 61-byte header: parsed, stamped, checked; and what damage does to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptBatch
from penstock.records.batch import (
    CRC_START,
    HEADER_SIZE,
    TimestampType,
    checksum,
    iter_headers,
    parse_header,
    split_batches,
    stamp,
    stamp_append_time,
    verify,
)
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.crc32c import crc32c
from penstock.records.record import Record, decode_records
from tests.unit.records.batches import codecs, producers, record_lists

RECORDS = [Record(i, 1_000 + i, b"key", b"value %d" % i) for i in range(3)]


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720
    assert crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283


@given(record_lists(), codecs, producers(), st.integers(0, 1 << 62), st.integers(0, 1 << 30))
def test_a_header_says_what_the_batch_was_built_with(
    records: list[Record], codec: Codec, producer: dict[str, Any], base: int, epoch: int
) -> None:
    moved = [record._replace(offset=base + record.offset) for record in records]
    batch = build_batch(moved, base_offset=base, codec=codec, leader_epoch=epoch, **producer)
    header = verify(memoryview(batch))
    assert header == parse_header(batch)
    assert (header.base_offset, header.next_offset) == (base, base + len(records))
    assert header.last_offset == base + len(records) - 1
    assert header.size_bytes == len(batch)
    assert header.leader_epoch == epoch
    assert header.codec == codec
    assert header.record_count == len(records)
    assert header.first_timestamp_ms == records[0].timestamp_ms
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert header.has_producer_id == bool(producer)
    assert header.producer_id == producer.get("producer_id", -1)
    assert header.is_transactional == producer.get("transactional", False)
    assert not header.is_control
    assert header.delete_horizon_ms is None
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_every_single_bit_flip_under_the_checksum_is_caught() -> None:
    batch = build_batch(RECORDS)
    for position in range(CRC_START, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                verify(memoryview(batch))
            batch[position] ^= 1 << bit
    verify(memoryview(batch))


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 30))
def test_stamping_a_place_leaves_the_checksum_right(base_offset: int, leader_epoch: int) -> None:
    batch = build_batch(RECORDS)
    stamp(batch, base_offset, leader_epoch)
    header = verify(memoryview(batch))
    assert (header.base_offset, header.leader_epoch) == (base_offset, leader_epoch)
    assert [record.offset for record in decode_records(batch)] == [
        base_offset + i for i in range(3)
    ]
    assert header._replace(base_offset=0, leader_epoch=-1) == parse_header(build_batch(RECORDS))


@pytest.mark.parametrize("codec", Codec)
def test_append_time_becomes_the_time_of_every_record(codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec)
    stamp_append_time(memoryview(batch), 77_000)
    header = verify(memoryview(batch))
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp_ms == 77_000
    assert header.first_timestamp_ms == 1_000
    assert {record.timestamp_ms for record in decode_records(batch)} == {77_000}
    assert batch == build_batch(RECORDS, codec=codec, append_time_ms=77_000)


def test_sequences_start_again_after_the_largest() -> None:
    producer: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
    batch = build_batch(RECORDS, **producer, base_sequence=(1 << 31) - 2)
    assert parse_header(batch).last_sequence == 0
    assert parse_header(build_batch(RECORDS, **producer, base_sequence=4)).last_sequence == 6
    assert parse_header(build_batch(RECORDS)).last_sequence == -1


@given(st.lists(record_lists(max_size=3), max_size=4), st.integers(0, 100))
def test_split_yields_the_whole_batches_and_leaves_a_cut_one_out(
    lists: list[list[Record]], cut: int
) -> None:
    batches = [bytes(build_batch(records)) for records in lists]
    data = b"".join(batches)
    kept = memoryview(data)[: max(len(data) - cut, 0)]
    found = list(split_batches(kept))
    assert [bytes(batch) for _, batch in found] == batches[: len(found)]
    rest = len(kept) - sum(map(len, batches[: len(found)]))
    assert rest == 0 or rest < len(batches[len(found)])
    positions = [(position, header) for position, header in iter_headers(kept)]
    assert [header for _, header in positions] == [header for header, _ in found]
    assert list(iter_headers(kept, len(kept))) == []


def test_split_stops_at_the_first_batch_that_is_whole_but_wrong() -> None:
    good, bad = build_batch(RECORDS), build_batch(RECORDS)
    bad[-1] ^= 1
    batches = split_batches(memoryview(good + bad))
    assert next(batches)[1] == good
    with pytest.raises(CorruptBatch, match=f"at byte {len(good)}"):
        next(batches)


@pytest.mark.parametrize(("position", "value"), [(16, 1), (11, 0)])
def test_a_header_with_another_magic_or_no_length_is_no_header(position: int, value: int) -> None:
    batch = build_batch(RECORDS)
    batch[position] = value
    with pytest.raises(CorruptBatch, match="no batch header at byte 0"):
        list(iter_headers(memoryview(batch)))


def test_verify_wants_exactly_one_whole_batch() -> None:
    batch = build_batch(RECORDS)
    for wrong in (batch[:-1], batch + b"\0", batch[: HEADER_SIZE - 1], bytearray()):
        with pytest.raises(CorruptBatch):
            verify(memoryview(wrong))
    old = bytearray(batch)
    old[16] = 1
    with pytest.raises(CorruptBatch, match="magic 1"):
        verify(memoryview(old))
    assert checksum(memoryview(batch)) == parse_header(batch).crc
