import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tests.support.context import BROKER_ID, BrokerContext


def grow(
    broker: BrokerContext,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    validate_only: bool = False,
    version: int = 3,
) -> CreatePartitionsTopicResult:
    placed = None
    if assignments is not None:
        placed = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=placed)
    request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
    (result,) = broker.ask(request, version).results
    assert isinstance(result, CreatePartitionsTopicResult)
    return result


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_to_the_count_and_keeps_what_it_has(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("orders", 2)
    broker.append("orders", 1, count=3)

    result = grow(broker, "orders", 4, version=version)

    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert len(broker.replicas.topic("orders").partitions) == 4
    assert broker.partition("orders", 1).log.next_offset == 3


def test_new_partitions_can_be_placed_by_hand(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert grow(broker, "orders", 3, [[BROKER_ID], [BROKER_ID]]).error_code == ErrorCode.NONE
    wrong = grow(broker, "orders", 4, [[BROKER_ID], [BROKER_ID]])
    unknown = grow(broker, "orders", 4, [[99]])
    assert {wrong.error_code, unknown.error_code} == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_a_topic_never_shrinks(broker: BrokerContext, count: int) -> None:
    broker.create_topic("orders", 2)
    result = grow(broker, "orders", count)
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert "2 partitions" in (result.error_message or "")


def test_validate_only_changes_nothing(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert grow(broker, "orders", 3, validate_only=True).error_code == ErrorCode.NONE
    assert grow(broker, "orders", 1, validate_only=True).error_code == ErrorCode.INVALID_PARTITIONS
    assert len(broker.cluster.image.topics["orders"].partitions) == 1


def test_an_unknown_topic_cannot_grow(broker: BrokerContext) -> None:
    result = grow(broker, "absent", 2)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_named_twice_is_refused_once(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topics = [
        CreatePartitionsTopic(name="orders", count=count, assignments=None) for count in (2, 3)
    ]
    results = broker.ask(CreatePartitionsRequest(topics=topics)).results
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST]
    assert len(broker.cluster.image.topics["orders"].partitions) == 1


def test_growing_needs_the_right_to_alter_the_topic(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.ALTER, ResourceType.TOPIC, "orders")
    assert grow(broker, "orders", 2).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
