"""ConsumerGroupDescribe: state and members of consumer groups (KIP-848)."""

import asyncio

from penstock.groups.listing import describe_consumer
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


async def handle(
    request: ConsumerGroupDescribeRequest, context: Context
) -> ConsumerGroupDescribeResponse:
    described = [
        await _describe(group_id, request.include_authorized_operations, context)
        for group_id in request.group_ids
    ]
    return ConsumerGroupDescribeResponse(groups=described)


def refuse(
    request: ConsumerGroupDescribeRequest, error: BrokerError
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[_refused(group_id, error) for group_id in request.group_ids]
    )


async def _describe(group_id: str, with_operations: bool, context: Context) -> DescribedGroup:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        answer = context.groups.read(
            group_id,
            lambda shard: describe_consumer(shard.groups.get(group_id), group_id),
            DescribedGroup,
        )
        described = await answer if isinstance(answer, asyncio.Future) else answer
        _check_topics(described, context)
    except BrokerError as error:
        return _refused(group_id, error)
    if with_operations:
        described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
    return described


def _check_topics(described: DescribedGroup, context: Context) -> None:
    """Who may not see a topic does not see who reads it."""
    for member in described.members:
        for assignment in (member.assignment, member.target_assignment):
            for topic in assignment.topic_partitions:
                if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic_name):
                    raise BrokerError(
                        "the group has members that work on topics which you may not describe",
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    )


def _refused(group_id: str, error: BrokerError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
