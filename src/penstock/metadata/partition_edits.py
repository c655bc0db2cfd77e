"""Changes of single partitions that somebody asked for: partitions that share a chunk share its write."""

from dataclasses import dataclass, field

from penstock.metadata.decisions import Decision, chunk_change
from penstock.metadata.image import ChunkId, ClusterImage, TopicImage
from penstock.metadata.values import CHUNK_PARTITIONS, PartitionImage
from penstock.model.errors import BrokerError, UnknownTopicOrPartition
from penstock.model.ids import TopicPartition


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
        if partition is topic.partitions[number]:
            return
        chunk = topic.id, number // CHUNK_PARTITIONS
        if chunk not in self._chunks:
            self._chunks[chunk] = list(self._image.chunk(*chunk))
        self._chunks[chunk][number % CHUNK_PARTITIONS] = partition

    def decisions(self) -> list[Decision[None]]:
        return [
            chunk_change(self._image, chunk, partitions)
            for chunk, partitions in self._chunks.items()
        ]
