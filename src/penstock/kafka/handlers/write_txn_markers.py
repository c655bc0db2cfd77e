"""WriteTxnMarkers: end transactions in this broker's logs, for their coordinator or for an operator (KIP-664)."""

import asyncio

from penstock.broker.markers import Ending
from penstock.broker.transactions import STATE_TOPIC
from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import EPOCH_PER_TRANSACTION, Producer
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    if not context.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[await _topic(marker, topic, context) for topic in marker.topics],
            )
            for marker in request.markers
        ]
    )


def refuse(request: WriteTxnMarkersRequest, error: BrokerError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    _result(topic, dict.fromkeys(topic.partition_indexes, error.code))
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


async def _topic(
    marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, context: Context
) -> WritableTxnMarkerTopicResult:
    codes = {}
    ending = Ending(
        Producer(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version >= EPOCH_PER_TRANSACTION,
    )
    for index in topic.partition_indexes:
        codes[index] = await _write(TopicPartition(topic.name, index), ending, context)
    return _result(topic, codes)


async def _write(name: TopicPartition, ending: Ending, context: Context) -> ErrorCode:
    if name.topic == STATE_TOPIC:
        return ErrorCode.INVALID_TOPIC_EXCEPTION  # nothing there is in a transaction
    try:
        writer = context.transactions.markers
        committed = writer.write(name, ending, writer.build(ending))
        if isinstance(committed, asyncio.Future):
            await committed
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def _result(
    topic: WritableTxnMarkerTopic, codes: dict[int, ErrorCode]
) -> WritableTxnMarkerTopicResult:
    return WritableTxnMarkerTopicResult(
        name=topic.name,
        partitions=[
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[index])
            for index in topic.partition_indexes
        ],
    )
