from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.context import BrokerContext, broker_context


def by_state(broker: BrokerContext, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    responses: list[DeletableTopicResult] = broker.ask(
        DeleteTopicsRequest(topics=list(topics)), 6
    ).responses
    return responses


def test_a_topic_is_deleted_by_name(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topic_id = broker.cluster.image.topics["orders"].id

    (result,) = by_state(broker, DeleteTopicState(name="orders"))

    assert (result.error_code, result.name, result.topic_id) == (0, "orders", topic_id)
    assert "orders" not in broker.cluster.image.topics
    assert "orders" not in broker.replicas.topics


def test_a_topic_is_deleted_by_id(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topic_id = broker.cluster.image.topics["orders"].id

    (result,) = by_state(broker, DeleteTopicState(topic_id=topic_id))

    assert (result.error_code, result.name, result.topic_id) == (0, "orders", topic_id)
    assert "orders" not in broker.cluster.image.topics


@pytest.mark.parametrize("version", range(1, 6))
def test_older_versions_delete_by_a_list_of_names(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    request = DeleteTopicsRequest(topic_names=["orders", "absent"])
    results = broker.ask(request, version).responses
    assert {result.name: result.error_code for result in results} == {
        "orders": ErrorCode.NONE,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_the_same_name_can_be_created_again_with_another_id(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    first = broker.cluster.image.topics["orders"].id
    by_state(broker, DeleteTopicState(name="orders"))
    broker.create_topic("orders")
    assert broker.cluster.image.topics["orders"].id != first


def test_a_topic_named_twice_is_kept(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topic_id = broker.cluster.image.topics["orders"].id

    twice = by_state(broker, DeleteTopicState(name="orders"), DeleteTopicState(name="orders"))
    both_ways = by_state(
        broker, DeleteTopicState(name="orders"), DeleteTopicState(topic_id=topic_id)
    )

    assert [result.error_code for result in twice] == [ErrorCode.INVALID_REQUEST]
    assert [result.error_code for result in both_ways] == [ErrorCode.INVALID_REQUEST] * 2
    assert "orders" in broker.cluster.image.topics


def test_name_and_id_together_or_neither_are_refused(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    topic_id = broker.cluster.image.topics["orders"].id
    results = by_state(
        broker, DeleteTopicState(name="orders", topic_id=topic_id), DeleteTopicState()
    )
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_an_unknown_id_has_a_code_of_its_own(broker: BrokerContext) -> None:
    (result,) = by_state(broker, DeleteTopicState(topic_id=b"0123456789abcdef"))
    assert (result.error_code, result.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


def test_who_may_not_delete_a_topic_does_not_learn_its_name_from_its_id(
    broker: BrokerContext,
) -> None:
    broker.create_topic("secret")
    topic_id = broker.cluster.image.topics["secret"].id
    broker.allow_only()

    (by_id,) = by_state(broker, DeleteTopicState(topic_id=topic_id))
    (by_name,) = by_state(broker, DeleteTopicState(name="secret"))
    (absent,) = by_state(broker, DeleteTopicState(name="absent"))

    assert by_id.name is None
    assert "secret" not in (by_id.error_message or "")
    codes = {by_id.error_code, by_name.error_code, absent.error_code}
    assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_who_may_see_topics_learns_that_one_does_not_exist(broker: BrokerContext) -> None:
    broker.allow_only((Operation.DESCRIBE, ResourceType.TOPIC, "*"))
    (absent,) = by_state(broker, DeleteTopicState(name="absent"))
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deletion_can_be_disabled(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"delete.topic.enable": "false"}) as broker:
        broker.create_topic("orders")
        (new,) = broker.ask(DeleteTopicsRequest(topic_names=["orders"]), 3).responses
        (old,) = broker.ask(DeleteTopicsRequest(topic_names=["orders"]), 2).responses
    assert new.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert old.error_code == ErrorCode.INVALID_REQUEST
