"""Records to a batch, byte for byte as Kafka's own clients and brokers write it."""

from collections.abc import Sequence
from typing import Final

from penstock.records.batch import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    renew_checksum,
)
from penstock.records.compression import Codec, compress
from penstock.records.record import Record

_SMALL: Final = tuple(bytes((n,)) for n in range(0x80))  # one-byte varints
_NULL: Final = b"\x01"


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
) -> bytearray:
    """A batch from records in offset order, from `base_offset` on; with holes if they have holes.

    `append_time_ms` makes it LogAppendTime. `last_offset_delta` says that offsets beyond the last
    record belong to the batch too, as they do after compaction; without records it is needed.
    """
    first_timestamp_ms = records[0].timestamp_ms if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        first_timestamp_ms = delete_horizon_ms
    max_timestamp_ms = max((r.timestamp_ms for r in records), default=NO_TIMESTAMP)
    attributes = codec | TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control
    if append_time_ms is not None:
        attributes |= APPEND_TIME_BIT
        max_timestamp_ms = append_time_ms
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset
    data = b"".join(encode_record(r, base_offset, first_timestamp_ms) for r in records)
    return assemble(
        (base_offset, leader_epoch),
        (attributes, last_offset_delta, first_timestamp_ms, max_timestamp_ms),
        (producer_id, producer_epoch, base_sequence),
        len(records),
        compress(codec, data, level) if codec else data,
    )


def assemble(
    place: tuple[int, int],
    extent: tuple[int, int, int, int],
    producer: tuple[int, int, int],
    record_count: int,
    data: bytes | memoryview,
) -> bytearray:
    """A whole batch around the (compressed) bytes of its records."""
    base_offset, leader_epoch = place
    batch = bytearray(HEADER_SIZE)
    batch += data
    length = len(batch) - LENGTH_PREFIX
    fields = (base_offset, length, leader_epoch, MAGIC, 0, *extent, *producer, record_count)
    HEADER.pack_into(batch, 0, *fields)
    renew_checksum(memoryview(batch))
    return batch


def encode_record(record: Record, base_offset: int, first_timestamp_ms: int) -> bytes:
    parts = [
        b"\x00",  # attributes: none are defined
        varint(record.timestamp_ms - first_timestamp_ms),
        varint(record.offset - base_offset),
    ]
    _put_bytes(parts, record.key)
    _put_bytes(parts, record.value)
    parts.append(varint(len(record.headers)))
    for key, value in record.headers:
        _put_bytes(parts, key.encode("utf-8", "surrogateescape"))
        _put_bytes(parts, value)
    body = b"".join(parts)
    return varint(len(body)) + body


def _put_bytes(parts: list[bytes], value: bytes | None) -> None:
    if value is None:
        parts.append(_NULL)
    else:
        parts += (varint(len(value)), value)


def varint(value: int) -> bytes:
    """Zig-zag, seven bits a byte, low ones first."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw < 0x80:
        return _SMALL[raw]
    output = bytearray()
    while raw >= 0x80:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)
    return bytes(output)
