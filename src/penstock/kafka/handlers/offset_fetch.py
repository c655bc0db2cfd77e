"""OffsetFetch: the positions that groups have committed. A group that is not known has none."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from penstock.groups import commits
from penstock.groups.shard import Shard
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_BATCHED_FROM: Final = 8
_CODE_AT_TOP_FROM: Final = 2
GroupAnswer = OffsetFetchResponseGroup | asyncio.Future[OffsetFetchResponseGroup]


def handle(
    request: OffsetFetchRequest, context: Context
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups = request.groups if context.version >= _BATCHED_FROM else [_as_group(request)]
    answers = [_fetch(asked, request.require_stable, context) for asked in groups]
    if any(isinstance(answer, asyncio.Future) for answer in answers):
        return _later(groups, answers, context)
    return _finish([a for a in answers if not isinstance(a, asyncio.Future)], context)


async def _later(
    groups: list[OffsetFetchRequestGroup], answers: list[GroupAnswer], context: Context
) -> OffsetFetchResponse:
    done = []
    for asked, answer in zip(groups, answers, strict=True):
        try:
            done.append(await answer if isinstance(answer, asyncio.Future) else answer)
        except BrokerError as error:
            done.append(_refused(asked, error.code))
    return _finish(done, context)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _fetch(asked: OffsetFetchRequestGroup, require_stable: bool, context: Context) -> GroupAnswer:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, asked.group_id)
        return context.groups.read(
            asked.group_id,
            lambda shard: _read(shard, asked, require_stable, context),
            OffsetFetchResponseGroup,
        )
    except BrokerError as error:
        return _refused(asked, error.code)


def _read(
    shard: Shard, asked: OffsetFetchRequestGroup, require_stable: bool, context: Context
) -> OffsetFetchResponseGroup:
    group = shard.groups.get(asked.group_id)
    found = commits.fetch(shard.offsets, group, asked, require_stable=require_stable)
    topics = []
    for topic in found.topics:
        if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            topics.append(topic)
        elif asked.topics is not None:  # of all topics, only those that may be seen are told
            topics.append(_hidden(topic))
    found.topics = topics
    return found


def _hidden(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopics:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetFetchResponseTopics(
        name=topic.name, partitions=[_nothing(p.partition_index, code) for p in topic.partitions]
    )


def _nothing(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, error_code=code
    )


def _refused(asked: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    """The partitions are named for the oldest clients: they look for errors only there."""
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name, partitions=[_nothing(i, code) for i in topic.partition_indexes]
        )
        for topic in asked.topics or ()
    ]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=code)


def _finish(groups: list[OffsetFetchResponseGroup], context: Context) -> OffsetFetchResponse:
    if context.version >= _BATCHED_FROM:
        for group in groups:
            if group.error_code:
                group.topics = []
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    told = group.topics
    if group.error_code and context.version >= _CODE_AT_TOP_FROM:
        told = []
    return OffsetFetchResponse(
        topics=[_old_topic(topic) for topic in told], error_code=group.error_code
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=p.partition_index,
                committed_offset=p.committed_offset,
                committed_leader_epoch=p.committed_leader_epoch,
                metadata=p.metadata,
                error_code=p.error_code,
            )
            for p in topic.partitions
        ],
    )


def refuse(request: OffsetFetchRequest, error: BrokerError) -> OffsetFetchResponse:
    """In both forms; the version in use takes its own."""
    return OffsetFetchResponse(
        error_code=error.code,
        groups=[
            OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)
            for asked in request.groups
        ],
    )
