"""The records inside a batch. Every varint and length is checked; what does not fit is a CorruptBatch."""

from typing import Final, NamedTuple, TypeAlias

from penstock.model.errors import CorruptBatch, InvalidRecord
from penstock.records.batch import (
    APPEND_TIME_BIT,
    HEADER_SIZE,
    BatchHeader,
    Bytes,
    parse_header,
)
from penstock.records.compression import DECOMPRESSED_LIMIT_BYTES, decompress

Header: TypeAlias = tuple[str, bytes | None]

MIN_RECORD_BYTES: Final = 7  # length, attributes, two deltas, two lengths, header count
VARINT_BITS: Final = 32
VARLONG_BITS: Final = 64
MAX_POSITION: Final = 1 << 62  # beyond any byte of a batch
_new_tuple = tuple.__new__


class Record(NamedTuple):
    """One message. Header keys keep bytes that are not UTF-8 as surrogate escapes."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class Span(NamedTuple):
    """Where one record lies in its batch's (decompressed) records. A null has end -1."""

    start: int
    end: int
    timestamp_delta_ms: int
    offset_delta: int
    key_start: int
    key_end: int
    value_start: int
    value_end: int
    headers_start: int
    header_count: int


def records_bytes(
    batch: Bytes, header: BatchHeader, limit: int = DECOMPRESSED_LIMIT_BYTES
) -> bytes:
    """The records of a batch, decompressed. (Bytes are read one by one twice as fast as views.)"""
    return bytes(decompress(header.codec, memoryview(batch)[HEADER_SIZE:], limit))


def decode_records(
    batch: Bytes, header: BatchHeader | None = None, limit: int = DECOMPRESSED_LIMIT_BYTES
) -> list[Record]:
    """Every record of a whole batch, of any codec. The checksum is the caller's to verify."""
    if len(batch) < HEADER_SIZE:
        raise CorruptBatch(f"{len(batch)} bytes; a batch header has {HEADER_SIZE}")
    header = header or parse_header(batch)
    data = records_bytes(batch, header, limit)
    append_time = header.attributes & APPEND_TIME_BIT
    base_offset, first_timestamp_ms = header.base_offset, header.first_timestamp_ms
    records = []
    for _, _, time, delta, key, key_end, value, value_end, headers, count in scan(data, header):
        timestamp_ms = header.max_timestamp_ms if append_time else first_timestamp_ms + time
        fields = (
            base_offset + delta,
            timestamp_ms,
            data[key:key_end] if key_end >= 0 else None,
            data[value:value_end] if value_end >= 0 else None,
            _read_headers(data, headers, count) if count else (),
        )
        records.append(_new_tuple(Record, fields))
    return records


def scan(data: bytes, header: BatchHeader) -> list[Span]:
    """Where each record of `data` lies: as many as the header says, in offset order, and no byte more."""
    count = header.record_count
    if not 0 <= count <= len(data) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"batch says {count} records in {len(data)} bytes")
    spans: list[Span] = []
    try:
        scan_into(spans, data, count, header.last_offset_delta)
    except IndexError:
        start = spans[-1].end if spans else 0
        raise CorruptBatch(f"record at byte {start} runs past the {len(data)} there are") from None
    end = spans[-1].end if spans else 0
    if end != len(data):
        raise CorruptBatch(f"{len(data) - end} bytes are left after {count} records")
    return spans


def scan_into(
    spans: list[Span],
    data: Bytes,
    count: int,
    max_delta: int,
    *,
    end: int = 0,
    last_delta: int = -1,
    until: int = MAX_POSITION,
    max_headers: int = MAX_POSITION,
) -> None:
    """Add up to `count` records, from the one at byte `end` to the last one that starts before byte `until`.

    Hot (benchmarks/batches.py): varints of one byte are read in place; tests keep a plain twin.
    Positions only grow here, so that ending where the length says proves all within bounds.
    """
    add, size = spans.append, len(data)
    for _ in range(count):
        start = end
        if start >= until:
            return
        length, position = read_varint(data, start)
        end = position + length
        if length < 0 or end > size:
            raise CorruptBatch(f"record of {length} bytes at byte {start} of {size}")
        position += 1  # attributes: none are defined
        byte = data[position]
        if byte < 0x80:
            time_delta, position = byte >> 1 ^ -(byte & 1), position + 1
        else:
            time_delta, position = read_varint(data, position, VARLONG_BITS)
        offset_delta, position = read_varint(data, position)
        if not last_delta < offset_delta <= max_delta:
            raise CorruptBatch(
                f"record at byte {start} has offset delta {offset_delta}, "
                f"not in {last_delta + 1} to {max_delta}"
            )
        last_delta = offset_delta
        byte = data[position]
        if byte < 0x80:
            length, key = byte >> 1 ^ -(byte & 1), position + 1
        else:
            length, key = read_varint(data, position)
        position, key_end = (key + length, key + length) if length >= 0 else (key, -1)
        byte = data[position]
        if byte < 0x80:
            length, value = byte >> 1 ^ -(byte & 1), position + 1
        else:
            length, value = read_varint(data, position)
        position, value_end = (value + length, value + length) if length >= 0 else (value, -1)
        byte = data[position]
        headers, header_count = position + 1, 0
        if byte:
            header_count, headers = read_varint(data, position)
            if header_count > max_headers:
                raise InvalidRecord(
                    f"record at byte {start} has {header_count} headers; the limit is {max_headers}"
                )
            position = _skip_headers(data, headers, header_count, end)
        else:
            position += 1
        if position != end:
            raise CorruptBatch(f"record at byte {start} ends at byte {position}, not at {end}")
        fields = (start, end, time_delta, offset_delta, key, key_end, value, value_end)
        add(_new_tuple(Span, (*fields, headers, header_count)))


def _skip_headers(data: Bytes, position: int, count: int, end: int) -> int:
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"{count} record headers at byte {position}, in {end - position} bytes")
    for _ in range(count):
        length, position = read_varint(data, position)
        if length < 0:
            raise CorruptBatch(f"record header at byte {position} without a key")
        length, position = read_varint(data, position + length)
        position += max(length, 0)
    return position


def _read_headers(data: bytes, position: int, count: int) -> tuple[Header, ...]:
    """Only after `scan` has checked them."""
    headers: list[Header] = []
    for _ in range(count):
        length, position = read_varint(data, position)
        key = data[position : position + length].decode("utf-8", "surrogateescape")
        length, position = read_varint(data, position + length)
        value = data[position : position + length] if length >= 0 else None
        position += max(length, 0)
        headers.append((key, value))
    return tuple(headers)


def read_varint(data: Bytes, position: int, bits: int = VARINT_BITS) -> tuple[int, int]:
    """A zig-zag varint and the position after it; IndexError past the end of data."""
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        raw = byte & 0x7F | second << 7
        return raw >> 1 ^ -(raw & 1), position + 2
    raw, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise CorruptBatch(f"varint longer than {bits} bits at byte {position}")
    if raw >> bits:
        raise CorruptBatch(f"varint larger than {bits} bits at byte {position}")
    return raw >> 1 ^ -(raw & 1), position + 1
