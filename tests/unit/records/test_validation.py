"""What produce refuses, with which code; and what it takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BrokerError, CorruptBatch, ErrorCode, MessageTooLarge
from penstock.records.batch import (
    CRC_START,
    HEADER,
    BatchHeader,
    parse_header,
    renew_checksum,
    verify,
)
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from penstock.records.validation import (
    MAX_RECORD_ERRORS,
    InvalidRecords,
    RecordError,
    check_client_batch,
    check_keys,
    recompress,
)
from tests.unit.records.batches import codecs, producers, record_lists

NOW_MS = 1_000_000
RECORDS = [Record(i, NOW_MS + i, b"key", b"value %d" % i) for i in range(3)]


def _check(records: bytes | bytearray, **changes: Any) -> BatchHeader:
    rules: dict[str, Any] = {"max_batch_bytes": 1 << 20, "now_ms": NOW_MS} | changes
    return check_client_batch(memoryview(records), **rules)


def _with(**fields: int) -> bytearray:
    """A batch with a right checksum whose header fields are these."""
    batch = build_batch(RECORDS)
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(**fields))
    renew_checksum(memoryview(batch))
    return batch


@given(record_lists(), codecs, producers())
def test_what_a_producer_sends_is_taken(
    records: list[Record], codec: Codec, producer: dict[str, Any]
) -> None:
    batch = build_batch(records, codec=codec, **producer)
    assert _check(batch, transactional=True) == parse_header(batch)


def test_epoch_and_sequence_mean_nothing_without_a_producer_id() -> None:
    _check(_with(producer_id=-1, producer_epoch=0, base_sequence=0))  # as kafkajs sends it


def test_records_without_a_timestamp_are_within_any_bounds() -> None:
    _check(_with(first_timestamp_ms=-1, max_timestamp_ms=-1), before_max_ms=5, after_max_ms=5)


def test_timestamps_at_the_bounds_are_taken() -> None:
    batch = _with(first_timestamp_ms=NOW_MS - 5, max_timestamp_ms=NOW_MS + 7)
    _check(batch, before_max_ms=5, after_max_ms=7)


REFUSED: list[tuple[dict[str, int], dict[str, Any], ErrorCode, str]] = [
    ({"base_offset": 1}, {}, ErrorCode.INVALID_RECORD, "starts at offset 0, not 1"),
    ({"record_count": 2}, {}, ErrorCode.INVALID_RECORD, "2 records and last offset delta 2"),
    ({"record_count": 0, "last_offset_delta": -1}, {}, ErrorCode.INVALID_RECORD, "0 records"),
    ({"record_count": -4, "last_offset_delta": -5}, {}, ErrorCode.INVALID_RECORD, "-4 records"),
    (
        {"record_count": 1 << 30, "last_offset_delta": (1 << 30) - 1},
        {},
        ErrorCode.INVALID_RECORD,
        "1073741824 records cannot fit",
    ),
    ({"attributes": 0x20}, {}, ErrorCode.INVALID_RECORD, "control"),
    ({"attributes": 0x40}, {}, ErrorCode.INVALID_RECORD, "delete horizons"),
    ({"attributes": 0x08}, {}, ErrorCode.INVALID_TIMESTAMP, "LogAppendTime"),
    ({"attributes": 5}, {}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 5"),
    ({"attributes": 4}, {"zstd": False}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce v7"),
    (
        {"attributes": 0x10, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {},
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "without a transactional id",
    ),
    ({"attributes": 0x10}, {"transactional": True}, ErrorCode.INVALID_RECORD, "producer id -1"),
    ({"producer_id": 7}, {}, ErrorCode.INVALID_RECORD, "producer id 7, epoch -1, sequence -1"),
    ({"producer_id": 7, "producer_epoch": 0}, {}, ErrorCode.INVALID_RECORD, "sequence -1"),
    ({"producer_id": 7, "base_sequence": 0}, {}, ErrorCode.INVALID_RECORD, "epoch -1"),
    ({}, {"max_batch_bytes": 90}, ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes is 90"),
    ({"first_timestamp_ms": -2}, {}, ErrorCode.INVALID_TIMESTAMP, "negative"),
    ({"max_timestamp_ms": -2}, {}, ErrorCode.INVALID_TIMESTAMP, "negative"),
    (
        {"first_timestamp_ms": NOW_MS - 6},
        {"before_max_ms": 5},
        ErrorCode.INVALID_TIMESTAMP,
        "before.max.ms is 5",
    ),
    (
        {"max_timestamp_ms": NOW_MS + 6},
        {"after_max_ms": 5},
        ErrorCode.INVALID_TIMESTAMP,
        "after.max.ms is 5",
    ),
    ({"magic": 1}, {}, ErrorCode.INVALID_RECORD, "record format v1"),
    ({"length": 13}, {}, ErrorCode.CORRUPT_MESSAGE, "batch length 13"),
    ({"length": 300}, {}, ErrorCode.INVALID_RECORD, "exactly one batch"),
]


@pytest.mark.parametrize(("fields", "rules", "code", "reason"), REFUSED, ids=str)
def test_a_refusal_has_the_code_of_kafka_and_says_why(
    fields: dict[str, int], rules: dict[str, Any], code: ErrorCode, reason: str
) -> None:
    with pytest.raises(BrokerError, match=reason) as refusal:
        _check(_with(**fields), **rules)
    assert refusal.value.code is code


@pytest.mark.parametrize("records", [b"", bytes(60), bytes(build_batch(RECORDS)) * 2], ids=len)
def test_exactly_one_batch_is_taken(records: bytes) -> None:
    with pytest.raises(BrokerError) as refusal:
        _check(records)
    assert refusal.value.code is ErrorCode.INVALID_RECORD


def test_damage_on_the_way_is_corrupt_so_that_the_client_tries_again() -> None:
    batch = build_batch(RECORDS)
    for position in range(CRC_START, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptBatch, match="checksum"):
                _check(batch, max_batch_bytes=1 << 40)
            batch[position] ^= 1 << bit


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(BrokerError):
        _check(data)


@pytest.mark.parametrize("codec", Codec)
def test_a_compacted_topic_names_each_record_without_a_key(codec: Codec) -> None:
    keyed = build_batch(RECORDS, codec=codec)
    check_keys(keyed, parse_header(keyed))
    records = [record._replace(key=None) if record.offset != 1 else record for record in RECORDS]
    batch = build_batch(records, codec=codec)
    with pytest.raises(InvalidRecords, match="2 of 3 records have no key") as refusal:
        check_keys(batch, parse_header(batch))
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    assert refusal.value.record_errors == (
        RecordError(0, "compacted topic: no key"),
        RecordError(2, "compacted topic: no key"),
    )


def test_the_records_named_in_a_refusal_are_bounded() -> None:
    batch = build_batch([Record(i, 0, None, b"") for i in range(MAX_RECORD_ERRORS + 9)])
    with pytest.raises(InvalidRecords, match=f"{MAX_RECORD_ERRORS + 9} of") as refusal:
        check_keys(batch, parse_header(batch))
    assert len(refusal.value.record_errors) == MAX_RECORD_ERRORS


@given(record_lists(), codecs, codecs, producers(), st.integers(0, 1 << 40))
def test_recompression_changes_the_codec_and_nothing_else(
    records: list[Record], old: Codec, new: Codec, producer: dict[str, Any], base: int
) -> None:
    moved = [record._replace(offset=base + record.offset) for record in records]
    batch = build_batch(moved, base_offset=base, codec=old, leader_epoch=4, **producer)
    again = recompress(batch, new)
    assert again == build_batch(moved, base_offset=base, codec=new, leader_epoch=4, **producer)
    assert verify(memoryview(again)).codec == new
    assert decode_records(again) == moved


def test_recompression_keeps_append_time_and_is_bounded() -> None:
    batch = build_batch(RECORDS, codec=Codec.GZIP, append_time_ms=99)
    assert recompress(batch, Codec.LZ4) == build_batch(RECORDS, codec=Codec.LZ4, append_time_ms=99)
    bomb = build_batch([Record(0, 0, None, bytes(100_000))], codec=Codec.ZSTD)
    with pytest.raises(MessageTooLarge, match="more than 1000 bytes"):
        recompress(bomb, Codec.NONE, limit=1_000)
