"""Heartbeat: a member of a classic group is alive, and learns whether it must rejoin."""

from collections.abc import Awaitable

from penstock.groups.events import Heartbeat
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(
    request: HeartbeatRequest, context: Context
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    return context.groups.heartbeat(request.group_id, lambda asked: Heartbeat(asked, request))
