"""DescribeProducers: who writes to a partition with a producer id, and which transactions are open."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.storage.producers import ProducerInfo
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _answer(topic.name, index, context) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def refuse(request: DescribeProducersRequest, error: BrokerError) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_refused(index, error) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _answer(topic: str, index: int, context: Context) -> PartitionResponse:
    try:
        context.authorize(Operation.READ, ResourceType.TOPIC, topic)
        replicas = context.replicas
        log = replicas.partition(replicas.topic(topic), index).log
    except BrokerError as error:
        return _refused(index, error)
    return PartitionResponse(
        partition_index=index,
        active_producers=[_state(producer) for producer in log.producers.active()],
    )


def _state(producer: ProducerInfo) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.txn_first_offset,
    )


def _refused(index: int, error: BrokerError) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
