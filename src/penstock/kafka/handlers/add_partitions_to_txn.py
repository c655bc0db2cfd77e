"""AddPartitionsToTxn: partitions become a part of a transaction, or are verified to be. All of them, or none.

Up to version 3 a producer asks for itself; from version 4 on a broker asks for several at once.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.txn_codes import told
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import EPOCH_PER_TRANSACTION, Producer
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_BATCHED_SINCE: Final = 4
_ABORTABLE_SINCE: Final = 5
_FENCED_SINCE: Final = 2
_PATIENCE_S: Final = 2.0
Codes = Mapping[TopicPartition, ErrorCode]


async def handle(
    request: AddPartitionsToTxnRequest, context: Context
) -> AddPartitionsToTxnResponse:
    if context.version >= _BATCHED_SINCE:
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        answers = await asyncio.gather(*(_soon(asked, context) for asked in request.transactions))
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=asked.transactional_id,
                    topic_results=_results(asked.topics, codes),
                )
                for asked, codes in zip(request.transactions, answers, strict=True)
            ]
        )
    asked = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, asked.transactional_id)
    codes = _forbidden(asked, context) or await _answer(asked, context)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(asked.topics, codes))


def refuse(request: AddPartitionsToTxnRequest, error: BrokerError) -> AddPartitionsToTxnResponse:
    topics = request.v3_and_below_topics
    codes = dict.fromkeys(_partitions(topics), error.code)
    return AddPartitionsToTxnResponse(
        error_code=error.code, results_by_topic_v3_and_below=_results(topics, codes)
    )


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _forbidden(asked: AddPartitionsToTxnTransaction, context: Context) -> Codes | None:
    """If one may not be written to, none is added."""
    wrong: dict[TopicPartition, ErrorCode] = {}
    for partition in _partitions(asked.topics):
        topic = context.cluster.image.topics.get(partition.topic)
        if not context.allows(Operation.WRITE, ResourceType.TOPIC, partition.topic):
            wrong[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= partition.partition < len(topic.partitions):
            wrong[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif topic.is_internal:
            wrong[partition] = ErrorCode.INVALID_TOPIC_EXCEPTION  # by AddOffsetsToTxn only
    if not wrong:
        return None
    others = dict.fromkeys(_partitions(asked.topics), ErrorCode.OPERATION_NOT_ATTEMPTED)
    return others | wrong


async def _soon(asked: AddPartitionsToTxnTransaction, context: Context) -> Codes:
    """One that takes long does not keep the others from their answers; it is asked about again."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _answer(asked, context)
    except TimeoutError:
        return dict.fromkeys(_partitions(asked.topics), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def _answer(asked: AddPartitionsToTxnTransaction, context: Context) -> Codes:
    partitions = _partitions(asked.topics)
    producer = Producer(asked.producer_id, asked.producer_epoch)
    try:
        if asked.verify_only:
            found = context.transactions.verify(asked.transactional_id, producer, partitions)
            verdicts = await found if isinstance(found, asyncio.Future) else found
            return {name: _verdict(code, context.version) for name, code in verdicts.items()}
        version = EPOCH_PER_TRANSACTION if context.version >= _BATCHED_SINCE else 0
        answer = context.transactions.add(asked.transactional_id, producer, partitions, version)
        outcome = await answer if isinstance(answer, asyncio.Future) else answer
        code = outcome.code
    except BrokerError as error:
        code = error.code
    return dict.fromkeys(partitions, told(code, context.version, fenced_since=_FENCED_SINCE))


def _verdict(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _results(
    topics: list[AddPartitionsToTxnTopic], codes: Codes
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
