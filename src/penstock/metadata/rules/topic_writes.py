"""How topics are written: chunks of partitions first, then settings, and last the row that makes them visible."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.store import NO_REVISION, Compare, Put, Write
from penstock.metadata.values import (
    CHUNK_PARTITIONS,
    PartitionImage,
    chunk_key,
    encode,
    encode_chunk,
    topic_config_key,
    topic_key,
)
from penstock.model.ids import TopicId, TopicName, format_topic_id


class CreatedTopic(NamedTuple):
    name: TopicName
    id: TopicId
    partition_count: int
    replication_factor: int
    config: Mapping[str, str]


def creation(
    image: ClusterImage, created: CreatedTopic, replicas: Sequence[tuple[int, ...]]
) -> Decision[CreatedTopic]:
    writes: list[Write] = [*chunk_writes(created.id, new_partitions(image, replicas))]
    if created.config:
        writes.append(Put(topic_config_key(created.name), encode(set=created.config)))
    writes.append(topic_row(created.name, created.id, created.partition_count))
    keys = [write.key for write in writes if isinstance(write, Put)]
    return Decision(created, writes, [Compare(key, mod_revision=NO_REVISION) for key in keys])


def topic_row(name: str, topic_id: TopicId, count: int) -> Put:
    return Put(topic_key(name), encode(id=format_topic_id(topic_id), partitions=count))


def chunk_writes(
    topic_id: TopicId, partitions: Sequence[PartitionImage], first_chunk: int = 0
) -> Iterable[Put]:
    for start in range(first_chunk * CHUNK_PARTITIONS, len(partitions), CHUNK_PARTITIONS):
        rows = partitions[start : start + CHUNK_PARTITIONS]
        yield Put(chunk_key(topic_id, start // CHUNK_PARTITIONS), encode_chunk(rows))


def new_partitions(image: ClusterImage, placed: Sequence[tuple[int, ...]]) -> list[PartitionImage]:
    """Led by the first replica that runs; those that do not run are not in sync."""
    running = {broker.id for broker in image.usable_brokers()}
    partitions = []
    for replicas in placed:
        isr = tuple(broker_id for broker_id in replicas if broker_id in running)
        partitions.append(PartitionImage(isr[0], 0, 0, replicas, isr))
    return partitions
