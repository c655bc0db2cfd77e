"""InitProducerId: an id of its own for each producer, never given twice; a transactional one fences those before it."""

from collections.abc import Awaitable
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.kafka.txn_codes import told
from penstock.model.errors import BrokerError, ErrorCode
from penstock.transactions.events import Outcome
from penstock.transactions.state import Producer
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1
_FENCED_SINCE: Final = 4


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    else:
        _authorize_idempotence(context)
    if (request.producer_id == _NONE) is not (request.producer_epoch == _NONE):
        raise BrokerError(
            f"producer id {request.producer_id} with epoch {request.producer_epoch}:"
            " give both, or neither",
            ErrorCode.INVALID_REQUEST,
        )
    if request.transactional_id is not None:
        return await _initialize(request, request.transactional_id, context)
    return InitProducerIdResponse(producer_id=await context.cluster.next_producer_id())


async def _initialize(
    request: InitProducerIdRequest, transactional_id: str, context: Context
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != _NONE:
        expected = Producer(request.producer_id, request.producer_epoch)
    answer = context.transactions.initialize(
        transactional_id, request.transaction_timeout_ms, expected
    )
    outcome = await answer if isinstance(answer, Awaitable) else answer
    return _response(outcome, context.version)


def _response(outcome: Outcome, version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=told(outcome.code, version, fenced_since=_FENCED_SINCE),
        producer_id=outcome.producer.id,
        producer_epoch=outcome.producer.epoch,
    )


def refuse(request: InitProducerIdRequest, error: BrokerError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_epoch=_NONE)


def _authorize_idempotence(context: Context) -> None:
    """Who may write to some topic may do it idempotently (KIP-679)."""
    if context.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
        return
    topics = context.cluster.image.topics
    if not any(context.allows(Operation.WRITE, ResourceType.TOPIC, name) for name in topics):
        context.authorize(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
