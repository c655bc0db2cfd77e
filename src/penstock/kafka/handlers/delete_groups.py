"""DeleteGroups: remove groups without members, and their offsets."""

import asyncio

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(request: DeleteGroupsRequest, context: Context) -> DeleteGroupsResponse:
    """All are begun before the first is waited for."""
    begun = [_delete(group_id, context) for group_id in request.groups_names]
    results = []
    for group_id, result in zip(request.groups_names, begun, strict=True):
        try:
            results.append(await result if isinstance(result, asyncio.Future) else result)
        except BrokerError as error:
            results.append(_refused(group_id, error))
    return DeleteGroupsResponse(results=results)


def refuse(request: DeleteGroupsRequest, error: BrokerError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[_refused(name, error) for name in request.groups_names])


def _delete(
    group_id: str, context: Context
) -> DeletableGroupResult | asyncio.Future[DeletableGroupResult]:
    try:
        context.authorize(Operation.DELETE, ResourceType.GROUP, group_id)
        return context.groups.delete_group(group_id)
    except BrokerError as error:
        return _refused(group_id, error)


def _refused(group_id: str, error: BrokerError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=error.code)
