"""Reads of a log below its active segment."""

from itertools import islice
from typing import Final, NamedTuple

from penstock.storage.files import FileSlice
from penstock.storage.segments import Segments

_CRUMBS_BYTES: Final = 4096  # compaction leaves no more than this of a segment without records


class LogRead(NamedTuple):
    slices: list[FileSlice]
    size_bytes: int
    next_offset: int


def read_closed(segments: Segments, offset: int, max_bytes: int, upto_offset: int) -> LogRead:
    """Whole batches of the segment that holds `offset`; of more segments where one has next to nothing to read.

    Compaction may have left no record there, and librdkafka takes some such responses in a row for an error.
    """
    slices: list[FileSlice] = []
    size_bytes = 0
    for segment in islice(segments, segments.number_of(offset), None):
        found = segment.read(offset, max_bytes - size_bytes, upto_offset)
        if found is not None:
            more_bytes = found.end - found.position
            if slices and size_bytes + more_bytes > max_bytes:
                break
            slices.append(FileSlice(segment.file, found.position, more_bytes))
            size_bytes += more_bytes
            offset = found.next_offset
            if size_bytes >= _CRUMBS_BYTES or offset < segment.next_offset:
                break
        if segment.next_offset >= upto_offset:
            break
    return LogRead(slices, size_bytes, offset)
