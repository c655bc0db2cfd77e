"""InitProducerId: an id of its own for each idempotent producer, never given twice.

A transactional id is refused as FindCoordinator refuses it, and for the same reason.
"""

from penstock.kafka.context import Context
from penstock.kafka.handlers.find_coordinator import no_transactions
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NONE = -1


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        raise no_transactions(request.transactional_id)
    _authorize_idempotence(context)
    if (request.producer_id == _NONE) is not (request.producer_epoch == _NONE):
        raise BrokerError(
            f"producer id {request.producer_id} with epoch {request.producer_epoch}:"
            " give both, or neither",
            ErrorCode.INVALID_REQUEST,
        )
    return InitProducerIdResponse(producer_id=await context.cluster.next_producer_id())


def refuse(request: InitProducerIdRequest, error: BrokerError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_epoch=_NONE)


def _authorize_idempotence(context: Context) -> None:
    """Who may write to some topic may do it idempotently (KIP-679)."""
    if context.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
        return
    topics = context.cluster.image.topics
    if not any(context.allows(Operation.WRITE, ResourceType.TOPIC, name) for name in topics):
        context.authorize(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
