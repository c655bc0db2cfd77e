"""DescribeGroups: state and members of classic groups."""

import asyncio

from penstock.groups.listing import describe_classic
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


async def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
    described = [
        await _describe(group_id, request.include_authorized_operations, context)
        for group_id in request.groups
    ]
    return DescribeGroupsResponse(groups=described)


def refuse(request: DescribeGroupsRequest, error: BrokerError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_refused(group_id, error) for group_id in request.groups])


async def _describe(group_id: str, with_operations: bool, context: Context) -> DescribedGroup:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        answer = context.groups.read(
            group_id,
            lambda shard: describe_classic(shard.groups.get(group_id), group_id, context.version),
            DescribedGroup,
        )
        described = await answer if isinstance(answer, asyncio.Future) else answer
    except BrokerError as error:
        return _refused(group_id, error)
    if with_operations:
        described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
    return described


def _refused(group_id: str, error: BrokerError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error.code)
