"""Server-side assignors: who gets which partitions. Pure functions, the same answer for the same question.

`uniform` spreads partitions evenly and moves as few as it can; `range` gives each member a run of every
topic's partitions, so that topics with equal counts are split alike.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

TopicIndex: TypeAlias = tuple[bytes, int]  # a partition by its topic's id
Assignment: TypeAlias = frozenset[TopicIndex]

NOTHING: Final[Assignment] = frozenset()


class Subscriber(NamedTuple):
    instance_id: str | None
    topics: frozenset[bytes]


Members: TypeAlias = Mapping[str, Subscriber]
Counts: TypeAlias = Mapping[bytes, int]  # partitions by topic
Current: TypeAlias = Mapping[str, Assignment]
Assignor: TypeAlias = Callable[[Members, Counts, Current], dict[str, Assignment]]


def by_topic(partitions: Iterable[TopicIndex]) -> dict[bytes, list[int]]:
    """In order of topic and number, as they are written down."""
    grouped: dict[bytes, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return grouped


def assign_range(members: Members, counts: Counts, _: Current) -> dict[str, Assignment]:
    """Static members first, by instance id; then the others, by member id."""
    order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m][0] or m))
    given: dict[str, list[TopicIndex]] = {member: [] for member in order}
    for topic, count in counts.items():
        takers = [member for member in order if topic in members[member].topics]
        start = 0
        for place, member in enumerate(takers):
            size = count // len(takers) + (place < count % len(takers))
            given[member] += ((topic, number) for number in range(start, start + size))
            start += size
    return {member: frozenset(partitions) for member, partitions in given.items()}


def assign_uniform(members: Members, counts: Counts, current: Current) -> dict[str, Assignment]:
    """Everyone keeps what they have, as far as it may be theirs; then loads are made even."""
    return _Uniform(members, counts, current).assign()


class _Uniform:
    def __init__(self, members: Members, counts: Counts, current: Current) -> None:
        self._takers = {
            topic: [member for member in sorted(members) if topic in members[member].topics]
            for topic in sorted(counts)
        }
        self._counts = counts
        self._load = dict.fromkeys(sorted(members), 0)
        self._held: dict[tuple[str, bytes], list[int]] = {}
        self._taken: set[TopicIndex] = set()
        for member in self._load:
            for topic, number in sorted(current.get(member, NOTHING)):
                wanted = topic in members[member].topics and number < counts.get(topic, 0)
                if wanted and (topic, number) not in self._taken:
                    self._give(member, topic, number)

    def assign(self) -> dict[str, Assignment]:
        for topic, takers in self._takers.items():
            if takers:
                self._hand_out(topic, takers)
        moved = True
        while moved:  # each move makes loads more even, so this ends
            moved = False
            for topic, takers in self._takers.items():
                moved |= self._balance(topic, takers)
        result: dict[str, set[TopicIndex]] = {member: set() for member in self._load}
        for (member, topic), numbers in self._held.items():
            result[member].update((topic, number) for number in numbers)
        return {member: frozenset(partitions) for member, partitions in result.items()}

    def _give(self, member: str, topic: bytes, number: int) -> None:
        self._held.setdefault((member, topic), []).append(number)
        self._taken.add((topic, number))
        self._load[member] += 1

    def _hand_out(self, topic: bytes, takers: list[str]) -> None:
        """What nobody holds goes to whoever has least."""
        free = [n for n in range(self._counts[topic]) if (topic, n) not in self._taken]
        if not free:
            return
        least = [(self._load[member], member) for member in takers]
        heapq.heapify(least)
        for number in free:
            load, member = least[0]
            self._give(member, topic, number)
            heapq.heapreplace(least, (load + 1, member))

    def _balance(self, topic: bytes, takers: list[str]) -> bool:
        """Move this topic's partitions from who has most to who has least. True if any moved."""
        poor = [(self._load[member], member) for member in takers]
        rich = [(-self._load[m], m) for m in takers if self._held.get((m, topic))]
        heapq.heapify(poor)
        heapq.heapify(rich)
        moved = False
        while rich and poor:
            (most, giver), (least, taker) = rich[0], poor[0]
            if -most != self._load[giver]:  # it received some in this round: no longer known
                heapq.heapreplace(rich, (-self._load[giver], giver))
            elif least != self._load[taker]:
                heapq.heapreplace(poor, (self._load[taker], taker))
            elif -most - least < 2:
                break
            else:
                self._move(topic, giver, taker)
                moved = True
                if not self._held[giver, topic]:
                    heapq.heappop(rich)
        return moved

    def _move(self, topic: bytes, giver: str, taker: str) -> None:
        number = self._held[giver, topic].pop()
        self._load[giver] -= 1
        self._give(taker, topic, number)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
