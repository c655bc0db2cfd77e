import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tests.support.context import BrokerContext


def codes(response: ElectLeadersResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


def elect(*partitions: tuple[str, int], kind: int = 0) -> ElectLeadersRequest:
    asked = [TopicPartitions(topic=topic, partitions=[index]) for topic, index in partitions]
    return ElectLeadersRequest(election_type=kind, topic_partitions=asked)


@pytest.mark.parametrize(("version", "kind"), [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)])
def test_a_partition_that_is_led_as_it_should_be_needs_no_election(
    broker: BrokerContext, version: int, kind: int
) -> None:
    broker.create_topic("orders")
    answer = broker.ask(elect(("orders", 0), ("orders", 1), ("absent", 0), kind=kind), version)
    assert answer.error_code == ErrorCode.NONE
    assert codes(answer) == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_of_all_partitions_only_those_that_need_a_leader_are_answered(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders", 3)
    answer = broker.ask(ElectLeadersRequest(topic_partitions=None))
    assert (answer.error_code, answer.replica_election_results) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", range(3))
def test_elections_need_the_right_to_alter_the_cluster(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    answer = broker.ask(elect(("orders", 0)), version)
    assert codes(answer) == {("orders", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    expected = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if version else ErrorCode.NONE
    assert answer.error_code == expected


def test_an_unknown_kind_of_election_is_refused(broker: BrokerContext) -> None:
    assert broker.ask(elect(kind=5)).error_code == ErrorCode.INVALID_REQUEST
