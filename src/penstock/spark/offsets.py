"""Which offsets a query reads, as plain values: JSON as Spark writes it, ranges, limits, splits and what counts as lost.

Nothing here asks a broker; whoever calls has the answers already.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.model.ids import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]
OffsetJson: TypeAlias = dict[str, dict[str, int]]

EARLIEST: Final = -2  # what the two names are in JSON, and in ListOffsets
LATEST: Final = -1
_MAX_OFFSET: Final = 2**63 - 1
_SHOWN: Final = 5  # partitions named in a message


class DataLoss(Exception):
    """What a query was to read is not there any more."""


class OffsetRange(NamedTuple):
    """The offsets from `start` up to `end`, which is one past the last."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets: compaction and transactions may leave fewer records."""
        return self.end - self.start


class Planned(NamedTuple):
    """Ranges that can be read, and a line for everything that was missed."""

    ranges: list[OffsetRange]
    losses: list[str]


# JSON ----------------------------------------------------------------------------------------


def parse_offsets(text: str) -> Offsets:
    """`{"topic": {"0": 23, "1": -1}}`; a ValueError says what was expected."""
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f'expected JSON such as {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, not {text}'
        ) from None


def parse_partitions(text: str) -> list[TopicPartition]:
    """`{"topic": [0, 1]}`; a ValueError says what was expected."""
    try:
        found = [
            TopicPartition(topic, _integer(index))
            for topic, indexes in json.loads(text).items()
            for index in indexes
        ]
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f'expected JSON such as {{"topicA":[0,1],"topicB":[0,1]}}, not {text}'
        ) from None
    return sorted(set(found))


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(index)): _integer(offset)
        for topic, indexes in value.items()
        for index, offset in indexes.items()
    }


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """Always in the same order: Spark compares the texts to see whether there is anything new."""
    value: OffsetJson = {}
    for (topic, index), offset in sorted(offsets.items()):
        value.setdefault(topic, {})[str(index)] = offset
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected an integer, not {value!r}")
    return value


# Ranges --------------------------------------------------------------------------------------


def stream_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Planned:
    """What lies between two points of a stream. `earliest`: where partitions not in `start` begin."""
    losses: list[str] = []
    if unknown := sorted(end.keys() - start.keys() - earliest.keys()):
        losses.append(f"{names(unknown)} came and went before anything of it was read")
    losses += [
        f"new partition {partition} starts at offset {earliest[partition]}, not 0: "
        "what was before is gone"
        for partition in sorted(end.keys() - start.keys())
        if earliest.get(partition, 0) != 0
    ]
    if gone := sorted(start.keys() - end.keys()):
        losses.append(f"{names(gone)} is gone; some of its records may not have been read")
    begin = {**earliest, **start}
    ranges = [OffsetRange(p, begin[p], end[p]) for p in sorted(end) if p in begin]
    return Planned([r for r in ranges if r.size > 0], losses + _gone_back(ranges))


def _gone_back(ranges: Iterable[OffsetRange]) -> list[str]:
    return [
        f"{r.partition} now ends at offset {r.end}, and was to be read from {r.start} on: "
        "either the start was given past the end, or the topic was deleted and created again"
        for r in ranges
        if r.size < 0
    ]


def batch_ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Planned:
    """What lies between two resolved points, which name the same partitions."""
    ranges = [OffsetRange(p, start[p], end[p]) for p in sorted(end)]
    return Planned([r for r in ranges if r.size > 0], _gone_back(ranges))


def split(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Pieces of at most `max_records` offsets, and about `min_partitions` of them: one Spark task each."""
    pieces = [piece for r in ranges if r.size > 0 for piece in _pieces(r, _count(r, max_records))]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    small = {p.partition for p in pieces if _share(p.size, total, min_partitions) == 1}
    large_total = sum(piece.size for piece in pieces if piece.partition not in small)
    wanted = max(min_partitions - sum(p.partition in small for p in pieces), 1)
    divided: list[OffsetRange] = []
    for piece in pieces:
        is_small = piece.partition in small
        divided += _pieces(piece, 1 if is_small else _share(piece.size, large_total, wanted))
    return divided


def _count(range_: OffsetRange, max_records: int | None) -> int:
    return 1 if max_records is None else ceil(range_.size / max_records)


def _share(size: int, total: int, parts: int) -> int:
    return max(floor(size / total * parts + 0.5), 1)


def _pieces(range_: OffsetRange, count: int) -> list[OffsetRange]:
    """As even as can be; the last ones take what is left over. None of them is empty."""
    pieces, start = [], range_.start
    for left in range(count, 0, -1):
        end = start + (range_.end - start) // left
        if end > start:
            pieces.append(OffsetRange(range_.partition, start, end))
        start = end
    return pieces


# Limits --------------------------------------------------------------------------------------


def limited(
    limit: int,
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Offsets:
    """An end at most about `limit` offsets after `start`, shared out by how much each partition has.

    Even the smallest share is one offset, so that no partition starves.
    """
    begin = {**earliest, **start}
    sizes = {p: latest[p] - begin[p] for p in latest if p in begin and latest[p] > begin[p]}
    total = sum(sizes.values())
    end = dict(latest)
    for partition, size in sizes.items():
        share = limit * (size / total)
        step = ceil(share) if share < 1 else floor(share)
        end[partition] = min(latest[partition], begin[partition] + step, _MAX_OFFSET)
    return end


def available(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> int:
    """How many offsets there are to read."""
    begin = {**earliest, **start}
    return sum(max(0, latest[p] - begin[p]) for p in latest if p in begin)


def all_named(
    given: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition], option: str
) -> None:
    """A ValueError unless `given` has exactly the partitions that are read."""
    expected = set(partitions)
    if given.keys() == expected:
        return
    missing, surplus = sorted(expected - given.keys()), sorted(given.keys() - expected)
    parts = [f"{names(missing)} is not named"] if missing else []
    parts += [f"{names(surplus)} is not read by this query"] if surplus else []
    raise ValueError(
        f"{option} must name every partition that is read, and no other: {'; '.join(parts)} "
        "(-1 is latest, -2 is earliest)"
    )


def names(partitions: Sequence[TopicPartition]) -> str:
    """The first few of them."""
    shown = ", ".join(map(str, partitions[:_SHOWN]))
    left = len(partitions) - _SHOWN
    return f"{shown} and {left} more" if left > 0 else shown
