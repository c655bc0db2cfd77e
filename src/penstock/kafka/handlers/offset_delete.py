"""OffsetDelete: forget a group's positions in topics that it no longer subscribes to."""

import asyncio
from collections.abc import Awaitable

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(
    request: OffsetDeleteRequest, context: Context
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    context.authorize(Operation.DELETE, ResourceType.GROUP, request.group_id)
    refused, accepted = [], []
    for topic in request.topics:
        code = _refusal(topic.name, context)
        if code:
            refused.append(_refuse_topic(topic, code))
        else:
            accepted.append(topic)
    request.topics = accepted
    answer = context.groups.delete_offsets(request)
    return (
        _later(answer, refused) if isinstance(answer, asyncio.Future) else _merge(answer, refused)
    )


def _refusal(name: str, context: Context) -> ErrorCode:
    if not context.allows(Operation.READ, ResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name not in context.groups.topics:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _later(
    answer: Awaitable[OffsetDeleteResponse], refused: list[OffsetDeleteResponseTopic]
) -> OffsetDeleteResponse:
    return _merge(await answer, refused)


def _merge(
    answer: OffsetDeleteResponse, refused: list[OffsetDeleteResponseTopic]
) -> OffsetDeleteResponse:
    if not answer.error_code:
        answer.topics += refused
    return answer


def _refuse_topic(topic: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=code)
            for p in topic.partitions
        ],
    )
