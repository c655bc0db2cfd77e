"""DescribeTransactions: where a transactional id stands, and which partitions its transaction has."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.transactions.state import group_by_topic
from penstock.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(asked, context) for asked in request.transactional_ids]
    )


def refuse(
    request: DescribeTransactionsRequest, error: BrokerError
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_refused(asked, error.code) for asked in request.transactional_ids]
    )


def _describe(transactional_id: str, context: Context) -> TransactionState:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        found = context.transactions.find(transactional_id)
    except BrokerError as error:
        return _refused(transactional_id, error.code)
    if found is None:
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics = {
        name: indexes
        for name, indexes in group_by_topic(found.partitions).items()
        if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
    }
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.status.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started.wall_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


def _refused(transactional_id: str, code: ErrorCode) -> TransactionState:
    return TransactionState(transactional_id=transactional_id, error_code=code)
