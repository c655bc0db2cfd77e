"""LeaveGroup: members leave a classic group, or are removed from it by their instance ids."""

import asyncio
from collections.abc import Awaitable

from penstock.groups.events import Leave
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)

_BATCHED_FROM = 3


def handle(
    request: LeaveGroupRequest, context: Context
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    batched = context.version >= _BATCHED_FROM
    if not batched:
        request.members = [MemberIdentity(member_id=request.member_id)]
    answer = context.groups.step(
        request.group_id, lambda asked: Leave(asked, request), LeaveGroupResponse
    )
    if batched:
        return answer
    return _later(answer) if isinstance(answer, asyncio.Future) else _unbatched(answer)


async def _later(answer: Awaitable[LeaveGroupResponse]) -> LeaveGroupResponse:
    return _unbatched(await answer)


def _unbatched(answer: LeaveGroupResponse) -> LeaveGroupResponse:
    """Of the one member that there is, the error is the request's."""
    members = answer.members
    error = answer.error_code or (members[0].error_code if members else 0)
    return LeaveGroupResponse(error_code=error)
