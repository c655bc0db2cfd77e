"""DescribeLogDirs: the one data directory of this broker, its partitions' sizes and the room on its disk.

Version 5 adds whether the directory is cordoned, which is the case when the broker is (KIP-1066).
"""

from collections.abc import Iterator

from penstock.broker.partitions.disk_usage import disk_usage
from penstock.broker.partitions.partition import Partition
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.cordons import is_cordoned
from penstock.model.errors import BrokerError
from penstock.model.ids import TopicPartition
from penstock.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    path = context.replicas.directory.path
    cordoned = is_cordoned(context.cluster.image, context.broker_id)
    try:
        usage = await disk_usage(context.replicas, _asked_for(request, context))
    except BrokerError as error:
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(error_code=error.code, log_dir=path, is_cordoned=cordoned)
            ]
        )
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=path,
                topics=_topics(usage.sizes_bytes),
                total_bytes=usage.room.total_bytes,
                usable_bytes=usage.room.usable_bytes,
                is_cordoned=cordoned,
            )
        ]
    )


def _asked_for(request: DescribeLogDirsRequest, context: Context) -> Iterator[Partition]:
    """Those that are here; the answer leaves out the others."""
    if request.topics is None:
        yield from context.replicas.partitions()
        return
    for asked in request.topics:
        topic = context.replicas.topics.get(asked.topic)
        partitions = topic.partitions if topic is not None else []
        for index in set(asked.partitions):
            partition = partitions[index] if 0 <= index < len(partitions) else None
            if partition is not None:
                yield partition


def _topics(sizes_bytes: dict[TopicPartition, int]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for name, size_bytes in sorted(sizes_bytes.items()):
        topic = topics.setdefault(name.topic, DescribeLogDirsTopic(name=name.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(partition_index=name.partition, partition_size=size_bytes)
        )
    return list(topics.values())
