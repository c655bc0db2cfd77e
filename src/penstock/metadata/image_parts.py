"""What the picture of the cluster is made of, and what changed in it. All but the Delta are immutable values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.metadata.store import Revision
from penstock.metadata.values import Endpoint, PartitionImage
from penstock.model.ids import TopicId, TopicName

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)


class BrokerInfo(NamedTuple):
    id: int
    epoch: int  # of its session; 0 while it does not run
    listeners: Mapping[str, Endpoint]
    rack: str | None
    fenced: bool  # it does not run, or may not yet take part
    directory_id: str
    in_controlled_shutdown: bool = False

    @property
    def may_lead(self) -> bool:
        """And join an ISR (B2)."""
        return not (self.fenced or self.in_controlled_shutdown)


class TopicImage(NamedTuple):
    name: TopicName
    id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str]  # only what was set for the topic
    promotion: int = 0  # while a former mirror is made a topic of its own: the number of that

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return self.partitions[0].replication_factor


class TopicChange(NamedTuple):
    old: TopicImage
    new: TopicImage

    @property
    def is_grown(self) -> bool:
        return len(self.new.partitions) > len(self.old.partitions)

    @property
    def is_reconfigured(self) -> bool:
        return (self.new.config, self.new.promotion) != (self.old.config, self.old.promotion)

    def changed_partitions(self) -> Iterator[tuple[int, PartitionImage | None, PartitionImage]]:
        """Number, before and after, in order; before is None for a partition that is new."""
        known = len(self.old.partitions)
        for number, new in enumerate(self.new.partitions):
            old = self.old.partitions[number] if number < known else None
            if old is not new and old != new:
                yield number, old, new


@dataclass(slots=True)
class Delta:
    """What applying changes did. A topic that was deleted and created anew is in both lists."""

    revision: Revision
    created: list[TopicImage] = field(default_factory=list)
    deleted: list[TopicImage] = field(default_factory=list)
    changed: list[TopicChange] = field(default_factory=list)
    brokers: list[int] = field(default_factory=list)
    controller: bool = False
    broker_configs: bool = False
    group_configs: list[str] = field(default_factory=list)  # the groups whose settings changed
    features: bool = False
    votes: bool = False

    @property
    def is_empty(self) -> bool:
        topics = self.created or self.deleted or self.changed
        settings = self.broker_configs or self.group_configs or self.features
        return not (topics or self.brokers or self.controller or settings or self.votes)
