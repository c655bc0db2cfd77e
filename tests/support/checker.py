"""Holds what clients were told against what there is in the end: every promise of a log, each with its own detector.

Pure, and linear in the history's length. Every value is sent once, so a value is its message's identity.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tests.support.failures import DataError

Partition = tuple[str, int]  # topic and index
Log = Sequence[tuple[int, bytes]]  # offsets and values, as they are read in order

_SHOWN: Final = 3
_NOTES: Final = 200  # lines of the producers' own logs
_SHOWN_BYTES: Final = 40


class Outcome(Enum):
    """What a producer knows of a message, or of a transaction's commit."""

    DONE = "done"  # acknowledged, or committed
    FAILED = "failed"  # certainly not, and never will be; of a transaction: aborted
    UNKNOWN = "unknown"  # nobody was told


@dataclass(slots=True)
class Send:
    """One message. A producer's sends to a partition are recorded in the order of its calls."""

    producer: str
    partition: Partition
    value: bytes
    sent_ns: int = 0
    transaction: str | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None  # as acknowledged; None also when it was not told
    acked_ns: int = 0


class Seen(NamedTuple):
    """One message as a reader got it; a session is a run of polls without a seek or a rebalance."""

    reader: str
    session: int
    partition: Partition
    offset: int
    value: bytes


@dataclass(slots=True)
class History:
    """Recorded while it happens; `append` is all that recorders do, so threads may share it."""

    sends: list[Send] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)  # by readers of committed messages only
    transactions: dict[str, Outcome] = field(default_factory=dict)
    logs: dict[Partition, Log] = field(default_factory=dict)  # in the end, all that is committed
    replicas: dict[tuple[str, Partition], Log] = field(default_factory=dict)  # copies, by holder
    groups: dict[str, set[str]] = field(default_factory=dict)  # readers that share partitions
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))  # for a failed check


class Kind(Enum):
    LOST = "acknowledged and not there"
    VANISHED = "read once and not there any more"
    DUPLICATE = "there more than once"
    REORDERED = "not in the order in which one producer sent"
    BACKDATED = "before a message that was sent after it was acknowledged"
    INCONSISTENT = "two messages told of at one offset, or one message at two"
    NOT_MONOTONIC = "a reader went back"
    SKIPPED = "a reader passed over it"
    UNREAD = "a group of readers never got it"
    PHANTOM = "never sent there"
    ABORTED = "it failed, or its transaction was aborted, and it was read"
    TORN = "only a part of its transaction is there"


class Anomaly(NamedTuple):
    kind: Kind
    partition: Partition | None
    detail: str

    def __str__(self) -> str:
        place = "" if self.partition is None else f"{self.partition[0]}-{self.partition[1]}: "
        return f"{self.kind.name.lower()} ({self.kind.value}): {place}{self.detail}"


def _short(value: bytes) -> str:
    """Enough of it to know it by."""
    return repr(value if len(value) <= _SHOWN_BYTES else value[:_SHOWN_BYTES] + b"...")


def assert_sound(history: History, *, idempotent: bool = True) -> None:
    """Fails with how many of each kind, and the first few of them."""
    found = list(check(history, idempotent=idempotent))
    if not found:
        return
    counts = Counter(anomaly.kind for anomaly in found)
    lines = [f"{number} x {kind.name.lower()}: {kind.value}" for kind, number in counts.items()]
    for kind in counts:
        lines += [str(anomaly) for anomaly in found if anomaly.kind is kind][:_SHOWN]
    raise DataError("\n".join([f"in {summary(history)}:", *lines, *history.notes]))


def summary(history: History) -> str:
    outcomes = Counter(send.outcome.value for send in history.sends)
    told = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
    there = sum(map(len, history.logs.values()))
    return f"{len(history.sends)} sends ({told}), {len(history.seen)} reads, {there} in the end"


def check(history: History, *, idempotent: bool = True) -> Iterator[Anomaly]:
    """Everything that is wrong. Without idempotence producers may double and reorder what they retry."""
    facts = _Facts(history)
    yield from _kept(facts)
    yield from _placed(facts)
    yield from _visible(facts)
    yield from _whole(facts)
    yield from _polled(facts)
    yield from _delivered(facts)
    if idempotent:
        yield from _once(facts)
        yield from _in_order(facts)
        yield from _in_real_time(facts)


class _Facts:
    """The history, with what several detectors look up."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.logs = history.logs
        self.sends: dict[bytes, Send] = {}
        for send in history.sends:
            if self.sends.setdefault(send.value, send) is not send:
                raise ValueError(f"{_short(send.value)} was sent twice: values identify messages")
        self.there: dict[Partition, Counter[bytes]] = {
            partition: Counter(value for _, value in log) for partition, log in self.logs.items()
        }

    def has(self, send: Send) -> bool:
        return self.there.get(send.partition, _EMPTY)[send.value] > 0

    def fate(self, send: Send) -> Outcome:
        """Whether it must be there in the end (DONE), must not be (FAILED), or may be."""
        if send.transaction is None or send.outcome is Outcome.FAILED:
            return send.outcome
        ending = self.history.transactions.get(send.transaction, Outcome.UNKNOWN)
        return send.outcome if ending is Outcome.DONE else ending


_EMPTY: Final[Counter[bytes]] = Counter()


# What was promised is there ----------------------------------------------------------------------


def _kept(facts: _Facts) -> Iterator[Anomaly]:
    """Lost: acknowledged and gone. Vanished: some reader had it, and it is gone."""
    for send in facts.sends.values():
        if facts.fate(send) is Outcome.DONE and not facts.has(send):
            yield Anomaly(
                Kind.LOST, send.partition, f"{_short(send.value)} was acked at {send.offset}"
            )
    for seen in facts.history.seen:
        if facts.there.get(seen.partition, _EMPTY)[seen.value] == 0:
            yield Anomaly(
                Kind.VANISHED,
                seen.partition,
                f"{seen.reader} read {_short(seen.value)} at {seen.offset}",
            )


def _once(facts: _Facts) -> Iterator[Anomaly]:
    for partition, counts in facts.there.items():
        for value, number in counts.items():
            if number > 1:
                yield Anomaly(Kind.DUPLICATE, partition, f"{_short(value)} is there {number} times")


# Offsets are names that never change -------------------------------------------------------------


def _placed(facts: _Facts) -> Iterator[Anomaly]:
    """One value at an offset, whoever tells of it: logs, copies, readers, acknowledgements."""
    known: dict[tuple[Partition, int], tuple[bytes, str]] = {}
    for partition, offset, value, who in _tellings(facts.history):
        first, teller = known.setdefault((partition, offset), (value, who))
        if first != value:
            detail = f"offset {offset} is {_short(first)} for {teller}, {_short(value)} for {who}"
            yield Anomaly(Kind.INCONSISTENT, partition, detail)


def _tellings(history: History) -> Iterator[tuple[Partition, int, bytes, str]]:
    for partition, log in history.logs.items():
        yield from ((partition, offset, value, "the log") for offset, value in log)
    for (holder, partition), log in history.replicas.items():
        yield from ((partition, offset, value, holder) for offset, value in log)
    for seen in history.seen:
        yield seen.partition, seen.offset, seen.value, seen.reader
    for send in history.sends:
        if send.offset is not None:
            yield send.partition, send.offset, send.value, f"producer {send.producer}"


# Nothing else is there ---------------------------------------------------------------------------


def _visible(facts: _Facts) -> Iterator[Anomaly]:
    """Whatever is read was sent there, and did not fail."""
    for partition, value, who in _readings(facts.history):
        send = facts.sends.get(value)
        if send is None or send.partition != partition:
            yield Anomaly(Kind.PHANTOM, partition, f"{_short(value)}, read by {who}")
        elif facts.fate(send) is Outcome.FAILED:
            yield Anomaly(Kind.ABORTED, partition, f"{_short(value)}, read by {who}")


def _readings(history: History) -> Iterator[tuple[Partition, bytes, str]]:
    for partition, log in history.logs.items():
        yield from ((partition, value, "the last reader") for _, value in log)
    yield from ((seen.partition, seen.value, seen.reader) for seen in history.seen)


def _whole(facts: _Facts) -> Iterator[Anomaly]:
    """All of a transaction or nothing, also when nobody knows how it ended."""
    there: dict[str, bool] = {}
    for send in facts.sends.values():
        if send.transaction is None or send.outcome is not Outcome.DONE:
            continue
        if there.setdefault(send.transaction, facts.has(send)) != facts.has(send):
            detail = f"of transaction {send.transaction}, {_short(send.value)} is not as its first"
            yield Anomaly(Kind.TORN, send.partition, detail)


# Order -------------------------------------------------------------------------------------------


def _in_order(facts: _Facts) -> Iterator[Anomaly]:
    """What one producer sent to one partition stands there in the order in which it was sent."""
    ranks = {send.value: rank for rank, send in enumerate(facts.sends.values())}
    for partition, log in facts.logs.items():
        last: dict[str, bytes] = {}
        for offset, value in log:
            if value not in ranks:
                continue
            producer = facts.sends[value].producer
            before = last.get(producer)
            if before is not None and ranks[before] > ranks[value]:
                detail = f"{_short(value)} at {offset} comes after {_short(before)}"
                yield Anomaly(Kind.REORDERED, partition, detail)
            last[producer] = value


def _in_real_time(facts: _Facts) -> Iterator[Anomaly]:
    """What was acknowledged before another was sent stands before it, whoever sent them."""
    for partition, log in facts.logs.items():
        latest: Send | None = None
        for offset, value in log:
            send = facts.sends.get(value)
            if send is None:
                continue
            if latest is not None and 0 < send.acked_ns < latest.sent_ns:
                detail = (
                    f"{_short(value)} at {offset} was acked before {_short(latest.value)} was sent"
                )
                yield Anomaly(Kind.BACKDATED, partition, detail)
            if latest is None or send.sent_ns > latest.sent_ns:
                latest = send


# Readers -----------------------------------------------------------------------------------------


def _polled(facts: _Facts) -> Iterator[Anomaly]:
    """In a session offsets only grow, and no message of the log is passed over."""
    ranks = {
        partition: {offset: rank for rank, (offset, _) in enumerate(log)}
        for partition, log in facts.logs.items()
    }
    last: dict[tuple[str, int, Partition], int] = {}
    for seen in facts.history.seen:
        key = (seen.reader, seen.session, seen.partition)
        before = last.get(key)
        last[key] = seen.offset
        if before is None:
            continue
        if seen.offset <= before:
            detail = f"{seen.reader} read {seen.offset} after {before}"
            yield Anomaly(Kind.NOT_MONOTONIC, seen.partition, detail)
            continue
        rank = ranks.get(seen.partition, {})
        if before in rank and rank.get(seen.offset, rank[before] + 1) != rank[before] + 1:
            detail = f"{seen.reader} read {seen.offset} next after {before}"
            yield Anomaly(Kind.SKIPPED, seen.partition, detail)


def _delivered(facts: _Facts) -> Iterator[Anomaly]:
    """A group gets every message of the log at least once."""
    got: defaultdict[str, set[bytes]] = defaultdict(set)
    for seen in facts.history.seen:
        got[seen.reader].add(seen.value)
    for group, readers in facts.history.groups.items():
        all_got = set[bytes]().union(*(got[reader] for reader in readers))
        for partition, log in facts.logs.items():
            for offset, value in log:
                if value not in all_got:
                    detail = f"{_short(value)} at {offset}, for group {group}"
                    yield Anomaly(Kind.UNREAD, partition, detail)
