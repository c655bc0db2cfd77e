"""A record batch (format v2), seen through its 61-byte header. The records stay as bytes.

The checksum starts at the attributes, so that offset and leader epoch can be stamped for free.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from penstock.model.errors import CorruptBatch
from penstock.records.crc32c import crc32c

Bytes: TypeAlias = bytes | bytearray | memoryview

# base offset, length after it, leader epoch, magic, crc, attributes, last offset delta, first and
# max timestamp, producer id, producer epoch, base sequence, record count
HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
LENGTH_PREFIX: Final = 12  # base offset and length: what the length itself does not count
MAGIC: Final = 2
CRC_START: Final = 21  # the checksum covers everything from the attributes on
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40  # KIP-534: the first timestamp is the delete horizon

_SEQUENCE_COUNT: Final = 1 << 31  # sequences go from 0 to 2^31 - 1, and start again
_BASE_OFFSET: Final = Struct(">q")
_LEADER_EPOCH: Final = Struct(">i")
_LEADER_EPOCH_POSITION: Final = 12
_CRC: Final = Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35

assert HEADER_SIZE == 61


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 13 fields as they are stored; what follows from them are properties."""

    base_offset: int
    length: int  # what follows the length field; `size_bytes` is the whole batch
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: (
        int  # what timestamp deltas count from; the delete horizon when there is one
    )
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_PREFIX

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec`, or 5 to 7, which mean nothing."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.first_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; it counts every offset, also those compacted away."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_COUNT


_new_tuple = tuple.__new__
_unpack_from = HEADER.unpack_from


def parse_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked. The buffer must hold 61 bytes from there (struct.error)."""
    return _new_tuple(BatchHeader, _unpack_from(buffer, position))


def checksum(batch: memoryview) -> int:
    """What the CRC of this batch should be."""
    return crc32c(batch[CRC_START:])


def verify(batch: memoryview, header: BatchHeader | None = None) -> BatchHeader:
    """The header of exactly one whole batch whose size, magic and checksum are right."""
    if len(batch) < HEADER_SIZE:
        raise CorruptBatch(f"{len(batch)} bytes; a batch header has {HEADER_SIZE}")
    header = header or parse_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatch(f"batch says {header.size_bytes} bytes and has {len(batch)}")
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch at offset {header.base_offset} has magic {header.magic}, not 2")
    actual = crc32c(batch[CRC_START:])
    if actual != header.crc:
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: checksum {actual:#010x}, header says {header.crc:#010x}"
        )
    return header


def iter_headers(data: memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from `position` on; a partial one at the end is left out.

    Reads no records and no checksums. Raises CorruptBatch where there can be no header.
    """
    size = len(data)
    while size - position >= HEADER_SIZE:
        header = parse_header(data, position)
        if header.size_bytes < HEADER_SIZE or header.magic != MAGIC:
            raise CorruptBatch(
                f"no batch header at byte {position} (magic {header.magic}, length {header.length})"
            )
        if position + header.size_bytes > size:
            return
        yield position, header
        position += header.size_bytes


def split_batches(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole, valid batches at the front of `data`; a partial one at its end is left out.

    Raises CorruptBatch at the first batch that is whole but wrong.
    """
    for position, header in iter_headers(data):
        batch = data[position : position + header.size_bytes]
        if crc32c(batch[CRC_START:]) != header.crc:
            raise CorruptBatch(
                f"checksum mismatch in the batch at byte {position} (offset {header.base_offset})"
            )
        yield header, batch


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Gives the batch its place in a log, in place. The checksum does not cover it."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_POSITION, leader_epoch)


def stamp_append_time(batch: memoryview, now_ms: int) -> None:
    """Makes `now_ms` the time of every record (LogAppendTime), in place, and renews the checksum."""
    attributes = _ATTRIBUTES.unpack_from(batch, CRC_START)[0] | APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, now_ms)
    renew_checksum(batch)


def renew_checksum(batch: memoryview) -> None:
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(batch[CRC_START:]))
