"""Opens batches of clients with a bound on the work: a batch of 11 KB can hold 60 million record headers.

Limits apply to the decompressed bytes, the records and the headers. Walking the records takes steps of a few
milliseconds, so that the caller can run other work between them.
"""

from typing import Final

from penstock.model.errors import CorruptBatch, MessageTooLarge
from penstock.model.steps import Steps
from penstock.records.batch import APPEND_TIME_BIT, HEADER_SIZE, BatchHeader, Bytes
from penstock.records.compression import DecompressedTooLarge, decompress
from penstock.records.record import (
    MIN_RECORD_BYTES,
    VARLONG_BITS,
    Span,
    read_varint,
    scan_into,
)

MAX_RECORDS: Final = 1_000_000  # of one batch
MAX_RECORD_HEADERS: Final = 10_000  # of one record
MAX_BATCH_HEADERS: Final = 1_000_000  # of all records of a batch
SMALL_BYTES: Final = 32 << 10  # of decompressed records: walking them takes few milliseconds
_LEAST_LIMIT_BYTES: Final = 64 << 20
_LIMIT_FACTOR: Final = 4
_STEP_BYTES: Final = 16 << 10
_STEP_RECORDS: Final = 2000


def decompressed_limit(max_batch_bytes: int) -> int:
    """Return the limit of decompressed bytes for a topic with this `max.message.bytes`."""
    return max(_LEAST_LIMIT_BYTES, _LIMIT_FACTOR * max_batch_bytes)


def open_batch(batch: Bytes, header: BatchHeader, limit: int) -> Bytes:
    """Decompress the records of a batch. A thread may call this: it releases the interpreter lock."""
    records = memoryview(batch)[HEADER_SIZE:]
    try:
        view = decompress(header.codec, records, limit)
    except DecompressedTooLarge as error:
        raise MessageTooLarge(
            f"batch of {len(batch)} bytes has more than {limit} bytes of records"
        ) from error
    whole = view.obj
    if not isinstance(whole, bytearray) or header.codec == 0:
        return bytes(view)
    size = len(view)
    view.release()
    del whole[size:]  # no copy: bytes of a view are read at half the speed
    return whole


def records_without_key(data: Bytes, header: BatchHeader) -> Steps[list[int]]:
    """Validate all records and return the indexes of those without a key."""
    count, size = _record_count(data, header), len(data)
    without: list[int] = []
    headers_left = MAX_BATCH_HEADERS
    done, end, last_delta = 0, 0, -1
    while done < count:
        spans: list[Span] = []
        try:
            scan_into(
                spans,
                data,
                count - done,
                header.last_offset_delta,
                end=end,
                last_delta=last_delta,
                until=end + _STEP_BYTES,
                max_headers=MAX_RECORD_HEADERS,
            )
        except IndexError:
            raise CorruptBatch(f"a record runs past the {size} bytes there are") from None
        if not spans:
            raise CorruptBatch(f"{size} bytes hold {done} records, not {count}")
        headers_left -= sum(span.header_count for span in spans)
        if headers_left < 0:
            raise MessageTooLarge(f"a batch of more than {MAX_BATCH_HEADERS} record headers")
        without += [done + at for at, span in enumerate(spans) if span.key_end < 0]
        done, end, last_delta = done + len(spans), spans[-1].end, spans[-1].offset_delta
        yield
    if end != size:
        raise CorruptBatch(f"{size - end} bytes are left after {count} records")
    return without


def _record_count(data: Bytes, header: BatchHeader) -> int:
    count = header.record_count
    if not 0 <= count <= len(data) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"batch says {count} records in {len(data)} bytes")
    if count > MAX_RECORDS:
        raise MessageTooLarge(f"batch of {count} records; the limit is {MAX_RECORDS}")
    return count


def first_at_time(
    data: Bytes, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> Steps[tuple[int, int] | None]:
    """Return timestamp and offset of the first record at or past both. Skips keys, values and headers."""
    count, size, end = _record_count(data, header), len(data), 0
    append_time = header.attributes & APPEND_TIME_BIT
    try:
        for number in range(count):
            if number % _STEP_RECORDS == _STEP_RECORDS - 1:
                yield
            start = end
            length, position = read_varint(data, start)
            end = position + length
            if length < 0 or end > size:
                raise CorruptBatch(f"record of {length} bytes at byte {start} of {size}")
            time_delta, position = read_varint(data, position + 1, VARLONG_BITS)
            offset_delta, position = read_varint(data, position)
            time_ms = (
                header.max_timestamp_ms if append_time else header.first_timestamp_ms + time_delta
            )
            offset = header.base_offset + offset_delta
            if time_ms >= timestamp_ms and offset >= start_offset:
                return time_ms, offset
    except IndexError:
        raise CorruptBatch(f"a record runs past the {size} bytes there are") from None
    return None
