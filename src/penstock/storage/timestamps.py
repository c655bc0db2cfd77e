"""Finds offsets by timestamp, exactly, also inside a batch. The only read that opens records.

A search is a generator. It yields each batch that the caller must open, and None between other steps. The log may change
between two steps: the search fetches the segments again after each.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple, TypeAlias

from penstock.model.errors import BrokerError
from penstock.records.batch import NO_TIMESTAMP, BatchHeader, Bytes
from penstock.records.opening import first_at_time, open_batch
from penstock.storage.files import FileSlice
from penstock.storage.segment import Segment

_STEP_HEADERS: Final = 1000
_MAX_OPENED: Final = 100  # batches whose headers promise a record that is not in them


class TimestampOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class Closed(NamedTuple):
    """A batch in its file."""

    piece: FileSlice
    header: BatchHeader


# the reply to a Closed is its records, or None if they cannot be read
Search: TypeAlias = Generator[Closed | None, Bytes | None, TimestampOffset | None]
_Segments: TypeAlias = Callable[[], Sequence[Segment]]


def find(steps: Search, limit_bytes: int) -> TimestampOffset | None:
    """Run the whole search now."""
    opened: Bytes | None = None
    while True:
        try:
            wanted = steps.send(opened)
        except StopIteration as end:
            found: TimestampOffset | None = end.value
            return found
        opened = None if wanted is None else records_of(wanted, limit_bytes)


def records_of(closed: Closed, limit_bytes: int) -> Bytes | None:
    """Decompressed. None: they cannot be read. Any thread may call this."""
    try:
        return open_batch(closed.piece.read(), closed.header, limit_bytes)
    except BrokerError:
        return None


def search(segments: _Segments, timestamp_ms: int, start_offset: int) -> Search:
    """The first record at or past `start_offset` whose time is at or past `timestamp_ms`.

    A batch that cannot be read, or only with too much work, counts as one record: a lookup must not fail by it.
    """
    opened = 0
    while True:
        found = _next_batch(segments(), timestamp_ms, start_offset)
        if found is None:
            return None
        if isinstance(found, int):  # nothing up to there
            start_offset = found
            yield None
            continue
        header = found.header
        data = (yield found) if opened < _MAX_OPENED else None
        opened += 1
        first_offset = max(header.base_offset, start_offset)
        record: tuple[int, int] | None = (header.max_timestamp_ms, first_offset)
        if data is not None:
            steps = first_at_time(data, header, timestamp_ms, start_offset)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    record = end.value
                    break
                except BrokerError:
                    break
                yield None
        del data
        if record is not None:
            time_ms, offset = record
            return TimestampOffset(time_ms, offset, header.leader_epoch)
        start_offset = header.next_offset


def _next_batch(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int
) -> Closed | int | None:
    """The first batch that may hold the record, or where to go on after a step without any."""
    for segment in segments:
        if segment.next_offset > start_offset and segment.newest()[0] >= timestamp_ms:
            found = _next_in(segment, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def _next_in(segment: Segment, timestamp_ms: int, start_offset: int) -> Closed | int | None:
    entry = segment.indexes.times.floor(timestamp_ms)
    first = segment.base_offset + entry[1] if entry else segment.base_offset
    found = segment.find(max(first, start_offset))
    if found is None:
        return None
    left = _STEP_HEADERS
    for position, header in segment.headers(found[0]):
        if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
            return Closed(FileSlice(segment.file, position, header.size_bytes), header)
        left -= 1
        if not left:
            return header.next_offset
    return None


def search_max(segments: _Segments, start_offset: int) -> Search:
    """The first record with the largest time of all."""
    newest = max(
        (segment.newest()[0] for segment in segments() if segment.next_offset > start_offset),
        default=NO_TIMESTAMP,
    )
    if newest == NO_TIMESTAMP:
        return None
    return (yield from search(segments, newest, start_offset))
