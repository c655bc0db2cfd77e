"""DescribeTopicPartitions: topics in order of name, a bounded number of partitions at a time (KIP-966)."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import TopicImage
from penstock.model.errors import BrokerError, ErrorCode, UnknownTopicOrPartition
from penstock.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse:
    response = DescribeTopicPartitionsResponse()
    room = max(
        1, min(request.response_partition_limit, context.config.max_request_partition_size_limit)
    )
    cursor = request.cursor
    for name in _names(request, context):
        if not room:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _describe(name, first, room, context)
        response.topics.append(described)
        room -= len(described.partitions)
        end = first + len(described.partitions)
        if not described.error_code and end < len(context.cluster.image.topics[name].partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


def refuse(
    request: DescribeTopicPartitionsRequest, error: BrokerError
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[_refused(topic.name, error) for topic in request.topics]
    )


def _names(request: DescribeTopicPartitionsRequest, context: Context) -> list[str]:
    """The topics from the cursor on. Who asks for all sees those that he may."""
    start = ""
    if request.cursor is not None:
        _check_cursor(request.cursor, request)
        start = request.cursor.topic_name
    if request.topics:
        asked = {topic.name for topic in request.topics}
        return sorted(name for name in asked if name >= start)
    names = [name for name in context.cluster.image.topics if name >= start]
    return sorted(context.permitted(Operation.DESCRIBE, ResourceType.TOPIC, names))


def _check_cursor(cursor: Cursor, request: DescribeTopicPartitionsRequest) -> None:
    if cursor.partition_index < 0:
        raise BrokerError(
            f"the cursor's partition is {cursor.partition_index}; it must not be negative",
            ErrorCode.INVALID_REQUEST,
        )
    if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
        raise BrokerError(
            f"the cursor is at topic '{cursor.topic_name}', which is not asked for",
            ErrorCode.INVALID_REQUEST,
        )


def _describe(
    name: str, first: int, limit: int, context: Context
) -> DescribeTopicPartitionsResponseTopic:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name)
        topic = context.cluster.image.topics.get(name)
        if topic is None:
            context.cluster.check_topic_name(name)
            raise UnknownTopicOrPartition(f"topic '{name}' does not exist")
    except BrokerError as error:
        return _refused(name, error)
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=_partitions(topic, first, limit, context),
        topic_authorized_operations=context.operations(ResourceType.TOPIC, name),
    )


def _partitions(
    topic: TopicImage, first: int, limit: int, context: Context
) -> list[DescribeTopicPartitionsResponsePartition]:
    failed = context.replicas.failed(topic.name)
    return [
        DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=list(partition.last_known_elr),
            offline_replicas=[context.broker_id] if index in failed else [],
        )
        for index, partition in enumerate(topic.partitions[first : first + limit], first)
    ]


def _refused(name: str, error: BrokerError) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=error.code)
