"""The states of a record in a window, the ways to settle it, and run-length helpers on state bytes.

States 0 to 4 are Kafka's numbers (KIP-932, KIP-1191). States 5 and 6 exist in memory only.
"""

from enum import IntEnum
from typing import Final, NamedTuple


class RecordState(IntEnum):
    AVAILABLE = 0
    ACQUIRED = 1  # never persisted: it reads back as available
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # its dead letter is being written
    ARCHIVED = 4
    DELAYED = 5  # available, but its retry delay is not over; persisted as available
    UNTOUCHED = 6  # at or above the cursor


class AckType(IntEnum):
    """How an acquired record is settled. 0 to 4 are Kafka's acknowledge types."""

    GAP = 0  # there is no such record: archive the offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # keep the record acquired and restart its lock (KIP-1222)
    FAIL = 5  # release, and count a failure: the lock expired, the consumer died
    RETURN = 6  # release a record that the owner has never processed: undo the delivery


FINAL_STATES: Final = bytes((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
RELEASING: Final = frozenset({AckType.RELEASE, AckType.FAIL, AckType.RETURN})


class Delivery(NamedTuple):
    """Contiguous offsets with the same counts."""

    first: int
    end: int
    acquired_count: int  # 255 means 255 or more
    failed_count: int


class StateBatch(NamedTuple):
    """Contiguous offsets in the same persisted state. `delivery_count` is 0 where it cannot matter."""

    first: int
    end: int
    state: RecordState
    delivery_count: int


def run_end(data: bytes | bytearray, start: int, end: int) -> int:
    """Return the end of the run of equal bytes that begins at `start`, at most `end`."""
    part = data[start:end]
    return end - len(part.lstrip(part[:1]))


def merge_adjacent(batches: list[StateBatch]) -> list[StateBatch]:
    """Join neighbours with the same state and count. `batches` are sorted and do not overlap."""
    merged: list[StateBatch] = []
    for batch in batches:
        if merged:
            last = merged[-1]
            if last.end == batch.first and last[2:] == batch[2:]:
                merged[-1] = StateBatch(last.first, batch.end, batch.state, batch.delivery_count)
                continue
        merged.append(batch)
    return merged


def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort intervals and join those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(intervals):
        if merged and first <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return merged
