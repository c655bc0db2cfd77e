"""ElectLeaders: preferred leaders are put back, or partitions without one get any replica that runs."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.metadata.rules.elections import ElectionKind
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

Outcomes = dict[TopicPartition, BrokerError | None]


async def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    try:
        context.authorize(Operation.ALTER, ResourceType.CLUSTER)
        kind = _kind(request.election_type)
        outcomes = await context.cluster.elect_leaders(
            kind, _asked_for(request), timeout_ms=patience_ms(request.timeout_ms)
        )
    except BrokerError as error:
        return _refuse(request, error, has_code=context.version >= 1)
    return ElectLeadersResponse(replica_election_results=_results(outcomes))


def refuse(request: ElectLeadersRequest, error: BrokerError) -> ElectLeadersResponse:
    return _refuse(request, error, has_code=request.topic_partitions is None)


def _refuse(
    request: ElectLeadersRequest, error: BrokerError, *, has_code: bool
) -> ElectLeadersResponse:
    asked = _asked_for(request) or ()
    return ElectLeadersResponse(
        error_code=error.code if has_code else ErrorCode.NONE,
        replica_election_results=_results(dict.fromkeys(asked, error)),
    )


def _kind(number: int) -> ElectionKind:
    try:
        return ElectionKind(number)
    except ValueError:
        raise BrokerError(
            f"unknown election type {number}; 0 is preferred, 1 unclean", ErrorCode.INVALID_REQUEST
        ) from None


def _asked_for(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    """None: all partitions."""
    if request.topic_partitions is None:
        return None
    return [
        TopicPartition(asked.topic, index)
        for asked in request.topic_partitions
        for index in asked.partitions
    ]


def _results(outcomes: Outcomes) -> list[ReplicaElectionResult]:
    topics: dict[str, ReplicaElectionResult] = {}
    for at, error in outcomes.items():
        topic = topics.setdefault(at.topic, ReplicaElectionResult(topic=at.topic))
        topic.partition_result.append(
            PartitionResult(
                partition_id=at.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else str(error),
            )
        )
    return list(topics.values())
