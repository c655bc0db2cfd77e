"""What may enter a log that mirrors one of another cluster: its batches, whole, in order, at their own offsets.

What is here already is left out by its offsets: to send something again, in any pieces, changes nothing.
"""

from collections.abc import Sequence

from penstock.model.errors import CorruptBatch, InvalidRecord
from penstock.records.batch import BatchHeader, iter_headers, stamp, verify
from penstock.records.control import (
    ControlType,
    EndMarker,
    Promotion,
    build_marker,
    build_promotion,
)
from penstock.storage.following import Received
from penstock.storage.producers import Producer
from penstock.storage.segment import MAX_RELATIVE_OFFSET

Batches = list[tuple[int, BatchHeader]]


def missing_batches(records: memoryview, log: object, next_offset: int) -> Batches:
    """Those that a log which ends at `next_offset` lacks, in order; where they lie in `records`. All are checked."""
    missing: Batches = []
    expected, end = 0, 0
    for position, header in iter_headers(records):
        end = position + header.size_bytes
        if header.last_offset_delta < 0:
            raise CorruptBatch(f"{log}: the batch of offset {header.base_offset} ends before it")
        if header.base_offset < expected:
            raise InvalidRecord(
                f"{log}: a batch of offset {header.base_offset} where {expected} is next"
            )
        expected = header.next_offset
        if expected <= next_offset:
            continue
        if header.base_offset < next_offset:
            raise InvalidRecord(
                f"{log} ends at offset {next_offset}, inside the batch {header.base_offset}.."
                f"{header.last_offset}: it is not a copy of the log that this comes from"
            )
        verify(records[position:end], header)
        missing.append((position, header))
    if end != len(records):
        raise CorruptBatch(f"{log}: {len(records) - end} bytes are left after the last batch")
    return missing


def check_gaps(batches: Batches, log: object, next_offset: int) -> bool:
    """Whether offsets are missing before any of them. Segments cannot count further than 31 bits."""
    has_gaps = False
    for _, header in batches:
        if header.last_offset - next_offset > MAX_RELATIVE_OFFSET:
            raise InvalidRecord(
                f"{log}: a batch of offset {header.base_offset} after {next_offset}: too far for a segment"
            )
        has_gaps = has_gaps or header.base_offset > next_offset
        next_offset = header.next_offset
    return has_gaps


def restamp(records: memoryview, batches: Batches, leader_epoch: int) -> list[Received]:
    """Give the batches the leader epoch of this cluster, in place; the checksum does not cover it."""
    stamped: list[Received] = []
    for position, header in batches:
        batch = records[position : position + header.size_bytes]
        stamp(batch, header.base_offset, leader_epoch)
        stamped.append((batch, header._replace(leader_epoch=leader_epoch)))
    return stamped


def ending(
    producers: Sequence[tuple[int, Producer]],
    promotion: Promotion,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
) -> bytearray:
    """What makes a mirror a topic of its own: the open transactions are aborted, all producers forgotten."""
    batches = bytearray()
    for offset, (producer_id, producer) in enumerate(producers, base_offset):
        batches += build_marker(
            EndMarker(ControlType.ABORT, max(producer.coordinator_epoch, 0)),
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=now_ms,
            base_offset=offset,
            leader_epoch=leader_epoch,
        )
    batches += build_promotion(
        promotion,
        timestamp_ms=now_ms,
        base_offset=base_offset + len(producers),
        leader_epoch=leader_epoch,
    )
    return batches
