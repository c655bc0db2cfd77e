"""TxnOffsetCommit: keep a group's positions, if and when the transaction commits."""

from collections.abc import Awaitable
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.txn_codes import told
from penstock.model.errors import BrokerError, ErrorCode
from penstock.transactions.state import Producer
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ADDS_SINCE: Final = 5  # the group's partition joins the transaction by it
_ABORTABLE_SINCE: Final = 4
_MEMBERS_SINCE: Final = 3  # the client says of which member and generation it is
_LATER: Final = frozenset(  # said of the transaction's coordinator: the client asked the group's
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_MOVED: Final = {  # what the log of the group's offsets says, as said of a coordinator
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
_FENCED_SINCE: Final = 1 << 15  # never: producers know it as INVALID_PRODUCER_EPOCH here


async def handle(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    refused = {}
    accepted = []
    for place, topic in enumerate(request.topics):
        code = _refusal(topic.name, context)
        if code:
            refused[place] = _refuse_topic(topic, code)
        else:
            accepted.append(topic)
    request.topics = accepted
    response = await _commit(request, context) if accepted else TxnOffsetCommitResponse()
    for place, answer in sorted(refused.items()):
        response.topics.insert(place, answer)
    return response


def _refusal(name: str, context: Context) -> ErrorCode:
    if not context.allows(Operation.READ, ResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name not in context.groups.topics:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _commit(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    try:
        await _admit(request, context)
        answer = context.groups.commit_in_transaction(request)
        return await answer if isinstance(answer, Awaitable) else answer
    except BrokerError as error:
        return refuse(request, BrokerError(str(error), _code_for(error.code, context.version)))


async def _admit(request: TxnOffsetCommitRequest, context: Context) -> None:
    """Raise unless the transaction will be ended where the group's offsets are kept."""
    await context.groups.partition_of(request.group_id)
    partition = context.groups.shard_of(request.group_id).partition
    transactional_id, transactions = request.transactional_id, context.transactions
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        check = transactions.prepare(
            transactional_id, producer, [partition], implicit=context.version >= _ADDS_SINCE
        )
        if check is not None and check.done is not None:
            await check.done
        transactions.check(transactional_id, producer, partition, check)
    except BrokerError as error:
        if error.code in _LATER:
            raise BrokerError(str(error), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        raise


def _code_for(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_SINCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # which those clients try again
    if version < _MEMBERS_SINCE and code in (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # it named none, so this cannot be
    return told(_MOVED.get(code, code), version, fenced_since=_FENCED_SINCE)


def refuse(request: TxnOffsetCommitRequest, error: BrokerError) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=[_refuse_topic(t, error.code) for t in request.topics])


def _refuse_topic(topic: TxnOffsetCommitRequestTopic, code: int) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
            for p in topic.partitions
        ],
    )
