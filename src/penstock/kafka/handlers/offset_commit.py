"""OffsetCommit: keep a group's positions. Acknowledged when the log has them.

From version 10 topics have ids, which are resolved to names here; an unknown id refuses only its topic.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_BY_ID_FROM: Final = 10


def handle(
    request: OffsetCommitRequest, context: Context
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    if context.version >= _BY_ID_FROM:
        for topic in request.topics:
            topic.name = context.groups.topics.name_of(topic.topic_id) or ""
    codes = [_refusal(topic.name, context) for topic in request.topics]
    if not any(codes):
        return context.groups.commit(request, context.version)
    refused, accepted = {}, []
    for place, (topic, code) in enumerate(zip(request.topics, codes, strict=True)):
        if code:
            refused[place] = _refuse_topic(topic, code)
        else:
            accepted.append(topic)
    named, request.topics = request.topics, accepted
    try:
        answer = context.groups.commit(request, context.version)
    finally:
        request.topics = named  # a rejection of the whole request names them all
    return (
        _later(answer, refused) if isinstance(answer, asyncio.Future) else _merge(answer, refused)
    )


def refuse(request: OffsetCommitRequest, error: BrokerError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refuse_topic(t, error.code) for t in request.topics])


def _refusal(name: str, context: Context) -> ErrorCode:
    if context.version >= _BY_ID_FROM and not name:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not context.allows(Operation.READ, ResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name not in context.groups.topics:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _later(
    answer: Awaitable[OffsetCommitResponse], refused: dict[int, OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    return _merge(await answer, refused)


def _merge(
    answer: OffsetCommitResponse, refused: dict[int, OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    """In the order in which they were asked."""
    for place, topic in sorted(refused.items()):
        answer.topics.insert(place, topic)
    return answer


def _refuse_topic(topic: OffsetCommitRequestTopic, code: int) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
            for p in topic.partitions
        ],
    )
