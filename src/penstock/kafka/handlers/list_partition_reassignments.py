"""ListPartitionReassignments: the moves under way, of all partitions or of those asked for."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.reassignment import reassignments
from penstock.model.ids import TopicPartition
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
    asked = None
    if request.topics is not None:
        asked = [
            TopicPartition(it.name, index)
            for it in request.topics
            for index in it.partition_indexes
        ]
    topics: dict[str, OngoingTopicReassignment] = {}
    for at, partition in reassignments(context.cluster.image, asked).items():
        topic = topics.setdefault(at.topic, OngoingTopicReassignment(name=at.topic))
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=at.partition,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))
