"""Determine which offsets a replay has. Pure.

The first run decides, and all later runs use the same offsets.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.chunks import next_chunk
from penstock.spark.jobs.record_times import ALWAYS, Times, times_of
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


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """In their order, and each offset once, however often it was asked for."""
    found: list[Piece] = []
    for piece in sorted(pieces):
        last = found[-1] if found else None
        if last is not None and last.place == piece.place and piece.first <= last.after:
            found[-1] = last._replace(after=max(last.after, piece.after))
        else:
            found.append(piece)
    return tuple(found)


def check_held(ranges: Ranges, asked: Sequence[Piece]) -> None:
    """JobError for what the topics do not hold."""
    for place, first, after in asked:
        if place not in ranges.first:
            raise JobError(f"--offsets: {place} does not exist, or its topic is not replayed")
        held = ranges.first[place], ranges.after[place]
        if first < held[0] or after > held[1]:
            raise JobError(
                f"--offsets: {place} holds offsets {held[0]:,} up to {held[1]:,}, and not all of {first:,}-{after:,}; "
                "without --read-uncommitted it ends where the first open transaction begins"
            )


class Decided(NamedTuple):
    """What the first run of a replay found, and for which wish."""

    wish: str  # a digest of what was asked for
    pieces: tuple[Piece, ...]  # in order, apart from each other, none of them empty
    times: Times = ALWAYS  # offsets cannot tell them: times of records need not rise
    topic_ids: tuple[tuple[str, str], ...] = ()  # by name; none of topics of brokers that give none

    @property
    def first(self) -> Offsets:
        """Where each partition's first piece begins."""
        return {piece.place: piece.first for piece in reversed(self.pieces)}

    @property
    def after(self) -> Offsets:
        """Where each partition's last piece ends."""
        return {piece.place: piece.after for piece in self.pieces}

    @property
    def offsets(self) -> int:
        return sum(after - first for _, first, after in self.pieces)

    def done(self, at: Mapping[TopicPartition, int]) -> int:
        """How many of the offsets lie before `at`."""
        return sum(max(0, min(at[p], after) - first) for p, first, after in self.pieces)

    def next_chunk(self, at: Mapping[TopicPartition, int], most: int) -> tuple[Offsets, Offsets]:
        """As the function: of each partition only the piece that comes next, which keeps its records in order."""
        ahead: dict[TopicPartition, Piece] = {}
        for piece in self.pieces:
            if piece.after > at[piece.place]:
                ahead.setdefault(piece.place, piece)
        start = {place: max(at[place], piece.first) for place, piece in ahead.items()}
        return next_chunk(start, {place: piece.after for place, piece in ahead.items()}, most)


def decided(
    wish: str,
    ranges: Ranges,
    asked: Sequence[Piece] = (),
    times: Times = ALWAYS,
    topic_ids: Mapping[str, str] | None = None,
) -> Decided:
    """All that there is, or the pieces that were asked for; partitions of which there is nothing are left out."""
    check_held(ranges, asked)
    whole = [Piece(p, first, ranges.after[p]) for p, first in ranges.first.items()]
    some = [piece for piece in whole if piece.first < piece.after]
    return Decided(wish, merged(asked or some), times, _pairs(topic_ids or {}))


def _pairs(topic_ids: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(topic_ids.items()))


def check_ids(what: Decided, ids: Mapping[str, str]) -> None:
    """Raise JobError if a topic is another one than when the replay began (`ids`: as they are now)."""
    for topic, was in what.topic_ids:
        if ids.get(topic, was) != was:
            raise JobError(
                f"topic {topic!r} was deleted and created again since this replay began (its id was {was} and is "
                f"{ids[topic]}): the records that were to be replayed are gone; give another --id for those of the "
                "new topic, and for what is left of other topics"
            )


def kept(
    wish: str,
    first: Offsets,
    after: Offsets,
    asked: Sequence[Piece] = (),
    times: Times = ALWAYS,
    topic_ids: Mapping[str, str] | None = None,
) -> Decided:
    """What an earlier run decided. It kept where partitions begin and end: the pieces between are the wish's, and so `asked`."""
    ids = _pairs(topic_ids or {})
    if not asked:
        return Decided(wish, merged(Piece(p, first[p], after[p]) for p in first), times, ids)
    inside = (
        Piece(p, max(start, first[p]), min(end, after[p])) for p, start, end in asked if p in first
    )
    return Decided(wish, merged(piece for piece in inside if piece.first < piece.after), times, ids)


def mark(what: Decided, place: TopicPartition) -> str:
    """For the metadata of a partition's offset: all that a later run must know of it, and how many partitions there are.

    A topic that is deleted takes its offsets out of the group. The others then tell that something is missing.
    """
    told: dict[str, object] = {
        "wish": what.wish,
        "first": what.first[place],
        "after": what.after[place],
        "partitions": len(what.first),
    }
    if topic_id := dict(what.topic_ids).get(place.topic):
        told["topic_id"] = topic_id
    return json.dumps({**told, **what.times.facts}, separators=(",", ":"))


def from_marks(
    committed: Committed, group: str, topics: Iterable[str], asked: Sequence[Piece] = ()
) -> Decided | None:
    """What an earlier run wrote into the group; None if there was none. `topics`: of the wish."""
    if not committed:
        return None
    common: set[tuple[str, int, Times]] = set()  # the same for every partition
    first, after, topic_ids = {}, {}, {}
    try:
        for place, row in committed.items():
            told = json.loads(row.metadata or "")
            count = int(told.get("partitions", len(committed)))  # no count: an earlier version
            common.add((str(told["wish"]), count, times_of(told)))
            first[place], after[place] = int(told["first"]), int(told["after"])
            if "topic_id" in told:
                topic_ids[place.topic] = str(told["topic_id"])
        ((wish, count, times),) = common
    except (ValueError, KeyError, TypeError, AttributeError):
        raise JobError(f"group {group} was not made by a replay; give another --id") from None
    if count != len(committed):
        raise JobError(_missing(committed, group, count, topics))
    return kept(wish, first, after, asked, times, topic_ids)


def _missing(committed: Committed, group: str, count: int, topics: Iterable[str]) -> str:
    gone = sorted(set(topics) - {place.topic for place in committed})
    why = f"{', '.join(map(repr, gone))} was deleted" if gone else "some were deleted"
    return (
        f"group {group} has offsets of {len(committed)} partitions, and the replay has {count}: {why} since the replay "
        "began, so nobody knows how much of that was replayed; look at the target, then give another --id for what it "
        "lacks"
    )
