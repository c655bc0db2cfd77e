"""Checks of what transactional producers and groups saw: fencing, offsets in transactions, exactly once.

Pure. Clients note in a Ledger what they sent and what they were told; `check` returns what cannot be.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.support.checker import Log, Outcome, Partition

NO_OFFSET = -1


class Producer(NamedTuple):
    """An id and epoch, in the order in which a coordinator gives them."""

    id: int
    epoch: int


class Granted(NamedTuple):
    """An incarnation of a transactional id was told its id and epoch."""

    transactional_id: str
    incarnation: str
    producer: Producer
    acked_ns: int


class Accepted(NamedTuple):
    """A request of an incarnation, in its epoch, succeeded."""

    transactional_id: str
    incarnation: str
    producer: Producer
    request: str
    sent_ns: int


class OffsetSeen(NamedTuple):
    """What a group's coordinator returned for a partition: the offset, and the transaction in its metadata."""

    group: str
    place: Partition
    offset: int
    transaction: str
    sent_ns: int
    received_ns: int
    is_stable: bool  # it waits for transactions that are about to change the offset


@dataclass(slots=True)
class Ended:
    """What a client knows of one transaction's end."""

    commit_sent_ns: int | None = None  # None: nobody ever asked to commit it
    committed_ns: int | None = None  # when its commit was acknowledged


@dataclass(slots=True)
class Ledger:
    """Recorded while it happens. `offsets` are those that transactions send to groups."""

    granted: list[Granted] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)
    offsets: dict[tuple[str, Partition, str], int] = field(default_factory=dict)
    seen: list[OffsetSeen] = field(default_factory=list)
    outputs: dict[bytes, tuple[Partition, int]] = field(default_factory=dict)  # the input of each


class Kind(Enum):
    UNFENCED = "a request succeeded after a newer incarnation had its epoch"
    SAME_EPOCH = "two incarnations have the same id and epoch"
    EARLY = "offsets of a transaction that nobody had asked to commit"
    ABORTED = "offsets of a transaction that was aborted"
    WRONG_OFFSET = "offsets that no transaction sent"
    LOST_OFFSET = "older than an offset whose transaction was committed before"
    WENT_BACK = "older than an offset that was read before"
    SKIPPED = "below the group's offset, and without a committed output"
    REPEATED = "transformed more than once"
    AHEAD = "at or above the group's offset, and with a committed output"
    INVENTED = "the output of a record that is not committed"
    HANGING = "the last stable offset does not reach the high watermark"


class Anomaly(NamedTuple):
    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} ({self.kind.value}): {self.detail}"


def check(ledger: Ledger, outcomes: Mapping[str, Outcome]) -> Iterator[Anomaly]:
    """Everything wrong with epochs and offsets. `outcomes`: how each transaction ended."""
    yield from _fenced(ledger)
    yield from _epochs(ledger)
    yield from _offsets_of_transactions(ledger, outcomes)
    yield from _offsets_in_order(ledger)


# Fencing -----------------------------------------------------------------------------------------


def _fenced(ledger: Ledger) -> Iterator[Anomaly]:
    """No request succeeds that was sent when another incarnation already knew of a newer epoch."""
    newest: defaultdict[str, list[tuple[int, Producer, str]]] = defaultdict(list)
    for granted in sorted(ledger.granted, key=lambda it: it.acked_ns):
        newest[granted.transactional_id].append(
            (granted.acked_ns, granted.producer, granted.incarnation)
        )
    for request in ledger.accepted:
        known = newest[request.transactional_id]
        before = known[: bisect_left(known, request.sent_ns, key=lambda it: it[0])]
        for _, producer, incarnation in before:
            if producer > request.producer and incarnation != request.incarnation:
                detail = f"{request} after {incarnation} was told {producer}"
                yield Anomaly(Kind.UNFENCED, detail)
                break


def _epochs(ledger: Ledger) -> Iterator[Anomaly]:
    owners: dict[tuple[str, Producer], str] = {}
    for granted in ledger.granted:
        key = granted.transactional_id, granted.producer
        owner = owners.setdefault(key, granted.incarnation)
        if owner != granted.incarnation:
            yield Anomaly(
                Kind.SAME_EPOCH, f"{owner} and {granted.incarnation} have {granted.producer}"
            )


# Offsets -----------------------------------------------------------------------------------------


def _offsets_of_transactions(ledger: Ledger, outcomes: Mapping[str, Outcome]) -> Iterator[Anomaly]:
    """An offset is visible if and only if its transaction is, and not before somebody wants that."""
    for seen in ledger.seen:
        if seen.offset == NO_OFFSET:
            continue
        sent = ledger.offsets.get((seen.group, seen.place, seen.transaction))
        ended = ledger.ended.get(seen.transaction)
        if sent != seen.offset or ended is None:
            yield Anomaly(Kind.WRONG_OFFSET, str(seen))
        elif outcomes.get(seen.transaction) is Outcome.FAILED:
            yield Anomaly(Kind.ABORTED, str(seen))
        elif ended.commit_sent_ns is None or ended.commit_sent_ns > seen.received_ns:
            yield Anomaly(Kind.EARLY, str(seen))


def _offsets_in_order(ledger: Ledger) -> Iterator[Anomaly]:
    """A read returns no less than what was read before it was sent; a stable one, than what was committed."""
    seen_before, committed_before = _Floors(), _Floors()
    for (group, place, transaction), offset in ledger.offsets.items():
        committed_ns = ledger.ended[transaction].committed_ns
        if committed_ns is not None:
            committed_before.add((group, place), committed_ns, offset)
    for seen in ledger.seen:
        seen_before.add((seen.group, seen.place), seen.received_ns, seen.offset)
    for seen in ledger.seen:
        key = seen.group, seen.place
        if seen.offset < (floor := seen_before.at(key, seen.sent_ns)):
            yield Anomaly(Kind.WENT_BACK, f"{seen}, after {floor}")
        elif seen.is_stable and seen.offset < (floor := committed_before.at(key, seen.sent_ns)):
            yield Anomaly(Kind.LOST_OFFSET, f"{seen}, after {floor}")


class _Floors:
    """The largest offset of each group and partition until some time."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, Partition], list[tuple[int, int]]] = defaultdict(list)
        self._largest: dict[tuple[str, Partition], list[tuple[int, int]]] = {}

    def add(self, key: tuple[str, Partition], time_ns: int, offset: int) -> None:
        self._found[key].append((time_ns, offset))

    def at(self, key: tuple[str, Partition], time_ns: int) -> int:
        """Of all that was added with an earlier time. Nothing is added after the first call."""
        largest = self._largest.get(key)
        if largest is None:
            largest = self._largest[key] = []
            for known_ns, offset in sorted(self._found[key]):
                if not largest or offset > largest[-1][1]:
                    largest.append((known_ns, offset))
        rank = bisect_left(largest, time_ns, key=lambda it: it[0])
        return largest[rank - 1][1] if rank else NO_OFFSET


# Exactly once ------------------------------------------------------------------------------------


def check_transform(
    ledger: Ledger,
    logs: Mapping[Partition, Log],
    place: Partition,
    position: int,
) -> Iterator[Anomaly]:
    """`logs` are committed records; `position` is the group's final offset in the input partition `place`."""
    outputs = Counter(
        ledger.outputs[value]
        for log in logs.values()
        for _, value in log
        if value in ledger.outputs and ledger.outputs[value][0] == place
    )
    inputs = [offset for offset, _ in logs.get(place, ())]
    for offset in inputs:
        count = outputs.pop((place, offset), 0)
        where = f"{place[0]}-{place[1]} offset {offset}; the group is at {position}"
        if count > 1:
            yield Anomaly(Kind.REPEATED, f"{where}: {count} outputs")
        elif count and offset >= position:
            yield Anomaly(Kind.AHEAD, where)
        elif not count and offset < position:
            yield Anomaly(Kind.SKIPPED, where)
    for (_, offset), count in outputs.items():
        yield Anomaly(Kind.INVENTED, f"{place[0]}-{place[1]} offset {offset}: {count} outputs")


# Hanging transactions ----------------------------------------------------------------------------


def hanging(positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[Anomaly]:
    """`positions`: how far readers of committed records could read; `ends`: the high watermarks."""
    for place, end in ends.items():
        position = positions.get(place, end)
        if position < end:
            yield Anomaly(Kind.HANGING, f"{place[0]}-{place[1]}: {position} of {end}")
