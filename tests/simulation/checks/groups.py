"""Checks what consumer groups told their members: committed offsets, owners of partitions, delivery.

Pure. Times are those of one clock; what has the same time was done by one client, in its order. An operation takes effect at one moment
between its start and its end; the end of one whose response is unknown is infinite, until a read shows it.
Every commit carries a token of its own, so that a read names the commit that it returns.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from tests.support.failures import DataError

Place = tuple[str, int]  # topic, of one incarnation, and index
NOTHING: Final = -1  # the offset of a position that was never committed, or deleted
_SHOWN: Final = 3
_CLOCKS: Final = 0.99  # clocks of machines differ by less


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"  # by an error that means: it never takes effect
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A commit of one position, or its deletion (`offset` is NOTHING)."""

    group: str
    place: Place
    offset: int
    token: str
    start_s: float
    member: str = ""
    end_s: float = inf
    outcome: Outcome = Outcome.UNKNOWN


class Read(NamedTuple):
    """One position as OffsetFetch returned it."""

    group: str
    place: Place
    offset: int
    token: str
    start_s: float
    end_s: float
    reader: str = ""


@dataclass(slots=True)
class Claim:
    """A member owns a partition, as far as it knows: from the assignment until it gives the partition up."""

    group: str
    member: str
    place: Place
    granted_s: float
    patience_s: float  # for so long after it was heard of, the coordinator gives the partition to nobody else
    released_s: float = inf
    kept_s: list[float] = field(
        default_factory=list
    )  # starts of requests that left it the partition
    committed_s: list[float] = field(default_factory=list)  # starts of commits that were accepted


class Synced(NamedTuple):
    """A response to SyncGroup; `made_in` is the generation for which the leader made the assignment."""

    group: str
    generation: int
    member: str
    made_in: int
    author: str
    places: Sequence[Place]


class Rejected(NamedTuple):
    """A member that kept all rules was told that it is none (any more)."""

    group: str
    member: str
    heard_s: float  # start of the last request that the coordinator accepted
    at_s: float
    patience_s: float
    is_fenced: bool  # by its epoch, which was the last that it received


class Pending(NamedTuple):
    """A transaction has a position that it did not end yet: nobody may be told a stable offset."""

    group: str
    place: Place
    start_s: float
    end_s: float


class Look(NamedTuple):
    """Whether a coordinator had its groups at hand, in one run of a broker and one epoch of the partition."""

    term: tuple[int, ...]
    group: str
    is_loading: bool
    start_s: float
    end_s: float


@dataclass(slots=True)
class GroupHistory:
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)  # in the order of their ends
    stable_reads: list[Read] = field(default_factory=list)  # those with require_stable
    pending: list[Pending] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    synced: list[Synced] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    accepted_late: list[str] = field(
        default_factory=list
    )  # requests of an older epoch or generation
    handled: dict[str, dict[Place, set[int]]] = field(default_factory=dict)


class Kind(Enum):
    WENT_BACK = "a later commit was acknowledged, or read, before"
    REFUSED_COUNTS = "a commit that was rejected is read"
    PHANTOM = "nobody committed that there"
    RETURNED = "the position was deleted"
    UNSTABLE = "a transaction had the position, and a stable offset was told"
    TWO_OWNERS = "a partition with two owners"
    FORMER_MEMBER = "a former owner's commit was accepted"
    STALE_SYNC = "an assignment of another generation"
    LATE_ACCEPTED = "a request with an epoch or generation that is over was accepted"
    LOST_MEMBER = "a member that kept its session was removed"
    FENCED_MEMBER = "a member was fenced at the epoch that it was given"
    FORGOT = "a coordinator lost its groups without losing its partition"
    SKIPPED = "no member of the group got it"


class Anomaly(NamedTuple):
    kind: Kind
    group: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} ({self.kind.value}): group {self.group}: {self.detail}"


def assert_sound(history: GroupHistory, ends: Mapping[Place, int]) -> None:
    """Fail with how many of each kind, and the first few of them."""
    found = list(check(history, ends))
    if not found:
        return
    counts = Counter(anomaly.kind for anomaly in found)
    lines = [f"{number} x {kind.name.lower()}" for kind, number in counts.items()]
    for kind in counts:
        lines += [str(anomaly) for anomaly in found if anomaly.kind is kind][:_SHOWN]
    raise DataError("; ".join(lines[len(counts) :] + lines[: len(counts)]))


def check(history: GroupHistory, ends: Mapping[Place, int]) -> Iterator[Anomaly]:
    """All anomalies. `ends`: of the logs whose records, from offset 0 on, every group should have got."""
    yield from _offsets(history)
    yield from _unstable(history)
    yield from _owners(history.claims)
    yield from _generations(history.synced)
    yield from _rejections(history.rejected)
    yield from _forgotten(history.looks)
    for detail in history.accepted_late:
        yield Anomaly(Kind.LATE_ACCEPTED, "", detail)
    for group, handled in history.handled.items():
        for place, end in ends.items():
            missing = set(range(end)) - handled.get(place, set())
            if missing:
                detail = f"{place[0]}-{place[1]} of {end} records: {sorted(missing)[:_SHOWN]}"
                yield Anomaly(Kind.SKIPPED, group, detail)


# Committed offsets -------------------------------------------------------------------------------


def _offsets(history: GroupHistory) -> Iterator[Anomaly]:
    by_position: defaultdict[tuple[str, Place], list[Write]] = defaultdict(list)
    by_token: dict[str, Write] = {}
    for write in history.writes:
        by_position[write.group, write.place].append(write)
        if write.token:
            assert by_token.setdefault(write.token, write) is write, "a token names one commit"
    reads: defaultdict[tuple[str, Place], list[Read]] = defaultdict(list)
    for read in history.reads:
        reads[read.group, read.place].append(read)
    for position, found in reads.items():
        register = _Register(by_position[position])
        for read in found:
            yield from register.read(read, by_token.get(read.token))


class _Register:
    """One committed position. Reads come in the order of their ends."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._writes = writes
        self._ends_s = {id(it): it.end_s for it in writes if it.outcome is Outcome.DONE}

    def read(self, read: Read, write: Write | None) -> Iterator[Anomaly]:
        if read.offset == NOTHING:
            yield from self._read_nothing(read)
            return
        if write is None or (write.group, write.place, write.offset) != read[:3]:
            known = f"; its token is of {write}" if write else ""
            yield Anomaly(Kind.PHANTOM, read.group, f"{_told(read)}{known}")
            return
        if write.outcome is Outcome.REFUSED:
            yield Anomaly(Kind.REFUSED_COUNTS, read.group, f"{_told(read)}, refused {write}")
            return
        if write.start_s > read.end_s:
            yield Anomaly(Kind.PHANTOM, read.group, f"{_told(read)} before its commit {write}")
            return
        end_s = self._ends_s.get(id(write), inf)
        newer = self._superseding(end_s, read.start_s)
        if newer is not None:
            kind = Kind.RETURNED if newer.offset == NOTHING else Kind.WENT_BACK
            yield Anomaly(kind, read.group, f"{_told(read)} after {newer}")
        self._ends_s[id(write)] = min(end_s, read.end_s)  # it has taken effect by then

    def _read_nothing(self, read: Read) -> Iterator[Anomaly]:
        """Right before the first commit, or if a deletion may be the last operation."""
        deleted_s = -inf
        for write in self._writes:
            is_deletion = write.offset == NOTHING and write.outcome is not Outcome.REFUSED
            if is_deletion and write.start_s <= read.end_s:
                deleted_s = max(deleted_s, self._ends_s.get(id(write), inf))
        newer = self._superseding(deleted_s, read.start_s)
        if newer is not None:
            yield Anomaly(Kind.WENT_BACK, read.group, f"{_told(read)} after {newer}")

    def _superseding(self, after_s: float, before_s: float) -> Write | None:
        """A write that began after one moment, and had taken effect before another."""
        for write in self._writes:
            if write.start_s >= after_s and self._ends_s.get(id(write), inf) <= before_s:
                return write
        return None


def _told(read: Read) -> str:
    topic, index = read.place
    return (
        f"{read.reader} read {topic}-{index} at {read.offset} ({read.token})"
        f" from {read.start_s:.3f} to {read.end_s:.3f}"
    )


def _unstable(history: GroupHistory) -> Iterator[Anomaly]:
    for read in history.stable_reads:
        for pending in history.pending:
            if (
                pending[:2] == read[:2]
                and pending.start_s <= read.start_s
                and read.end_s <= pending.end_s
            ):
                yield Anomaly(Kind.UNSTABLE, read.group, _told(read))


# Owners ------------------------------------------------------------------------------------------


def _owners(claims: Sequence[Claim]) -> Iterator[Anomaly]:
    by_place: defaultdict[tuple[str, Place], list[Claim]] = defaultdict(list)
    for claim in claims:
        by_place[claim.group, claim.place].append(claim)
    for known in by_place.values():
        known.sort(key=lambda it: it.granted_s)
        for number, newer in enumerate(known):
            for older in known[:number]:
                if older.member != newer.member and older.released_s > newer.granted_s:
                    yield from _overlap(older, newer)


def _overlap(older: Claim, newer: Claim) -> Iterator[Anomaly]:
    """Both believe that they own it: right only if the coordinator has given up on the older."""
    topic, index = older.place
    which = f"{topic}-{index}: {older.member} since {older.granted_s:.3f}, {newer.member} since"
    which = f"{which} {newer.granted_s:.3f}"
    late = bisect_right(older.committed_s, newer.granted_s)
    if late < len(older.committed_s):
        detail = f"{which}; commit of the first at {older.committed_s[late]:.3f}"
        yield Anomaly(Kind.FORMER_MEMBER, older.group, detail)
    before = bisect_left(older.kept_s, newer.granted_s)
    heard_s = older.kept_s[before - 1] if before else -inf
    if newer.granted_s < heard_s + older.patience_s * _CLOCKS:
        detail = f"{which}; the first was heard of at {heard_s:.3f}"
        yield Anomaly(Kind.TWO_OWNERS, older.group, detail)


def _generations(synced: Sequence[Synced]) -> Iterator[Anomaly]:
    known: dict[tuple[str, int], dict[Place, str]] = {}
    authors: dict[tuple[str, int], str] = {}
    for one in synced:
        key = one.group, one.generation
        if one.made_in != one.generation or authors.setdefault(key, one.author) != one.author:
            detail = f"{one.member} got one of {one.made_in} by {one.author} in {one.generation}"
            yield Anomaly(Kind.STALE_SYNC, one.group, detail)
            continue
        owners = known.setdefault(key, {})
        for place in one.places:
            if owners.setdefault(place, one.member) != one.member:
                detail = f"{place} is of {owners[place]} and {one.member} in {one.generation}"
                yield Anomaly(Kind.TWO_OWNERS, one.group, detail)


def _rejections(rejected: Sequence[Rejected]) -> Iterator[Anomaly]:
    for one in rejected:
        if one.is_fenced:
            yield Anomaly(Kind.FENCED_MEMBER, one.group, f"{one.member} at {one.at_s:.3f}")
        elif one.at_s < one.heard_s + one.patience_s * _CLOCKS:
            detail = f"{one.member} at {one.at_s:.3f}, heard of at {one.heard_s:.3f}"
            yield Anomaly(Kind.LOST_MEMBER, one.group, detail)


def _forgotten(looks: Sequence[Look]) -> Iterator[Anomaly]:
    loaded_s: dict[tuple[int, ...], float] = {}
    for look in looks:
        if not look.is_loading:
            loaded_s.setdefault(look.term, look.end_s)
        elif loaded_s.get(look.term, inf) < look.start_s:
            detail = f"{look.term} at {look.end_s:.3f}, loaded by {loaded_s[look.term]:.3f}"
            yield Anomaly(Kind.FORGOT, look.group, detail)
