"""AlterPartitionReassignments: where replicas are is where they stay.

Naming the replicas that a partition already has changes nothing and succeeds, as in Kafka. Every
other target is refused, and so is stopping a move, since none is under way.
"""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import ClusterImage, PartitionImage
from penstock.model.errors import BrokerError, ErrorCode, UnknownTopicOrPartition
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    image = context.cluster.image
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(topic.name, partition, request, image) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _answer(
    topic: str,
    asked: ReassignablePartition,
    request: AlterPartitionReassignmentsRequest,
    image: ClusterImage,
) -> ReassignablePartitionResponse:
    try:
        current = _find(topic, asked.partition_index, image)
        if asked.replicas is None:
            raise BrokerError(
                f"{topic}-{asked.partition_index} is not being moved",
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            )
        _check_target(asked.replicas, image)
        if not request.allow_replication_factor_change:
            _check_factor_is_kept(asked.replicas, current)
        _check_stays(asked.replicas, current)
    except BrokerError as error:
        return ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_code=error.code, error_message=str(error)
        )
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)


def _find(topic: str, index: int, image: ClusterImage) -> PartitionImage:
    found = image.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        raise UnknownTopicOrPartition(f"{topic}-{index} does not exist")
    return found.partitions[index]


def _check_target(replicas: list[int], image: ClusterImage) -> None:
    if not replicas:
        raise _invalid("the list of replicas is empty")
    if len(set(replicas)) < len(replicas):
        raise _invalid(f"a broker is named twice in {replicas}")
    for broker_id in replicas:
        if broker_id not in image.brokers:
            raise _invalid(f"broker {broker_id} is not registered")


def _check_factor_is_kept(replicas: list[int], current: PartitionImage) -> None:
    if len(replicas) != len(current.replicas):
        raise BrokerError(
            f"{len(replicas)} replicas would change the replication factor, {len(current.replicas)}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def _check_stays(replicas: list[int], current: PartitionImage) -> None:
    if replicas != list(current.replicas):
        raise _invalid(f"replicas cannot be moved yet; they are on {list(current.replicas)}")


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
