"""Changes of single partitions that somebody asked for: partitions that share a chunk share its write."""

from dataclasses import dataclass, field

from penstock.metadata.image import ChunkId, ClusterImage, TopicImage
from penstock.metadata.rules.decisions import Decision, chunk_change
from penstock.metadata.rules.partition_rules import ElectionSettingsCache, settled, standing_elr
from penstock.metadata.values import CHUNK_PARTITIONS, PartitionImage
from penstock.model.errors import BrokerError, UnknownTopicOrPartition
from penstock.model.ids import TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class Answers:
    """What to commit, and what to answer for each partition once that is done: None is success."""

    decisions: list[Decision[None]] = field(default_factory=list)
    errors: dict[TopicPartition, BrokerError | None] = field(default_factory=dict)


class Edits:
    """The image with changes that are not committed yet."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._chunks: dict[ChunkId, list[PartitionImage]] = {}
        self._topics: dict[TopicId, tuple[TopicImage, list[PartitionImage]]] = {}

    def find(self, at: TopicPartition) -> tuple[TopicImage, PartitionImage]:
        topic = self._image.topics.get(at.topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic '{at.topic}' does not exist")
        if not 0 <= at.partition < len(topic.partitions):
            raise UnknownTopicOrPartition(
                f"{at} does not exist; topic '{at.topic}' has {len(topic.partitions)} partitions"
            )
        return topic, topic.partitions[at.partition]

    def put(self, topic: TopicImage, number: int, partition: PartitionImage) -> None:
        """`topic` as it is in the image."""
        if partition is topic.partitions[number]:
            return
        self._topics.setdefault(topic.id, (topic, list(topic.partitions)))[1][number] = partition
        chunk = topic.id, number // CHUNK_PARTITIONS
        if chunk not in self._chunks:
            self._chunks[chunk] = list(self._image.chunk(*chunk))
        self._chunks[chunk][number % CHUNK_PARTITIONS] = partition

    def recompute_elrs(self, settings_cache: ElectionSettingsCache) -> None:
        """Keep a replica eligible only under both the old and the new settings of its topic.

        The settings change with the topic's number of replicas.
        """
        for old, partitions in list(self._topics.values()):
            new = old._replace(partitions=tuple(partitions))
            settings, new_settings = settings_cache.of(old), settings_cache.of(new)
            if new_settings != settings:
                for number, partition in enumerate(new.partitions):
                    kept = partition._replace(elr=standing_elr(partition, settings))
                    self.put(old, number, settled(old.partitions[number], kept, new_settings))

    def decisions(self) -> list[Decision[None]]:
        """The first chunk of a topic comes last: the settings of the topic may change with it."""
        order = sorted(self._chunks, key=lambda chunk: -chunk[1])
        return [chunk_change(self._image, chunk, self._chunks[chunk]) for chunk in order]
