"""AssignReplicasToDirs: a broker says that logs of its own are lost, and others must lead those partitions (KIP-858).

A broker has one directory here: one that is named tells whether the log is built anew, or kept and not counted on.
"""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


async def handle(
    request: AssignReplicasToDirsRequest, context: Context
) -> AssignReplicasToDirsResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return await context.cluster.decide_lost_logs(request)
