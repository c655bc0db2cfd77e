"""DeleteRecords: the start of partitions moves forward; what lay before it is gone for every reader."""

from penstock.broker.partitions.partition import Topic
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)


def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(topics=[_trim_topic(topic, context) for topic in request.topics])


def refuse(request: DeleteRecordsRequest, error: BrokerError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(topics=[_refuse_topic(topic, error) for topic in request.topics])


def _trim_topic(asked: DeleteRecordsTopic, context: Context) -> DeleteRecordsTopicResult:
    try:
        context.authorize(Operation.DELETE, ResourceType.TOPIC, asked.name)
        topic = context.replicas.topic(asked.name)
        _check_deletable(topic)
    except BrokerError as error:
        return _refuse_topic(asked, error)
    return DeleteRecordsTopicResult(
        name=asked.name,
        partitions=[_trim(topic, partition, context) for partition in asked.partitions],
    )


def _check_deletable(topic: Topic) -> None:
    if topic.internal:
        raise BrokerError(
            f"'{topic.name}' is an internal topic; its records cannot be deleted",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    if topic.config.cleanup_policy == {"compact"}:
        raise BrokerError(
            f"topic '{topic.name}' has cleanup.policy=compact; add delete to it first",
            ErrorCode.POLICY_VIOLATION,
        )


def _trim(
    topic: Topic, asked: DeleteRecordsPartition, context: Context
) -> DeleteRecordsPartitionResult:
    try:
        partition = context.replicas.partition(topic, asked.partition_index)
        low_watermark = partition.delete_records_before(asked.offset)
    except BrokerError as error:
        return _refuse_partition(asked, error)
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=low_watermark
    )


def _refuse_topic(asked: DeleteRecordsTopic, error: BrokerError) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=asked.name,
        partitions=[_refuse_partition(partition, error) for partition in asked.partitions],
    )


def _refuse_partition(
    asked: DeleteRecordsPartition, error: BrokerError
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=-1, error_code=error.code
    )
