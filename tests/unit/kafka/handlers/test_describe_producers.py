from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
)
from tests.support.context import BrokerContext


def describe(broker: BrokerContext, topic: str, index: int = 0) -> PartitionResponse:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[index])])
    (answered,) = broker.ask(request).topics
    (partition,) = answered.partitions
    assert isinstance(partition, PartitionResponse)
    return partition


def test_producers_with_an_id_are_listed_with_their_last_sequence(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=3, producer_id=40, producer_epoch=2, base_sequence=0)
    broker.append("orders", count=2)

    (producer,) = describe(broker, "orders").active_producers

    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (40, 2, 2)
    assert producer.last_timestamp == broker.services.clock.wall_ms()
    assert producer.current_txn_start_offset == -1


def test_unknown_partitions_are_refused_with_a_reason(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    for answer in (describe(broker, "absent"), describe(broker, "orders", 3)):
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.error_message


def test_producers_are_shown_to_who_may_read_the_topic(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.READ, ResourceType.TOPIC, "orders")
    assert describe(broker, "orders").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
