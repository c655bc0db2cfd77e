"""What min.insync.replicas and a log that cannot be used mean to clients."""

import pytest

from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages import describe_topic_partitions as paged
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.context import BROKER_ID, BrokerContext


def produce(broker: BrokerContext, topic: str, *, acks: int) -> PartitionProduceResponse:
    records = [Record(0, broker.services.clock.wall_ms(), None, b"value")]
    data = PartitionProduceData(index=0, records=memoryview(build_batch(records)))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    answer: PartitionProduceResponse = broker.ask(request, 11).responses[0].partition_responses[0]
    return answer


def test_acks_all_is_refused_below_min_insync_replicas_and_nothing_is_written(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders", config={"min.insync.replicas": "2"})
    alone = PartitionImage(BROKER_ID, 5, 9, (BROKER_ID, 77), (BROKER_ID,))
    broker.call(lambda: broker.partition("orders").lead(BROKER_ID, alone))
    refused = produce(broker, "orders", acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert refused.error_message == "orders-0 has 1 in-sync replicas; min.insync.replicas is 2"
    assert produce(broker, "orders", acks=1).base_offset == 0


def test_no_more_replicas_can_be_asked_for_than_there_are(broker: BrokerContext) -> None:
    broker.create_topic("orders", config={"min.insync.replicas": "2"})
    assert produce(broker, "orders", acks=-1).error_code == ErrorCode.NONE


def test_acks_all_is_taken_when_enough_replicas_are_in_sync(broker: BrokerContext) -> None:
    broker.create_topic("orders", config={"min.insync.replicas": "1"})
    assert produce(broker, "orders", acks=-1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [5, 13])
def test_a_partition_whose_log_cannot_be_used_has_an_offline_replica(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("orders", 2)
    failure = BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR)
    broker.call(lambda: broker.partition("orders", 1).fail(failure))
    asked = [MetadataRequestTopic(name="orders")]
    (shown,) = broker.ask(MetadataRequest(topics=asked), version).topics
    assert [partition.offline_replicas for partition in shown.partitions] == [[], [BROKER_ID]]
    request = paged.DescribeTopicPartitionsRequest(topics=[paged.TopicRequest(name="orders")])
    (shown,) = broker.ask(request).topics
    assert [partition.offline_replicas for partition in shown.partitions] == [[], [BROKER_ID]]
