"""Compute the verdict of an audit: the counts, and where the first offences are. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.jobs.audit.compare import LEGAL, OFFENDING, Kind, Offence

_WORDS: Final = {
    Kind.MISSING: "missing",
    Kind.DUPLICATE: "more than once",
    Kind.REORDERED: "out of order",
    Kind.CHANGED: "changed",
    Kind.EXTRA: "that should not be there",
    Kind.BEHIND: "not there yet",
    Kind.EXPIRED: "older than what one side still holds",
    Kind.COMPACTED: "compacted away",
    Kind.UNCLAIMED: "of which the ledger says nothing",
    Kind.UNACKNOWLEDGED: "there that were never acknowledged",
    Kind.REPEATED: "once more, as their producer may do",
}
_GAP_WORDS: Final = {
    "markers": "transaction markers",
    "aborted": "records of aborted transactions",
    "holes": "offsets compacted away",
}

Counts = Iterable[tuple[str, int, Kind, int]]


class Gaps(NamedTuple):
    """Offsets of a partition that have no record, for a good reason."""

    markers: int
    aborted: int
    holes: int


def gaps(span: int, *, records: int, markers: int, stored: int) -> Gaps:
    """Of `span` offsets, in which a reader found `records`; batches hold `stored` records and `markers`.

    >>> gaps(10, records=4, markers=2, stored=7)
    Gaps(markers=2, aborted=3, holes=1)
    """
    return Gaps(markers, max(0, stored - records), max(0, span - markers - stored))


def verdict(
    counts: Counts,
    offences: Sequence[Offence],
    gaps_of: Mapping[TopicPartition, Gaps],
    places: Iterable[TopicPartition],
) -> dict[str, Any]:
    """Totals, and an entry for each partition."""
    of: dict[TopicPartition, Counter[Kind]] = {place: Counter() for place in places}
    for topic, partition, kind, count in counts:
        of.setdefault(TopicPartition(topic, partition), Counter())[kind] += count
    total: Counter[Kind] = sum(of.values(), Counter())
    all_gaps = [sum(column) for column in zip(*gaps_of.values(), strict=True)] or [0, 0, 0]
    return {
        "passed": not any(total[kind] for kind in OFFENDING),
        **{str(kind): total[kind] for kind in (Kind.AGREED, *OFFENDING, *LEGAL)},
        "gaps": Gaps(*all_gaps)._asdict(),
        "partitions": [
            {
                "topic": place.topic,
                "partition": place.partition,
                **{str(kind): found[kind] for kind in (Kind.AGREED, *OFFENDING, *LEGAL)},
                "gaps": gaps_of.get(place, Gaps(0, 0, 0))._asdict(),
                "first": _first(place, offences),
            }
            for place, found in sorted(of.items())
        ],
    }


def _first(place: TopicPartition, offences: Sequence[Offence]) -> dict[str, list[int]]:
    """The first offending offsets by kind."""
    found: dict[str, list[int]] = {}
    for one in offences:
        if (one.topic, one.partition) == place:
            found.setdefault(str(one.kind), []).append(one.offset)
    return found


# For people --------------------------------------------------------------------------------------


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The verdict first."""
    said = "passed" if facts["passed"] else "FAILED"
    yield f"{said}: {facts['compared']}"
    yield f"  {facts['agreed']:,} records agree, of {len(facts['partitions'])} partitions"
    for kind in OFFENDING:
        if facts[kind]:
            yield f"  {facts[kind]:,} {_WORDS[kind]}"
            yield from _places(facts["partitions"], kind)
    for kind in LEGAL:
        if facts[kind]:
            yield f"  {facts[kind]:,} {_WORDS[kind]} (no fault)"
    for name, words in _GAP_WORDS.items():
        if facts["gaps"][name]:
            yield f"  {facts['gaps'][name]:,} {words} (no fault)"
    yield from (f"  note: {note}" for note in facts["notes"])


def _places(partitions: Sequence[Mapping[str, Any]], kind: Kind) -> Iterator[str]:
    for entry in partitions:
        offsets = entry["first"].get(kind)
        if offsets:
            shown = ", ".join(map(str, offsets))
            more = " …" if entry[kind] > len(offsets) else ""
            yield f"    {entry['topic']}-{entry['partition']} at {shown}{more}"
