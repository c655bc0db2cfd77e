"""Measure what a cluster carries: rates from end offsets, sizes from log directories, readers."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.client import admin, groups, reassignments, settings
from penstock.client.errors import ClientError
from penstock.client.pool import AnyBroker, Pool
from penstock.model.ids import TopicPartition
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

_TOPIC_RESOURCE: Final = 2
_KEYS: Final = ("retention.ms", "retention.bytes", "segment.bytes", "min.insync.replicas", "cleanup.policy")  # fmt: skip
_TOPICS_A_REQUEST: Final = 500
_GROUPS_MAX: Final = 500  # each costs two requests


class TopicTraffic(NamedTuple):
    name: str
    partitions: int
    replication_factor: int  # of the partition with the most replicas
    messages_s: float
    size_bytes: int  # of one copy of all partitions
    message_bytes: float | None  # of one message in the log; None: there was none to measure
    retention_ms: int  # -1: for ever
    retention_bytes: int  # of a partition; -1: no limit
    segment_bytes: int
    min_insync_replicas: int
    deletes: bool  # retention deletes; a topic that is only compacted is kept
    groups: int  # that have committed offsets in it
    members: int  # of the largest of them


class ClusterTraffic(NamedTuple):
    brokers: int
    racks: int  # 0: brokers have none
    seconds: float  # between the two looks at the offsets
    topics: tuple[TopicTraffic, ...]
    without_leader: int  # partitions that were left out
    groups_left_out: int


class _Readers(NamedTuple):
    by_topic: dict[str, list[int]]  # members of each group that reads the topic
    left_out: int


async def measure(pool: Pool, seconds: float) -> ClusterTraffic:
    """Read offsets and sizes twice, `seconds` apart, and everything else in between."""
    cluster = await admin.describe_cluster(pool)
    topics = [topic for topic in cluster.topics if not topic.error_code and topic.name]
    led = [
        TopicPartition(topic.name or "", row.partition_index)
        for topic in topics
        for row in topic.partitions
        if row.leader_id >= 0 and not row.error_code
    ]
    starts = await _offsets(pool, led, admin.EARLIEST)
    loop = asyncio.get_running_loop()
    before_s, before = loop.time(), await _offsets(pool, led, admin.LATEST)
    sizes_before = await _sizes(pool, cluster)
    configs = await _configs(pool, [topic.name or "" for topic in topics])
    readers = await _readers(pool)
    await asyncio.sleep(max(0.0, before_s + seconds - loop.time()))
    after_s, after = loop.time(), await _offsets(pool, led, admin.LATEST)
    sizes = await _sizes(pool, cluster)
    looks = _Looks(starts, before, after, sizes_before, sizes, after_s - before_s)
    return ClusterTraffic(
        len(cluster.brokers),
        len({broker.rack for broker in cluster.brokers if broker.rack}),
        looks.seconds,
        tuple(_topic(topic, looks, configs.get(topic.name or "", {}), readers) for topic in topics),
        sum(len(topic.partitions) for topic in topics) - len(led),
        readers.left_out,
    )


class _Looks(NamedTuple):
    starts: Mapping[TopicPartition, int]
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    sizes_before: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int]
    seconds: float


def _topic(
    topic: MetadataResponseTopic, looks: _Looks, config: Mapping[str, str], readers: _Readers
) -> TopicTraffic:
    name = topic.name or ""
    partitions = [TopicPartition(name, row.partition_index) for row in topic.partitions]
    known = [at for at in partitions if at in looks.after and at in looks.before]
    written = sum(looks.after[at] - looks.before[at] for at in known)
    held = sum(looks.after[at] - looks.starts.get(at, 0) for at in known)
    size_bytes = sum(looks.sizes.get(at, 0) for at in partitions)
    grown_bytes = size_bytes - sum(looks.sizes_before.get(at, 0) for at in partitions)
    deletes = "compact" not in config.get("cleanup.policy", "delete")
    members = readers.by_topic.get(name, [])
    return TopicTraffic(
        name,
        len(partitions),
        max((len(row.replica_nodes) for row in topic.partitions), default=1),
        max(0, written) / looks.seconds,
        size_bytes,
        _message_bytes(size_bytes, held) if deletes else _message_bytes(grown_bytes, written),
        int(config.get("retention.ms", "604800000")),
        int(config.get("retention.bytes", "-1")),
        int(config.get("segment.bytes", "1073741824")),
        int(config.get("min.insync.replicas", "1")),
        deletes or "delete" in config.get("cleanup.policy", ""),
        len(members),
        max(members, default=0),
    )


def _message_bytes(size_bytes: int, messages: int) -> float | None:
    return size_bytes / messages if size_bytes > 0 and messages > 0 else None


async def _offsets(
    pool: Pool, partitions: Iterable[TopicPartition], where: int
) -> dict[TopicPartition, int]:
    found = await admin.list_offsets(pool, dict.fromkeys(partitions, where))
    return {at: place.offset for at, place in found.items()}


async def _sizes(pool: Pool, cluster: MetadataResponse) -> dict[TopicPartition, int]:
    """Return the size of the largest replica of each partition: others may lag behind."""
    disks = await reassignments.disks(pool, [broker.node_id for broker in cluster.brokers])
    sizes: dict[TopicPartition, int] = {}
    for disk in disks.values():
        for at, size_bytes in disk.sizes_bytes.items():
            sizes[at] = max(size_bytes, sizes.get(at, 0))
    return sizes


async def _configs(pool: Pool, names: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for first in range(0, len(names), _TOPICS_A_REQUEST):
        resources = [(_TOPIC_RESOURCE, name) for name in names[first : first + _TOPICS_A_REQUEST]]
        answer = await settings.describe(pool, AnyBroker(), resources, _KEYS)
        found |= {name: configs for (_, name), configs in answer.items()}
    return found


async def _readers(pool: Pool) -> _Readers:
    """Find the groups with committed offsets in each topic. Leave out groups that fail."""
    listed = await groups.list_groups(pool)
    by_topic: dict[str, list[int]] = {}
    left_out = max(0, len(listed) - _GROUPS_MAX)
    for group in listed[:_GROUPS_MAX]:
        try:
            topics = {at.topic for at in await groups.committed(pool, group.name)}
            members = len((await groups.describe_group(pool, group.name)).members)
        except ClientError:
            left_out += 1
            continue
        for topic in topics:
            by_topic.setdefault(topic, []).append(members)
    return _Readers(by_topic, left_out)
