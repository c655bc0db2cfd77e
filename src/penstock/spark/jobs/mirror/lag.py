"""Compute what would be lost if the source failed now: records, bytes and seconds of lag."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition


class Behind(NamedTuple):
    """Of one partition. The time is a bound: whatever is older is in the mirror."""

    source: TopicPartition
    target: TopicPartition
    source_end: int
    mirror_end: int
    in_step_at_ms: int  # the mirror has all that the source had then; 0: not known

    @property
    def records(self) -> int:
        return max(0, self.source_end - self.mirror_end)


class Lag(NamedTuple):
    records: int
    size_bytes: int | None  # about; None: the source cannot be asked
    seconds: float | None  # None: nothing is known

    def facts(self) -> dict[str, Any]:
        seconds = None if self.seconds is None else round(self.seconds, 1)
        return {"records": self.records, "bytes": self.size_bytes, "seconds": seconds}

    def loss(self, *, is_live: bool) -> dict[str, Any]:
        """What a promotion gives up. A source that was not asked may have more records than were heard of."""
        return self.facts() if is_live else {**self.facts(), "records": None}

    def line(self) -> str:
        if not self.records and self.seconds == 0:
            return "nothing behind"
        size = "" if self.size_bytes is None else f", about {self.size_bytes / 1e6:,.1f} MB"
        age = "an unknown time" if self.seconds is None else f"at most {self.seconds:,.1f} s"
        return f"{self.records:,} records{size}, {age} behind"


def lag_of(
    rows: Sequence[Behind],
    bytes_a_record: Mapping[TopicPartition, float] | None,
    now_ms: int,
    *,
    is_live: bool,
) -> Lag:
    """`is_live`: the ends were asked of the source now; else what it wrote since is not known."""
    late = [row for row in rows if row.records] if is_live else list(rows)
    known = [row.in_step_at_ms for row in late]
    seconds: float | None = 0.0
    if known:
        seconds = None if 0 in known else max(0, now_ms - min(known)) / 1000
    size_bytes = None
    if bytes_a_record is not None:
        size_bytes = round(sum(row.records * bytes_a_record.get(row.source, 0.0) for row in rows))
    return Lag(sum(row.records for row in rows), size_bytes, seconds)


async def record_sizes(
    source: Pool, firsts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """Bytes on disk for each offset, on average."""
    topics: dict[str, list[int]] = {}
    for place in ends:
        topics.setdefault(place.topic, []).append(place.partition)
    largest: dict[TopicPartition, int] = {}
    for sizes in (await admin.log_sizes(source, topics)).values():
        for place, size in sizes.items():
            largest[place] = max(size, largest.get(place, 0))
    return {
        place: largest.get(place, 0) / max(1, end - firsts.get(place, 0))
        for place, end in ends.items()
    }
