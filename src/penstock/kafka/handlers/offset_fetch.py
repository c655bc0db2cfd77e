"""OffsetFetch: the positions that groups have committed. A group that is not known has none.

Who asks a broker that is not the group's coordinator is told so for the group, as by Kafka, and for each partition that its
offset is not stable. librdkafka looks for a coordinator after the first, and asks again only after the second: without it,
it waits for ever with partitions that it does not read (its issue 5586). So it does with a member's stale epoch that is not
told for each partition too. Other clients look at the group's code first.

From version 10 topics have ids, which are resolved to names here; an unknown id refuses only its topic.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.groups import commits
from penstock.groups.shard import Shard
from penstock.kafka.context import Context
from penstock.kafka.preparation import Preparation
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
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
    groups = _groups_of(request, context)
    if context.services.replicas.is_cut_off:
        return _confirmed(request, groups, context)
    answers = [_fetch(asked, request.require_stable, context) for asked in groups]
    if any(isinstance(answer, asyncio.Future) for answer in answers):
        return _later(groups, answers, context)
    return _finish([a for a in answers if not isinstance(a, asyncio.Future)], context)


def _groups_of(request: OffsetFetchRequest, context: Context) -> list[OffsetFetchRequestGroup]:
    return request.groups if context.version >= _BATCHED_FROM else [_as_group(request)]


# Without the metadata store another broker may coordinate by now, and have newer offsets (B5).


async def _confirmed(
    request: OffsetFetchRequest, groups: list[OffsetFetchRequestGroup], context: Context
) -> OffsetFetchResponse:
    if not hasattr(context, "confirmed"):  # else it is a part of a request that has waited
        context.confirmed = {}
        _begin_confirmations(request, context)
        await _wait_for_confirmations(context)
    answers = [_fetch(asked, request.require_stable, context, _check_confirmed) for asked in groups]
    return await _later(groups, answers, context)


def _begin_preparation(context: Context) -> bool:
    """Set `confirmed` in any case: a part of a long request never waits, it holds a place."""
    context.confirmed = {}
    return context.services.replicas.is_cut_off


def _begin_confirmations(request: OffsetFetchRequest, context: Context) -> None:
    """Begin one confirmation per coordinator partition. Rejected groups need none."""
    confirmed = context.confirmed
    for asked in _groups_of(request, context):
        try:
            context.authorize(Operation.DESCRIBE, ResourceType.GROUP, asked.group_id)
            partition = context.groups.shard_of(asked.group_id).partition
        except BrokerError:
            continue
        leadership = partition.leadership
        if leadership is not None and leadership not in confirmed:
            confirmed[leadership] = context.services.confirmations.confirm(partition)


async def _wait_for_confirmations(context: Context) -> None:
    await asyncio.gather(*context.confirmed.values(), return_exceptions=True)


def _check_confirmed(group_id: str, context: Context) -> None:
    partition = context.groups.shard_of(group_id).partition
    leadership = partition.leadership
    confirmed = None if leadership is None else context.confirmed.get(leadership)
    if confirmed is None or not confirmed.done() or confirmed.exception() is not None:
        raise BrokerError(
            f"{partition}: another broker may coordinate '{group_id}'", ErrorCode.NOT_COORDINATOR
        )


PREPARATION: Final = Preparation(_begin_preparation, _begin_confirmations, _wait_for_confirmations)


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


def _fetch(
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    context: Context,
    check: Callable[[str, Context], None] | None = None,
) -> GroupAnswer:
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, asked.group_id)
        if check is not None:
            check(asked.group_id, context)
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
    known = shard.context.topics
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
