from pathlib import Path

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tests.support.context import BROKER_ID, BrokerContext, broker_context


def describe(
    broker: BrokerContext, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    at = Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None
    response = broker.ask(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=at,
        )
    )
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def shown(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]


def test_a_topic_is_described_with_its_leaders_and_rights(broker: BrokerContext) -> None:
    broker.create_topic("orders", 2)
    (topic,) = describe(broker, "orders").topics
    assert (topic.error_code, topic.name, topic.is_internal) == (ErrorCode.NONE, "orders", False)
    assert topic.topic_id == broker.cluster.image.topics["orders"].id
    assert topic.topic_authorized_operations & (1 << Operation.READ)
    for partition in topic.partitions:
        assert (partition.leader_id, partition.leader_epoch) == (BROKER_ID, 0)
        assert partition.replica_nodes == partition.isr_nodes == [BROKER_ID]
        assert (partition.offline_replicas, partition.eligible_leader_replicas) == ([], [])


def test_pages_together_show_every_partition_once_and_in_order(broker: BrokerContext) -> None:
    broker.create_topic("b", 3)
    broker.create_topic("a", 2)
    broker.create_topic("c", 2)

    pages = []
    cursor: tuple[str, int] | None = None
    while True:
        page = describe(broker, limit=2, cursor=cursor)
        pages += [(name, index) for name, indexes in shown(page) for index in indexes]
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)

    assert pages == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


def test_the_brokers_limit_caps_the_clients(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"max.request.partition.size.limit": "3"}) as broker:
        broker.create_topic("orders", 5)
        page = describe(broker, "orders", limit=100)
    assert shown(page) == [("orders", [0, 1, 2])]
    assert page.next_cursor == Cursor(topic_name="orders", partition_index=3)


def test_a_topic_that_does_not_exist_takes_no_room_in_the_page(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    page = describe(broker, "absent", "orders", "a b", limit=1)
    assert [(topic.name, topic.error_code) for topic in page.topics] == [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", ErrorCode.NONE),
    ]
    assert page.next_cursor is None


def test_a_cursor_must_point_to_what_is_asked_for(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    for cursor in (("other", 0), ("orders", -1)):
        (topic,) = describe(broker, "orders", cursor=cursor).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_that_was_deleted_between_two_pages_is_skipped(broker: BrokerContext) -> None:
    broker.create_topic("c")
    assert shown(describe(broker, cursor=("b", 4))) == [("c", [0])]


def test_hidden_topics_are_left_out_of_the_list_and_refused_by_name(broker: BrokerContext) -> None:
    broker.create_topic("open")
    broker.create_topic("secret")
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "secret")
    assert shown(describe(broker)) == [("open", [0])]
    (topic,) = describe(broker, "secret").topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert topic.topic_id == bytes(16)
