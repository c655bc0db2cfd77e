"""Which brokers hold which replicas, while a plan is made: changed one replica at a time, counts kept. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.model.ids import TopicPartition

Assignment = Mapping[TopicPartition, Sequence[int]]


class Node(NamedTuple):
    """A broker that replicas may be put on."""

    id: int
    rack: str | None = None


class Layout:
    """The replicas of all partitions, of which those of some topics may be moved.

    Brokers that are no `nodes` (they do not run, or are to be left) keep what they have, and get nothing.
    """

    def __init__(
        self, replicas: Assignment, nodes: Iterable[Node], topics: Iterable[str] | None = None
    ) -> None:
        """`topics`: those that may be moved; None: all."""
        chosen = None if topics is None else frozenset(topics)
        self._before = {
            at: tuple(members)
            for at, members in sorted(replicas.items())
            if chosen is None or at.topic in chosen
        }
        self.replicas = {at: list(members) for at, members in self._before.items()}
        self.racks = {node.id: node.rack for node in sorted(nodes)}
        self.loads: Counter[int] = Counter()  # replicas of the partitions that may be moved
        self.of_topic: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.others: Counter[int] = Counter()  # replicas of all other partitions
        self.held: defaultdict[int, defaultdict[str, dict[TopicPartition, None]]]
        self.held = defaultdict(lambda: defaultdict(dict))
        for at, members in self.replicas.items():
            for broker_id in members:
                self._count(at, broker_id)
        for at, kept in replicas.items():
            if at not in self.replicas:
                self.others.update(kept)

    @property
    def nodes(self) -> list[int]:
        return list(self.racks)

    def changes(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The new replicas of the partitions that differ from what they were."""
        return {
            at: tuple(members)
            for at, members in self.replicas.items()
            if tuple(members) != self._before[at]
        }

    # Changes -----------------------------------------------------------------------------------

    def replace(self, at: TopicPartition, old: int, new: int) -> None:
        """In the same place: who was preferred before others still is."""
        members = self.replicas[at]
        members[members.index(old)] = new
        self._discount(at, old)
        self._count(at, new)

    def add(self, at: TopicPartition, broker_id: int) -> None:
        self.replicas[at].append(broker_id)
        self._count(at, broker_id)

    def drop(self, at: TopicPartition, broker_id: int) -> None:
        self.replicas[at].remove(broker_id)
        self._discount(at, broker_id)

    def prefer(self, at: TopicPartition, broker_id: int) -> None:
        members = self.replicas[at]
        members.remove(broker_id)
        members.insert(0, broker_id)

    def _count(self, at: TopicPartition, broker_id: int) -> None:
        self.loads[broker_id] += 1
        self.of_topic[at.topic][broker_id] += 1
        self.held[broker_id][at.topic][at] = None

    def _discount(self, at: TopicPartition, broker_id: int) -> None:
        self.loads[broker_id] -= 1
        self.of_topic[at.topic][broker_id] -= 1
        del self.held[broker_id][at.topic][at]

    # Questions ---------------------------------------------------------------------------------

    def crowd(self, at: TopicPartition, rack: str | None, without: int | None = None) -> int:
        """Replicas of the partition in that rack, not counting one broker."""
        return sum(
            1
            for member in self.replicas[at]
            if member != without and self._rack_of(member) == rack and member in self.racks
        )

    def cost(
        self, at: TopicPartition, broker_id: int, leaving: int | None = None
    ) -> tuple[int, ...]:
        """Of a further replica, or of one instead of `leaving`; the lowest is the best."""
        return (
            self.crowd(at, self._rack_of(broker_id), leaving),
            self.loads[broker_id],
            self.of_topic[at.topic][broker_id],
            self.others[broker_id],
            broker_id,
        )

    def candidates(self, at: TopicPartition) -> list[int]:
        """Nodes without a replica of the partition."""
        members = self.replicas[at]
        return [broker_id for broker_id in self.racks if broker_id not in members]

    def keeps_racks(self, at: TopicPartition, old: int, new: int) -> bool:
        """Whether the partition is spread over racks as well as before, if one replaces the other."""
        source, target = self._rack_of(old), self._rack_of(new)
        return source == target or self.crowd(at, target) < self.crowd(at, source)

    def spreads_racks(self, at: TopicPartition, old: int, new: int) -> bool:
        """Whether it is spread over them better."""
        source, target = self._rack_of(old), self._rack_of(new)
        return source != target and self.crowd(at, target) + 1 < self.crowd(at, source)

    def movable(self, old: int, new: int) -> Iterator[TopicPartition]:
        """Partitions that may go from one broker to the other, first of topics that are uneven there."""
        topics = [topic for topic, held in self.held[old].items() if held]
        topics.sort(key=lambda topic: self.of_topic[topic][new] - self.of_topic[topic][old])
        for topic in topics:
            for at in self.held[old][topic]:
                if new not in self.replicas[at] and self.keeps_racks(at, old, new):
                    yield at

    def _rack_of(self, broker_id: int) -> str | None:
        return self.racks.get(broker_id)
