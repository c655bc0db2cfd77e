"""JoinGroup: enter a classic group, or the next generation of it. Answered when that is complete."""

from collections.abc import Awaitable
from typing import Final
from uuid import uuid4

from penstock.groups.events import Client, Join
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

_NAME_CHARS: Final = 255  # of a member's name in its id, which must fit into a record


def handle(
    request: JoinGroupRequest, context: Context
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    groups = context.groups
    groups.shard_of(request.group_id)
    _check_session(request, context)
    if request.rebalance_timeout_ms <= 0:  # version 0 has only one timeout
        request.rebalance_timeout_ms = request.session_timeout_ms
    client_id = context.header.client_id or ""
    name = (request.group_instance_id or client_id)[:_NAME_CHARS]
    client = Client(client_id, f"/{context.client_host}", context.version, f"{name}-{uuid4()}")
    return groups.step(
        request.group_id, lambda asked: Join(asked, request, client), JoinGroupResponse
    )


def refuse(request: JoinGroupRequest, error: BrokerError) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error.code, member_id=request.member_id)


def _check_session(request: JoinGroupRequest, context: Context) -> None:
    least = context.config.group_min_session_timeout_ms
    most = context.config.group_max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        raise BrokerError(
            f"session.timeout.ms={request.session_timeout_ms}; this broker takes {least} to {most} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms)",
            ErrorCode.INVALID_SESSION_TIMEOUT,
        )
