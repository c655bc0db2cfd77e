import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
)
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.support.context import BROKER_ID, BrokerContext


def move(
    broker: BrokerContext,
    topic: str,
    index: int,
    replicas: list[int] | None,
    *,
    keep_factor: bool = False,
) -> ReassignablePartitionResponse:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    answer = broker.ask(
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[partition])],
            allow_replication_factor_change=not keep_factor,
        )
    )
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    result = answer.responses[0].partitions[0]
    assert isinstance(result, ReassignablePartitionResponse)
    return result


def test_naming_the_replicas_that_are_there_succeeds(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    result = move(broker, "orders", 0, [BROKER_ID])
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(
    ("topic", "index", "replicas", "code"),
    [
        ("orders", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("orders", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [99], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [BROKER_ID, BROKER_ID], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 1, [BROKER_ID], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("absent", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_other_moves_are_refused_with_a_reason(
    broker: BrokerContext, topic: str, index: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    broker.create_topic("orders")
    result = move(broker, topic, index, replicas)
    assert result.error_code == code
    assert result.error_message


def test_no_move_is_under_way(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    asked = ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0, 1])
    absent = ListPartitionReassignmentsTopics(name="absent", partition_indexes=[0])
    for topics in (None, [asked, absent]):
        answer = broker.ask(ListPartitionReassignmentsRequest(topics=topics))
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


def test_moves_need_rights_on_the_cluster(broker: BrokerContext) -> None:
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    for request in (AlterPartitionReassignmentsRequest(), ListPartitionReassignmentsRequest()):
        assert broker.ask(request).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
