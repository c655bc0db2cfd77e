"""ElectLeaders: a partition that its preferred replica leads needs no election."""

from collections.abc import Iterable

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import PartitionImage, TopicImage
from penstock.model.errors import BrokerError, ErrorCode, UnknownTopicOrPartition
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1


def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    try:
        context.authorize(Operation.ALTER, ResourceType.CLUSTER)
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise BrokerError(
                f"unknown election type {request.election_type}; 0 is preferred, 1 unclean",
                ErrorCode.INVALID_REQUEST,
            )
    except BrokerError as error:
        return _refuse(request, error, has_code=context.version >= 1)
    return ElectLeadersResponse(replica_election_results=_results(request, context))


def refuse(request: ElectLeadersRequest, error: BrokerError) -> ElectLeadersResponse:
    return _refuse(request, error, has_code=request.topic_partitions is None)


def _refuse(
    request: ElectLeadersRequest, error: BrokerError, *, has_code: bool
) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error.code if has_code else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=asked.topic,
                partition_result=[_refused(index, error) for index in asked.partitions],
            )
            for asked in request.topic_partitions or ()
        ],
    )


def _results(request: ElectLeadersRequest, context: Context) -> list[ReplicaElectionResult]:
    """One result for each partition asked for; of all partitions, only those that lack a leader."""
    topics = context.cluster.image.topics
    if request.topic_partitions is not None:
        return [
            _elect(request, asked.topic, topics.get(asked.topic), asked.partitions)
            for asked in request.topic_partitions
        ]
    everywhere = [
        _elect(request, topic.name, topic, range(len(topic.partitions)))
        for topic in topics.values()
    ]
    for topic in everywhere:
        topic.partition_result = [
            result
            for result in topic.partition_result
            if result.error_code != ErrorCode.ELECTION_NOT_NEEDED
        ]
    return [topic for topic in everywhere if topic.partition_result]


def _elect(
    request: ElectLeadersRequest, name: str, topic: TopicImage | None, indexes: Iterable[int]
) -> ReplicaElectionResult:
    results = []
    for index in indexes:
        if topic is None or not 0 <= index < len(topic.partitions):
            error: BrokerError = UnknownTopicOrPartition(f"{name}-{index} does not exist")
        else:
            error = _outcome(f"{name}-{index}", topic.partitions[index], request.election_type)
        results.append(_refused(index, error))
    return ReplicaElectionResult(topic=name, partition_result=results)


def _outcome(name: str, partition: PartitionImage, election_type: int) -> BrokerError:
    preferred = partition.replicas[0]
    if election_type == _UNCLEAN:
        if partition.leader >= 0:
            return BrokerError(
                f"{name} is led by broker {partition.leader}", ErrorCode.ELECTION_NOT_NEEDED
            )
        return BrokerError(
            f"{name} has no replica that can lead", ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    if partition.leader == preferred:
        return BrokerError(
            f"{name} is led by its preferred replica, broker {preferred}",
            ErrorCode.ELECTION_NOT_NEEDED,
        )
    return BrokerError(
        f"{name}: its preferred replica, broker {preferred}, cannot lead",
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    )


def _refused(index: int, error: BrokerError) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=error.code, error_message=str(error))
