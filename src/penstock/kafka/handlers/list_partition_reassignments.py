"""ListPartitionReassignments: the moves under way, of all partitions or of those asked for."""

from collections.abc import Iterator

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import TopicImage
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    moves = (
        OngoingTopicReassignment(name=topic.name, partitions=_moving(topic, indexes))
        for topic, indexes in _asked_for(request, context)
    )
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=[topic for topic in moves if topic.partitions]
    )


def _asked_for(
    request: ListPartitionReassignmentsRequest, context: Context
) -> Iterator[tuple[TopicImage, list[int]]]:
    """Topics that exist, and indexes of theirs that may not."""
    topics = context.cluster.image.topics
    if request.topics is None:
        for topic in topics.values():
            yield topic, list(range(len(topic.partitions)))
        return
    for asked in request.topics:
        found = topics.get(asked.name)
        if found is not None:
            yield found, asked.partition_indexes


def _moving(topic: TopicImage, indexes: list[int]) -> list[OngoingPartitionReassignment]:
    partitions = [
        (index, topic.partitions[index]) for index in indexes if 0 <= index < len(topic.partitions)
    ]
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=list(partition.replicas),
            adding_replicas=list(partition.adding),
            removing_replicas=list(partition.removing),
        )
        for index, partition in partitions
        if partition.adding or partition.removing
    ]
