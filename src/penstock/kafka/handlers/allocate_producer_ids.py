"""AllocateProducerIds: a block of producer ids for another broker, from the controller."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


async def handle(
    request: AllocateProducerIdsRequest, context: Context
) -> AllocateProducerIdsResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    broker = context.cluster.image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        raise BrokerError(
            f"broker {request.broker_id} has no session with epoch {request.broker_epoch}",
            ErrorCode.STALE_BROKER_EPOCH,
        )
    block = await context.cluster.allocate_producer_ids()
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
