"""Small requests that cause much work: batches that decompress to a thousand times their size."""

from penstock.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, parse_header, renew_checksum
from penstock.records.builder import build_batch
from penstock.records.compression import Codec, compress
from penstock.records.record import Record


def _varint(value: int) -> bytes:
    raw, out = value << 1, bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def batch_of(records: bytes, count: int, now_ms: int, codec: Codec = Codec.ZSTD) -> bytearray:
    """A batch with a right checksum around whatever the records are."""
    batch = build_batch([Record(0, now_ms, b"k", b"v", ())])[:HEADER_SIZE] + compress(
        codec, records
    )
    header = parse_header(batch)._replace(
        length=len(batch) - LENGTH_PREFIX,
        attributes=codec,
        last_offset_delta=count - 1,
        record_count=count,
    )
    HEADER.pack_into(batch, 0, *header)
    renew_checksum(memoryview(batch))
    return batch


def many_headers(count: int, now_ms: int, codec: Codec = Codec.ZSTD) -> bytearray:
    """One record with a key and so many empty headers."""
    body = b"\0\0\0" + _varint(1) + b"k" + _varint(1) + b"v" + _varint(count) + bytes(2 * count)
    return batch_of(_varint(len(body)) + body, 1, now_ms, codec)


def many_records(count: int, now_ms: int, codec: Codec = Codec.ZSTD) -> bytearray:
    """So many records with an empty key, and no value."""
    bodies = (b"\0\0" + _varint(number) + b"\0\x01\0" for number in range(count))
    records = b"".join(_varint(len(body)) + body for body in bodies)
    return batch_of(records, count, now_ms, codec)


def zeros(size_bytes: int, now_ms: int, codec: Codec = Codec.ZSTD) -> bytearray:
    """One honest record that compresses well."""
    return build_batch([Record(0, now_ms, b"k", bytes(size_bytes), ())], codec=codec)
