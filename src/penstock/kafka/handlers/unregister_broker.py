"""UnregisterBroker: a broker that will not come back is struck off."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def handle(request: UnregisterBrokerRequest, context: Context) -> UnregisterBrokerResponse:
    context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    await context.cluster.unregister_broker(request.broker_id)
    return UnregisterBrokerResponse(error_message=None)
