"""AlterReplicaLogDirs: a broker has one data directory, so a replica is there already or cannot be moved.

The codes, and the order in which they are checked, are Kafka's: first the directory, then the partition.
"""

import os
from collections.abc import Callable

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, DiskFull, ErrorCode
from penstock.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(request: AlterReplicaLogDirsRequest, context: Context) -> AlterReplicaLogDirsResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    return _response(request, lambda path, topic, index: _code(path, topic, index, context))


def refuse(request: AlterReplicaLogDirsRequest, error: BrokerError) -> AlterReplicaLogDirsResponse:
    return _response(request, lambda _path, _topic, _index: error.code)


def _response(
    request: AlterReplicaLogDirsRequest, code: Callable[[str, str, int], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    """One result for each partition; of several directories for it, the last one counts."""
    topics: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                results = topics.setdefault(topic.name, {})
                results[index] = code(directory.path, topic.name, index)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in results.items()
                ],
            )
            for name, results in topics.items()
        ]
    )


def _code(path: str, name: str, index: int, context: Context) -> ErrorCode:
    replicas = context.replicas
    own = replicas.directory.path
    if path not in (own, os.path.abspath(own)):
        return ErrorCode.LOG_DIR_NOT_FOUND
    if replicas.unable is not None and not isinstance(replicas.unable, DiskFull):
        return ErrorCode.KAFKA_STORAGE_ERROR
    topic = replicas.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[index]
    if partition is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR
