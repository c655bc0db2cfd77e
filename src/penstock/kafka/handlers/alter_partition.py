"""AlterPartition: a leader asks the controller who is to be in sync (KIP-497)."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(request: AlterPartitionRequest, context: Context) -> AlterPartitionResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return await context.cluster.decide_isrs(request)
