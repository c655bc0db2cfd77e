"""Offsets by time: exact, also inside a batch. The only read that opens records."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records.batch import NO_TIMESTAMP, BatchHeader
from penstock.records.record import Record, decode_records
from penstock.storage.segment import Segment


class TimestampOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


def find_timestamp(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int
) -> TimestampOffset | None:
    """The first record at or past `start_offset` whose time is at or past `timestamp_ms`."""
    for segment in segments:
        if segment.next_offset > start_offset and segment.newest()[0] >= timestamp_ms:
            found = _find_in(segment, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def _find_in(segment: Segment, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
    entry = segment.indexes.times.floor(timestamp_ms)
    first = segment.base_offset + entry[1] if entry else segment.base_offset
    found = segment.find(max(first, start_offset))
    if found is None:
        return None
    for position, header in segment.headers(found[0]):
        if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
            for record in _records(segment, position, header):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset, header.leader_epoch)
    return None


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> TimestampOffset | None:
    """The first record with the largest time of all."""
    live = [segment for segment in segments if segment.next_offset > start_offset]
    newest = max((segment.newest()[0] for segment in live), default=NO_TIMESTAMP)
    if newest == NO_TIMESTAMP:
        return None
    return find_timestamp(live, newest, start_offset)


def _records(segment: Segment, position: int, header: BatchHeader) -> Sequence[Record]:
    """The records, or one that stands for all if they cannot be read: a lookup must not fail by them."""
    try:
        return decode_records(segment.read_batch(position, header), header)
    except CorruptBatch:
        return [Record(header.base_offset, header.max_timestamp_ms, None, None)]
