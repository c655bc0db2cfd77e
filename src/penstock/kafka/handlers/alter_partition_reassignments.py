"""AlterPartitionReassignments: partitions are sent to other replicas, or a move is called off (KIP-455)."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    targets = {
        TopicPartition(topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    outcomes = await context.cluster.alter_reassignments(
        targets,
        allow_factor_change=request.allow_replication_factor_change,
        timeout_ms=patience_ms(request.timeout_ms),
    )
    topics: dict[str, ReassignableTopicResponse] = {}
    for at, error in outcomes.items():
        topic = topics.setdefault(at.topic, ReassignableTopicResponse(name=at.topic))
        topic.partitions.append(_answer(at.partition, error))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=list(topics.values()),
    )


def _answer(index: int, error: BrokerError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
    )
