"""BrokerHeartbeat: how far a broker is, and whether it may take part or leave."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)


def handle(request: BrokerHeartbeatRequest, context: Context) -> BrokerHeartbeatResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return context.cluster.heartbeat(request)
