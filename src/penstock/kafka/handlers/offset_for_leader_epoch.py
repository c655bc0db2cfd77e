"""OffsetForLeaderEpoch: where an epoch ended, so that a consumer can tell whether its log was cut (KIP-320)."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(request: OffsetForLeaderEpochRequest, context: Context) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_answer(topic.topic, asked, context) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def refuse(
    request: OffsetForLeaderEpochRequest, error: BrokerError
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_refused(asked, error) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _answer(topic: str, asked: OffsetForLeaderPartition, context: Context) -> EpochEndOffset:
    try:
        _authorize(topic, context)
        replicas = context.replicas
        partition = replicas.partition(replicas.topic(topic), asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        end = partition.epoch_end(asked.leader_epoch)
    except BrokerError as error:
        return _refused(asked, error)
    return EpochEndOffset(
        partition=asked.partition, leader_epoch=end.epoch, end_offset=end.end_offset
    )


def _authorize(topic: str, context: Context) -> None:
    """Brokers ask on behalf of the cluster, consumers of a topic that they may see."""
    try:
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    except BrokerError:
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _refused(asked: OffsetForLeaderPartition, error: BrokerError) -> EpochEndOffset:
    return EpochEndOffset(partition=asked.partition, error_code=error.code)
