"""OffsetFetch: the positions that groups have committed. A group that is not known has none.

Who asks a broker that is not the group's coordinator is told so for the group, as by Kafka, and for each partition that its
offset is not stable. librdkafka looks for a coordinator after the first, and asks again only after the second: without it,
it waits for ever with partitions that it does not read (its issue 5586). So it does with a member's stale epoch that is not
told for each partition too. Other clients look at the group's code first.

From version 10 topics have ids, which are resolved to names here; an unknown id refuses only its topic.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from penstock.groups import commits
from penstock.groups.shard import Shard
from penstock.kafka.contact import confirm_leader
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode, NotLeader
from penstock.model.ids import NO_TOPIC_ID
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
_UNSTABLE_FROM: Final = 7
_BY_ID_FROM: Final = 10
_ASK_AGAIN: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
}
GroupAnswer = OffsetFetchResponseGroup | asyncio.Future[OffsetFetchResponseGroup]


def handle(
    request: OffsetFetchRequest, context: Context
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups = request.groups if context.version >= _BATCHED_FROM else [_as_group(request)]
    if context.services.replicas.is_cut_off:
        return _confirmed(groups, request.require_stable, context)
    answers = [_fetch(asked, request.require_stable, context) for asked in groups]
    if any(isinstance(answer, asyncio.Future) for answer in answers):
        return _later(groups, answers, context)
    return _finish([a for a in answers if not isinstance(a, asyncio.Future)], context)


async def _confirmed(
    groups: list[OffsetFetchRequestGroup], require_stable: bool, context: Context
) -> OffsetFetchResponse:
    """Without the store another broker may coordinate by now, and have newer offsets (B5)."""
    answers: list[GroupAnswer] = []
    for asked in groups:
        try:
            partition = context.groups.shard_of(asked.group_id).partition
            await confirm_leader(partition, context.services)
            answers.append(_fetch(asked, require_stable, context))
        except NotLeader:
            answers.append(_refused(asked, ErrorCode.NOT_COORDINATOR, context.version))
        except BrokerError as error:
            answers.append(_refused(asked, error.code, context.version))
    return await _later(groups, answers, context)


async def _later(
    groups: list[OffsetFetchRequestGroup], answers: list[GroupAnswer], context: Context
) -> OffsetFetchResponse:
    done = []
    for asked, answer in zip(groups, answers, strict=True):
        try:
            done.append(await answer if isinstance(answer, asyncio.Future) else answer)
        except BrokerError as error:
            done.append(_refused(asked, error.code, context.version))
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
        return context.groups.read_offsets(
            asked.group_id,
            lambda shard: _read(shard, asked, require_stable, context),
            OffsetFetchResponseGroup,
        )
    except BrokerError as error:
        return _refused(asked, error.code, context.version)


def _read(
    shard: Shard, asked: OffsetFetchRequestGroup, require_stable: bool, context: Context
) -> OffsetFetchResponseGroup:
    group = shard.groups.get(asked.group_id)
    named = _with_names(asked, context) if context.version >= _BY_ID_FROM else asked
    known = shard.ground.topics
    found = commits.fetch(shard.offsets, known, group, named, require_stable=require_stable)
    if found.error_code:
        return _refused(asked, ErrorCode(found.error_code), context.version)
    topics = []
    for topic in found.topics:
        if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            topics.append(topic)
        elif asked.topics is not None:  # of all topics, only those that may be seen are told
            topics.append(_hidden(topic))
    found.topics = topics
    return _with_ids(found, asked, context) if context.version >= _BY_ID_FROM else found


def _with_names(asked: OffsetFetchRequestGroup, context: Context) -> OffsetFetchRequestGroup:
    """The same request by name, without the topics whose ids are unknown."""
    topics = asked.topics
    if topics is not None:
        for topic in topics:
            topic.name = context.groups.topics.name_of(topic.topic_id) or ""
        topics = [topic for topic in topics if topic.name]
    return OffsetFetchRequestGroup(
        group_id=asked.group_id,
        member_id=asked.member_id,
        member_epoch=asked.member_epoch,
        topics=topics,
    )


def _with_ids(
    found: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, context: Context
) -> OffsetFetchResponseGroup:
    """Every topic with its id, in the order of the request; unknown ids have their code."""
    if asked.topics is None:
        for topic in found.topics:
            shape = context.groups.topics.get(topic.name)
            topic.topic_id = NO_TOPIC_ID if shape is None else shape.id
        found.topics = [topic for topic in found.topics if topic.topic_id != NO_TOPIC_ID]
        return found
    known = iter(found.topics)
    found.topics = []
    for wanted in asked.topics:
        topic = next(known) if wanted.name else _unknown_id(wanted)
        topic.topic_id = wanted.topic_id
        found.topics.append(topic)
    return found


def _unknown_id(wanted: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    code = ErrorCode.UNKNOWN_TOPIC_ID
    return OffsetFetchResponseTopics(
        partitions=[_nothing(index, code) for index in wanted.partition_indexes]
    )


def _hidden(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopics:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetFetchResponseTopics(
        name=topic.name, partitions=[_nothing(p.partition_index, code) for p in topic.partitions]
    )


def _nothing(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, error_code=code
    )


def _refused(
    asked: OffsetFetchRequestGroup, code: ErrorCode, version: int
) -> OffsetFetchResponseGroup:
    topics = []
    if (partition_code := _refused_partition(code, version)) is not None:
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[_nothing(i, partition_code) for i in topic.partition_indexes],
            )
            for topic in asked.topics or ()
        ]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=code)


def _refused_partition(code: ErrorCode, version: int) -> ErrorCode | None:
    """What each partition of a refused group is told; None: they are not named."""
    if version < _CODE_AT_TOP_FROM:
        return code  # the oldest clients look for errors only there
    return _ASK_AGAIN.get(code) if version >= _UNSTABLE_FROM else None


def _finish(groups: list[OffsetFetchResponseGroup], context: Context) -> OffsetFetchResponse:
    if context.version >= _BATCHED_FROM:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        topics=[_old_topic(topic) for topic in group.topics], error_code=group.error_code
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
