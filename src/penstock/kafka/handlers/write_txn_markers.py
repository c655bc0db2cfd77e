"""WriteTxnMarkers: end transactions in this broker's logs, for their coordinator or for an operator (KIP-664)."""

import asyncio
from typing import Final

from penstock.broker.coordinators.markers import Ending
from penstock.broker.coordinators.transactions import STATE_TOPIC
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

_PER_TURN: Final = 100  # markers written before others have their turn
_PATIENCE_S: Final = 3.0  # for markers to be committed; their coordinator asks again
Written = asyncio.Future[None] | ErrorCode

_let_others_go_on = asyncio.sleep  # replaced by the test that stops the broker between two markers


async def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    """All are written before the first is waited for: they become committed together."""
    if not context.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    written = [await _write_all(marker, context) for marker in request.markers]
    waits = [it for found in written for it in found.values() if isinstance(it, asyncio.Future)]
    if waits:
        await asyncio.wait(waits, timeout=_PATIENCE_S)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    _result(
                        topic,
                        {
                            index: _code_of(found[TopicPartition(topic.name, index)])
                            for index in topic.partition_indexes
                        },
                    )
                    for topic in marker.topics
                ],
            )
            for marker, found in zip(request.markers, written, strict=True)
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


async def _write_all(marker: WritableTxnMarker, context: Context) -> dict[TopicPartition, Written]:
    ending = Ending(
        Producer(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version >= EPOCH_PER_TRANSACTION,
    )
    built = context.transactions.markers.build(ending)
    written: dict[TopicPartition, Written] = {}
    for topic in marker.topics:
        for index in topic.partition_indexes:
            name = TopicPartition(topic.name, index)
            written[name] = _write(name, ending, built, context)
            if len(written) % _PER_TURN == 0:
                await _let_others_go_on(0)
    return written


def _write(name: TopicPartition, ending: Ending, built: bytearray, context: Context) -> Written:
    if name.topic == STATE_TOPIC:
        return ErrorCode.INVALID_TOPIC_EXCEPTION  # nothing there is in a transaction
    try:
        committed = context.transactions.markers.write(name, ending, built)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE if committed is None else committed


def _code_of(written: Written) -> ErrorCode:
    if not isinstance(written, asyncio.Future):
        return written
    if not written.done() or written.cancelled():
        written.cancel()
        return ErrorCode.REQUEST_TIMED_OUT
    error = written.exception()
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR


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
