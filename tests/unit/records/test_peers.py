"""Batches of kafka-python and kio, byte for byte beside ours."""

import datetime
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros

from penstock.records.batch import parse_header, verify
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from tests.unit.records.batches import codecs, producers, record_lists
from tests.unit.records.peers import DefaultRecordBatch, DefaultRecordBatchBuilder, MemoryRecords


def _kafka_python_builds(
    records: list[Record], codec: Codec, producer: dict[str, Any]
) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        2,
        int(codec),
        producer.get("transactional", False),
        producer.get("producer_id", -1),
        producer.get("producer_epoch", -1),
        producer.get("base_sequence", -1),
        1 << 20,
    )
    for record in records:
        builder.append(
            record.offset, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
    batch = builder.build()
    assert isinstance(batch, bytearray)
    return batch


def _kafka_python_reads(batch: bytes | bytearray) -> list[Record]:
    peer = DefaultRecordBatch(batch)
    assert peer.validate_crc()
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in peer
    ]


@given(record_lists(), producers())
def test_we_build_the_very_bytes_that_kafka_python_builds(
    records: list[Record], producer: dict[str, Any]
) -> None:
    ours = build_batch(records, leader_epoch=0, **producer)
    assert ours == _kafka_python_builds(records, Codec.NONE, producer)


@given(record_lists(), codecs, producers())
def test_we_read_what_kafka_python_builds(
    records: list[Record], codec: Codec, producer: dict[str, Any]
) -> None:
    batch = _kafka_python_builds(records, codec, producer)
    verify(memoryview(batch))
    assert decode_records(batch) == records


@given(record_lists(), codecs, producers(), st.integers(0, 1 << 60))
def test_kafka_python_reads_what_we_build(
    records: list[Record], codec: Codec, producer: dict[str, Any], base: int
) -> None:
    moved = [record._replace(offset=base + record.offset) for record in records]
    batch = build_batch(moved, base_offset=base, codec=codec, leader_epoch=3, **producer)
    assert _kafka_python_reads(batch) == moved
    peer, header = DefaultRecordBatch(batch), parse_header(batch)
    assert peer.next_offset == header.next_offset
    assert peer.is_transactional == header.is_transactional
    assert (peer.producer_id, peer.producer_epoch) == (header.producer_id, header.producer_epoch)
    assert (peer.base_sequence, peer.last_sequence) == (header.base_sequence, header.last_sequence)
    assert (peer.first_timestamp, peer.max_timestamp) == header[7:9]
    assert peer.leader_epoch == 3


@pytest.mark.parametrize("codec", Codec)
def test_kafka_python_reads_append_time_holes_and_empty_batches(codec: Codec) -> None:
    records = [Record(7, 5, b"a", None), Record(19, 3, None, b"x" * 500)]
    stamped = build_batch(records, base_offset=5, codec=codec, append_time_ms=99)
    assert _kafka_python_reads(stamped) == [r._replace(timestamp_ms=99) for r in records]
    empty = build_batch([], base_offset=20, last_offset_delta=5)
    batches = MemoryRecords(bytes(stamped + empty))
    first, second = batches.next_batch(), batches.next_batch()
    assert (first.base_offset, first.next_offset) == (5, 20)
    assert (second.base_offset, second.next_offset, list(second)) == (20, 26, [])


def _kio_record(record: Record) -> KioRecord:
    return KioRecord(
        attributes=0,  # type: ignore[arg-type]  # kio's phantom integers
        timestamp=TZAwareMicros.parse(
            datetime.datetime.fromtimestamp(record.timestamp_ms / 1_000, datetime.UTC)
        ),
        offset=record.offset,  # type: ignore[arg-type]  # kio's phantom integers
        key=record.key,
        value=record.value,
        headers=tuple(RecordHeader(key=k.encode(), value=v) for k, v in record.headers),
    )


def _whole_seconds(records: list[Record]) -> list[Record]:
    """kio keeps seconds only, in order."""
    return [r._replace(timestamp_ms=(1 << 20) * 1_000 * (1 + r.offset)) for r in records]


@given(record_lists())
def test_kio_and_we_read_and_write_the_same_bytes(records: list[Record]) -> None:
    records = _whole_seconds(records)
    ours = build_batch(
        records,
        producer_id=3,
        producer_epoch=1,
        base_sequence=8,
        transactional=True,
        leader_epoch=0,
    )
    buffer = io.BytesIO()
    new = NewRecordBatch(
        producer_id=3,  # type: ignore[arg-type]  # kio's phantom integers
        producer_epoch=1,  # type: ignore[arg-type]
        base_sequence=8,  # type: ignore[arg-type]
        attributes=0x10,  # type: ignore[arg-type]
        records=tuple(map(_kio_record, records)),
    )
    write_batch(buffer, new)
    assert ours == buffer.getvalue()
    theirs, size = read_batch(bytes(ours), 0)
    assert size == len(ours)
    assert theirs.records == new.records
    assert decode_records(buffer.getvalue()) == records
