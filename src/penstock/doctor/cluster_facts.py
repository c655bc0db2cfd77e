"""Facts about a cluster that its checks need. On a large cluster some are of a sample, and some may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from penstock.client import health
from penstock.client.features import Features
from penstock.client.reassignments import Disk, Members, Places
from penstock.client.settings import Settings
from penstock.model.ids import TopicPartition

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class KeySample(NamedTuple):
    """The keys of some of the last messages of a partition."""

    messages: int
    commonest: tuple[tuple[bytes | None, int], ...]  # at most three


class Behind(NamedTuple):
    """A partition that a group has not read to its end."""

    partition: TopicPartition
    committed: int
    start: int
    end: int
    unread_since_ms: int | None = None  # newest timestamp of the first unread batch

    @property
    def lag(self) -> int:
        return max(0, self.end - max(self.committed, self.start))


class GroupFacts(NamedTuple):
    name: str
    state: str
    members: int | None = None
    idle_members: int = 0  # without partitions
    behind: tuple[Behind, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.state in ("Empty", "Dead")

    @property
    def lag(self) -> int:
        return sum(row.lag for row in self.behind)

    @property
    def unread_since_ms(self) -> int | None:
        known = [row.unread_since_ms for row in self.behind if row.unread_since_ms is not None]
        return min(known, default=None)


@dataclass(frozen=True)
class ClusterFacts:
    members: Members
    places: Places
    now_ms: int
    unreachable: Mapping[int, str] = field(default_factory=dict)  # running brokers, and the reasons
    topics: Mapping[str, Settings] = field(default_factory=dict)  # of a sample of topics
    brokers: Mapping[int, Settings] = field(default_factory=dict)  # all settings of each
    disks: Mapping[int, Disk] = field(default_factory=dict)  # of a sample of partitions
    first_timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)  # of large logs
    features: Features | None = None
    rates: Mapping[TopicPartition, float] = field(default_factory=dict)  # messages a second
    keys: Mapping[TopicPartition, KeySample] = field(default_factory=dict)  # of hot partitions
    groups: tuple[GroupFacts, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be learned, and why; what is a sample

    @property
    def is_penstock(self) -> bool:
        """Whether the brokers are ours: their settings have names that Apache Kafka does not know."""
        return any(name.startswith("penstock.") for it in self.brokers.values() for name in it)

    @cached_property
    def problems(self) -> tuple[health.Problem, ...]:
        """The diagnosis of `penstock cluster health`."""
        min_isrs = {topic: self.number(topic, "min.insync.replicas") or 1 for topic in self.topics}
        return tuple(health.problems(self.members, self.places, min_isrs))

    @cached_property
    def replication_factors(self) -> dict[str, int]:
        """The lowest of each topic, moves left out."""
        found: dict[str, int] = {}
        for at, place in self.places.items():
            factor = len(place.original)
            found[at.topic] = min(factor, found.get(at.topic, factor))
        return found

    @cached_property
    def racks(self) -> dict[int, str | None]:
        """Of all brokers, those that do not run too."""
        return {member.id: member.rack for member in self.members.brokers}

    def number(self, topic: str, name: str) -> int | None:
        """A setting of a topic, if it is known."""
        text = self.topics.get(topic, {}).get(name, "")
        try:
            return int(text)
        except ValueError:
            return None

    def policies(self, topic: str) -> frozenset[str]:
        """`compact`, `delete` or both; empty if unknown."""
        text = self.topics.get(topic, {}).get("cleanup.policy", "")
        return frozenset(word.strip() for word in text.split(",") if word.strip())
