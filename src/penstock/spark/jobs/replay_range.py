"""Which offsets a replay has: found once, by its first run, and the same ever after. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.offsets import Offsets
from penstock.spark.survey import Ranges
from penstock.spark.transactional import Committed

_PIECE: Final = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+):(?P<first>\d+)-(?P<after>\d+)")


class Piece(NamedTuple):
    """Of one partition: from `first` up to, and without, `after`."""

    place: TopicPartition
    first: int
    after: int


def parse_piece(text: str) -> Piece:
    """`orders:0:100-200`.

    >>> parse_piece("orders:0:100-200")
    Piece(place=TopicPartition(topic='orders', partition=0), first=100, after=200)
    """
    found = _PIECE.fullmatch(text)
    if not found or int(found["first"]) >= int(found["after"]):
        raise ValueError(f"--offsets: expected TOPIC:PARTITION:FIRST-AFTER, not {text!r}")
    place = TopicPartition(found["topic"], int(found["partition"]))
    return Piece(place, int(found["first"]), int(found["after"]))


def narrowed(ranges: Ranges, pieces: Sequence[Piece]) -> Ranges:
    """Only the pieces, where there are some; JobError for what the topics do not hold."""
    if not pieces:
        return ranges
    for place, first, after in pieces:
        if place not in ranges.first:
            raise JobError(f"--offsets: {place} does not exist, or its topic is not replayed")
        held = ranges.first[place], ranges.after[place]
        if first < held[0] or after > held[1]:
            raise JobError(
                f"--offsets: {place} holds offsets {held[0]:,} up to {held[1]:,}, and not all of {first:,}-{after:,}"
            )
    return Ranges(
        ranges.cluster_id,
        {piece.place: piece.first for piece in pieces},
        {piece.place: piece.after for piece in pieces},
    )


class Decided(NamedTuple):
    """What the first run of a replay found, and for which wish."""

    wish: str  # a digest of what was asked for
    first: Offsets
    after: Offsets

    @property
    def offsets(self) -> int:
        return sum(self.after[place] - first for place, first in self.first.items())


def decided(wish: str, ranges: Ranges) -> Decided:
    """Partitions of which there is nothing are left out."""
    some = [place for place, first in ranges.first.items() if first < ranges.after[place]]
    return Decided(
        wish,
        {place: ranges.first[place] for place in some},
        {place: ranges.after[place] for place in some},
    )


def mark(what: Decided, place: TopicPartition) -> str:
    """For the metadata of a partition's offset: all that a later run must know of it."""
    return json.dumps(
        {"wish": what.wish, "first": what.first[place], "after": what.after[place]},
        separators=(",", ":"),
    )


def from_marks(committed: Committed, group: str) -> Decided | None:
    """What an earlier run wrote into the group; None if there was none."""
    if not committed:
        return None
    wishes, first, after = set(), {}, {}
    for place, row in committed.items():
        try:
            told = json.loads(row.metadata or "")
            wishes.add(str(told["wish"]))
            first[place], after[place] = int(told["first"]), int(told["after"])
        except (ValueError, KeyError, TypeError):
            wishes.add("")
    if len(wishes) != 1 or "" in wishes:
        raise JobError(f"group {group} was not made by a replay; give another --id")
    return Decided(wishes.pop(), first, after)


def next_chunk(
    at: Mapping[TopicPartition, int], after: Offsets, most: int
) -> tuple[Offsets, Offsets]:
    """From where to where the next transaction goes: at most `most` offsets, an equal share of each partition's rest."""
    left = {place: after[place] - at[place] for place in sorted(after) if after[place] > at[place]}
    share = max(1, most // max(1, len(left)))
    start, end, room = {}, {}, most
    for place, rest in left.items():
        taken = min(rest, share, room)
        if taken > 0:
            start[place], end[place] = at[place], at[place] + taken
            room -= taken
    return start, end
