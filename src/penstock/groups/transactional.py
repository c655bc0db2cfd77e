"""TxnOffsetCommit: offsets that become a group's position only when their transaction is committed.

KIP-447: a consumer says of which generation it is, so that one that was replaced cannot commit.
"""

from typing import TypeAlias

from penstock.groups.commits import refusal
from penstock.groups.consumer import ConsumerGroup
from penstock.groups.offsets import Committed, Position, encode_offset
from penstock.groups.state import ClassicGroup
from penstock.groups.topics import Topics
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

Pending: TypeAlias = list[tuple[Position, bytes]]


def check(group: ClassicGroup | ConsumerGroup | None, request: TxnOffsetCommitRequest) -> None:
    """Whoever names a member must be it, now. Who names none is let in: old clients cannot."""
    code = ErrorCode.NONE
    if group is None:
        if request.generation_id >= 0:
            code = ErrorCode.ILLEGAL_GENERATION
    elif request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        code = _member_refusal(group, request)
    if code:
        raise BrokerError(
            f"group '{request.group_id}' takes no offsets of member '{request.member_id}' of"
            f" generation {request.generation_id}: {code.name}",
            code,
        )


def _member_refusal(
    group: ClassicGroup | ConsumerGroup, request: TxnOffsetCommitRequest
) -> ErrorCode:
    if isinstance(group, ConsumerGroup):
        if request.generation_id < 0 and group.is_empty:
            return ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        current = member.epoch == request.generation_id
        return ErrorCode.NONE if current else ErrorCode.ILLEGAL_GENERATION
    if request.generation_id < 0 and group.is_empty:
        return ErrorCode.NONE
    code = group.refusal(request.member_id, request.group_instance_id)
    if not code and request.generation_id != group.generation:
        code = ErrorCode.ILLEGAL_GENERATION
    return code


def commit(
    known: Topics, request: TxnOffsetCommitRequest, *, wall_ms: int, max_metadata_bytes: int
) -> tuple[TxnOffsetCommitResponse, Pending]:
    """What to answer once the pending offsets are written."""
    pending: Pending = []
    topics = []
    for topic in request.topics:
        shape = known.get(topic.name)
        count = 0 if shape is None else shape.partition_count
        topic_id = NO_TOPIC_ID if shape is None else shape.id
        answers = []
        for asked in topic.partitions:
            index, text = asked.partition_index, asked.committed_metadata or ""
            code = refusal(index, count, text, max_metadata_bytes)
            if not code:
                committed = Committed(
                    asked.committed_offset,
                    asked.committed_leader_epoch,
                    text,
                    wall_ms,
                    topic_id=topic_id,
                )
                position = (request.group_id, topic.name, index)
                pending.append((position, encode_offset(committed)))
            answers.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
    return TxnOffsetCommitResponse(topics=topics), pending
