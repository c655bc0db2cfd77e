"""ConsumerGroupHeartbeat: membership and assignment of consumer groups (KIP-848)."""

from collections.abc import Awaitable
from uuid import uuid4

from penstock.groups.events import Client, ConsumerHeartbeat
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(
    request: ConsumerGroupHeartbeatRequest, context: Context
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    if not request.group_id.strip():
        raise BrokerError("group_id is empty; a group needs a name", ErrorCode.INVALID_REQUEST)
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    for topic in request.subscribed_topic_names or ():
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    client = Client(
        context.header.client_id or "",
        f"/{context.client_host}",
        context.version,
        "" if request.member_id else str(uuid4()),
    )

    def may_see(topic: str) -> bool:
        return context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    return context.groups.step(
        request.group_id,
        lambda asked: ConsumerHeartbeat(asked, request, client, may_see),
        ConsumerGroupHeartbeatResponse,
    )
