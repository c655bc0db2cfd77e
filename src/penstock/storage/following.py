"""What a follower may append: whole batches of the leader, which continue the log at their own offsets."""

from typing import NamedTuple, TypeAlias

from penstock.model.configs import TopicConfig
from penstock.model.errors import CorruptBatch
from penstock.records.batch import BatchHeader, iter_headers, verify
from penstock.storage.limits import COMPACT

Received: TypeAlias = tuple[memoryview, BatchHeader]  # a batch that has its offset and leader epoch


class Hole(NamedTuple):
    """Offsets without a batch in what a follower receives."""

    next_offset: int  # the first of them
    base_offset: int  # of the batch that comes after them


def batches_in(records: memoryview) -> list[Received]:
    """The whole batches in `records`, unchecked."""
    return [
        (records[position : position + header.size_bytes], header)
        for position, header in iter_headers(records)
    ]


def check(records: memoryview, log: object, next_offset: int) -> tuple[list[Received], Hole | None]:
    """Return the batches and the first hole before any of them. All must be whole and none below `next_offset`."""
    batches = batches_in(records)
    left, hole = len(records), None
    for batch, header in batches:
        left -= len(batch)
        verify(batch, header)
        base_offset = header.base_offset
        if base_offset < next_offset:
            raise CorruptBatch(f"{log}: offset {base_offset} where {next_offset} is next")
        if base_offset > next_offset and hole is None:
            hole = Hole(next_offset, base_offset)
        next_offset = header.next_offset
    if left:
        raise CorruptBatch(f"{log}: {left} bytes are left after the last batch")
    return batches, hole


def check_hole(hole: Hole, refused: Hole | None, log: object, config: TopicConfig) -> None:
    """Reject a hole where none is expected, unless it was `refused` before and the leader sends it again.

    Compaction makes holes, and a mirror has those of its source. A topic that was compacted once, or was a mirror,
    keeps them; only the leader knows that, and its own log has passed the same check. A batch that came out of turn
    is not sent twice.
    """
    if COMPACT in config.cleanup_policy or config.penstock_mirror_source or hole == refused:
        return
    raise CorruptBatch(
        f"{log}: the leader's batches leave out the offsets {hole.next_offset} to {hole.base_offset - 1},"
        " though the topic is neither compacted nor a mirror; fetch them again"
    )


def base_offset_around(records: memoryview, offset: int) -> int | None:
    """The base offset of the first batch, if `offset` lies inside that batch."""
    header = next((header for _, header in iter_headers(records)), None)
    if header is None or not header.base_offset < offset < header.next_offset:
        return None
    return header.base_offset
