"""OffsetCommit, OffsetFetch, OffsetDelete and the end of old offsets: who may, what it writes, what it answers."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from penstock.groups.consumer import ConsumerGroup, ConsumerMember
from penstock.groups.offsets import (
    Committed,
    Offsets,
    belongs,
    decode_offset,
    encode_offset,
    encode_offset_key,
    times_of,
)
from penstock.groups.state import ClassicGroup, State
from penstock.groups.topics import Topics
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

Group: TypeAlias = ClassicGroup | ConsumerGroup
Records: TypeAlias = list[tuple[bytes, bytes | None]]

_CONSUMER_COMMIT_FROM: Final = 9
_NOT_FOUND_FROM: Final = 9
_NONE: Final = ErrorCode.NONE
_FOREVER_MS: Final = 2**63 - 1  # a retention time that a client sends may be any int64


# Commit ------------------------------------------------------------------------------------------


def check_unknown_group(request: OffsetCommitRequest, version: int) -> None:
    """A group that does not exist can be committed for, but not by one of its members."""
    if request.generation_id_or_member_epoch >= 0:
        code = (
            ErrorCode.GROUP_ID_NOT_FOUND
            if version >= _NOT_FOUND_FROM
            else ErrorCode.ILLEGAL_GENERATION
        )
        raise BrokerError(f"group '{request.group_id}' does not exist", code)


def check_commit(group: Group, request: OffsetCommitRequest, version: int) -> None:
    """Only a member of the current generation may commit; without members, anyone may."""
    generation = request.generation_id_or_member_epoch
    if isinstance(group, ConsumerGroup):
        if generation < 0 and group.is_empty:
            return
        member = group.members.get(request.member_id)
        if member is not None and not member.is_classic and version < _CONSUMER_COMMIT_FROM:
            raise BrokerError(
                f"a member of a consumer group needs OffsetCommit v{_CONSUMER_COMMIT_FROM}",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        _check_epoch(group, member, generation)
        return
    if generation < 0 and group.state is State.EMPTY:
        return
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        code = ErrorCode.UNKNOWN_MEMBER_ID  # offsets set from outside, while members are at work
    else:
        code = group.refusal(request.member_id, request.group_instance_id)
        if not code and generation != group.generation:
            code = ErrorCode.ILLEGAL_GENERATION
    if not code and group.state is State.COMPLETING:
        code = ErrorCode.REBALANCE_IN_PROGRESS
    if code:
        raise BrokerError(f"group '{group.id}' is {group.state.value}: {code.name}", code)


def _check_epoch(group: ConsumerGroup, member: ConsumerMember | None, epoch: int) -> None:
    if member is None:
        raise BrokerError(
            f"only members of group '{group.id}' can commit", ErrorCode.UNKNOWN_MEMBER_ID
        )
    if epoch != member.epoch:
        raise BrokerError(
            f"member '{member.id}' is at epoch {member.epoch}, not {epoch}",
            ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH,
        )


def refusal(index: int, partition_count: int, text: str, max_metadata_bytes: int) -> ErrorCode:
    """Why a position is not taken: only what exists can have one, and no one may fill our memory."""
    if not 0 <= index < partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if len(text) > max_metadata_bytes else _NONE


def commit(
    offsets: Offsets,
    known: Topics,
    request: OffsetCommitRequest,
    *,
    wall_ms: int,
    max_metadata_bytes: int,
) -> tuple[OffsetCommitResponse, Records]:
    """Take the offsets over; what is returned is to be written, and answered when it is."""
    group = request.group_id
    written: Records = []
    topics = []
    retention_ms = request.retention_time_ms
    expire_ms = -1 if retention_ms == -1 else min(wall_ms + retention_ms, _FOREVER_MS)
    for topic in request.topics:
        name = topic.name
        shape = known.get(name)
        count = 0 if shape is None else shape.partition_count
        topic_id = NO_TOPIC_ID if shape is None else shape.id
        answers = []
        for asked in topic.partitions:
            index, text = asked.partition_index, asked.committed_metadata or ""
            code = refusal(index, count, text, max_metadata_bytes)
            if code:
                answers.append(
                    OffsetCommitResponsePartition(partition_index=index, error_code=code)
                )
                continue
            value = encode_offset(
                Committed(
                    asked.committed_offset,
                    asked.committed_leader_epoch,
                    text,
                    wall_ms,
                    expire_ms,
                    topic_id,
                )
            )
            offsets.put(group, name, index, value)
            written.append((encode_offset_key(group, name, index), value))
            answers.append(OffsetCommitResponsePartition(partition_index=index))
        topics.append(
            OffsetCommitResponseTopic(name=name, topic_id=topic.topic_id, partitions=answers)
        )
    return OffsetCommitResponse(topics=topics), written


# Fetch -------------------------------------------------------------------------------------------


def fetch(
    offsets: Offsets,
    known: Topics,
    group: Group | None,
    asked: OffsetFetchRequestGroup,
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """Answer what is committed in the log. A group that is not known has no offsets, which is no error."""
    if isinstance(group, ConsumerGroup) and (
        asked.member_id is not None or asked.member_epoch >= 0
    ):
        try:
            _check_epoch(group, group.members.get(asked.member_id or ""), asked.member_epoch)
        except BrokerError as error:
            return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)
    group_id = asked.group_id
    if asked.topics is None:
        wanted = _all_positions(offsets, known, group_id)
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in asked.topics]
    topics = [
        OffsetFetchResponseTopics(
            name=name,
            partitions=[
                _position(offsets, known, group_id, name, index, require_stable=require_stable)
                for index in indexes
            ],
        )
        for name, indexes in wanted
    ]
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _all_positions(offsets: Offsets, known: Topics, group: str) -> list[tuple[str, list[int]]]:
    found = []
    for topic, values in offsets.committed_of_group(group).items():
        indexes = [i for i, value in values.items() if decode_offset(value).is_of(known, topic)]
        if indexes:
            found.append((topic, indexes))
    return found


def _position(
    offsets: Offsets,
    known: Topics,
    group: str,
    topic: str,
    index: int,
    *,
    require_stable: bool,
) -> OffsetFetchResponsePartitions:
    value, is_unstable = offsets.committed((group, topic, index))
    if require_stable and is_unstable:
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1, error_code=code
        )
    found = None if value is None else decode_offset(value)
    if found is None or not found.is_of(known, topic):
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


# Delete ------------------------------------------------------------------------------------------


def delete(
    offsets: Offsets, group: Group | None, request: OffsetDeleteRequest
) -> tuple[OffsetDeleteResponse, Records]:
    if group is None:
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND), []
    if isinstance(group, ClassicGroup) and not group.is_empty and not group.is_consumer:
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP), []
    written: Records = []
    topics = []
    for topic in request.topics:
        subscribed = is_subscribed(group, topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else _NONE
        answers = []
        for asked in topic.partitions:
            index = asked.partition_index
            answers.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if not subscribed:
                written += forget(offsets, group.id, topic.name, index)
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    return OffsetDeleteResponse(topics=topics), written


def forget(offsets: Offsets, group: str, topic: str, index: int) -> Records:
    """Drop one position, if there is one, and say what to write for that."""
    unstable = offsets.is_unstable(group, topic, index)
    if offsets.get(group, topic, index) is None and not unstable:
        return []
    offsets.drop(group, topic, index)
    offsets.drop_pending((group, topic, index))
    return [(encode_offset_key(group, topic, index), None)]


def forget_all(offsets: Offsets, group: str) -> Records:
    positions = {(t, index) for t, known in offsets.of_group(group).items() for index in known}
    positions |= offsets.unstable_of(group)
    return [
        record
        for topic, index in sorted(positions)
        for record in forget(offsets, group, topic, index)
    ]


def is_subscribed(group: Group, topic: str) -> bool:
    """What is not known counts as subscribed, where someone could be."""
    if isinstance(group, ConsumerGroup):
        return topic in group.subscribed
    if group.subscribed is None:
        return group.is_consumer
    return topic in group.subscribed


# Expiry ------------------------------------------------------------------------------------------


def expire(
    offsets: Offsets,
    known: Topics,
    group: Group,
    *,
    now_ms: int,
    wall_ms: int,
    retention_ms: int,
    positions: Iterable[tuple[str, int]],
    is_due: bool = True,
) -> Records:
    """Drop those positions (topic and partition) that nobody has needed for the retention time, and say what to write for that.

    Offsets in topics that were deleted go at once. An empty group's offsets live on from the moment it became empty; those of topics that no member
    subscribes to any more, and those of simple consumers, from their last commit.
    `is_due`: whether anything may be deleted because it is old.
    """
    since_ms, since_wall_ms = None, -1  # by the monotonic clock; None: from the commit
    may_expire = is_due
    if isinstance(group, ClassicGroup):
        if group.protocol_type is not None and group.is_empty:
            since_ms, since_wall_ms = group.since_ms, group.since_wall_ms
        elif not group.is_empty and not (group.is_consumer and group.state is State.STABLE):
            may_expire = False
    written: Records = []
    for topic, chosen in groupby(positions, key=itemgetter(0)):
        may_expire_here = may_expire and not is_subscribed(group, topic)
        current = known.id_of(topic)
        for _, index in chosen:
            value = offsets.get(group.id, topic, index)
            if value is None:
                continue
            topic_id, commit_ms, expire_ms = times_of(value)
            if not belongs(topic_id, current):
                over = True
            elif not may_expire_here:
                over = False
            elif expire_ms != -1:
                over = wall_ms >= expire_ms
            elif since_ms is not None:
                over = min(now_ms - since_ms, wall_ms - since_wall_ms) >= retention_ms
            else:
                over = wall_ms - commit_ms >= retention_ms
            if over and not offsets.is_unstable(group.id, topic, index):
                written += forget(offsets, group.id, topic, index)
    return written
