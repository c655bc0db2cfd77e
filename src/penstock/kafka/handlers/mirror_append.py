"""MirrorAppend: batches of another cluster's log enter as they are; answered when they are committed."""

import asyncio
from collections.abc import Awaitable
from typing import Final, NamedTuple

from penstock.broker.partitions.partition import Partition, Topic
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import Steps
from penstock.wire.messages.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorPartition,
    MirrorPartitionResult,
    MirrorTopic,
    MirrorTopicResult,
)

_ANY_ID: Final = bytes(16)
_SECONDS_PER_MS: Final = 0.001


class Wait(NamedTuple):
    partition: Partition
    row: MirrorPartitionResult
    committed: asyncio.Future[None]


def handle(
    request: MirrorAppendRequest, context: Context
) -> MirrorAppendResponse | Awaitable[MirrorAppendResponse]:
    """Runs to the end of the appends without waiting: the records lie in the receive buffer."""
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    waits: list[Wait] = []
    topics = [_append_topic(topic, context, waits) for topic in request.topics]
    response = MirrorAppendResponse(topics=topics)
    return _acknowledge(response, waits, request.timeout_ms) if waits else response


class Appends:
    """A request of many partitions."""

    waiting = None
    is_sent_again = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def append(
        self, part: MirrorAppendRequest
    ) -> MirrorAppendResponse | Awaitable[MirrorAppendResponse]:
        return handle(part, self._context)


def begin(_: MirrorAppendRequest, context: Context) -> Steps[Appends]:
    """Each slice is handled by itself."""
    return Appends(context)
    yield  # a generator without steps


def refuse(request: MirrorAppendRequest, error: BrokerError) -> MirrorAppendResponse:
    return MirrorAppendResponse(topics=[_refuse_topic(topic, error) for topic in request.topics])


def _append_topic(asked: MirrorTopic, context: Context, waits: list[Wait]) -> MirrorTopicResult:
    try:
        topic = context.replicas.topic(asked.name)
        if asked.topic_id not in (_ANY_ID, topic.id):
            raise BrokerError(
                f"topic '{asked.name}' was created anew: its id is another one",
                ErrorCode.INCONSISTENT_TOPIC_ID,
            )
    except BrokerError as error:
        return _refuse_topic(asked, error)
    mirror = topic.mirror
    return MirrorTopicResult(
        name=topic.name,
        topic_id=topic.id,
        mirror_source=mirror.source or None if mirror is not None else None,
        promotion=mirror.promotion if mirror is not None else 0,
        partitions=[_append(topic, partition, context, waits) for partition in asked.partitions],
    )


def _append(
    topic: Topic, asked: MirrorPartition, context: Context, waits: list[Wait]
) -> MirrorPartitionResult:
    try:
        partition = context.replicas.partition(topic, asked.index)
        if asked.records:
            partition.check_in_sync()
            partition.append_mirrored(asked.records, asked.continues_at)
            topic.metrics.bytes_in.value += len(asked.records)
        else:
            partition.finish_promotion(context.clock.wall_ms())
        log = partition.log
    except BrokerError as error:
        return _refused(asked, error)
    row = MirrorPartitionResult(
        index=asked.index,
        log_start_offset=log.start_offset,
        log_end_offset=log.next_offset,
        high_watermark=partition.high_watermark,
    )
    must_be_committed = asked.records or (topic.mirror is not None and not topic.mirror.source)
    committed = partition.committed(log.next_offset) if must_be_committed else None
    if committed is not None:
        waits.append(Wait(partition, row, committed))
    return row


async def _acknowledge(
    response: MirrorAppendResponse, waits: list[Wait], timeout_ms: int
) -> MirrorAppendResponse:
    try:
        await asyncio.wait([wait.committed for wait in waits], timeout=timeout_ms * _SECONDS_PER_MS)
        for partition, row, committed in waits:
            _settle(partition, row, committed, timeout_ms)
    finally:
        for wait in waits:
            wait.committed.cancel()
    return response


def _settle(
    partition: Partition,
    row: MirrorPartitionResult,
    committed: asyncio.Future[None],
    timeout_ms: int,
) -> None:
    row.high_watermark = partition.high_watermark
    if not committed.done():
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
        row.error_message = f"{partition}: not committed within {timeout_ms} ms; it may still be"
    elif committed.cancelled():
        row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif isinstance(error := committed.exception(), BrokerError):
        row.error_code, row.error_message = error.code, str(error)
    elif error is not None:
        raise error


def _refuse_topic(asked: MirrorTopic, error: BrokerError) -> MirrorTopicResult:
    return MirrorTopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[_refused(partition, error) for partition in asked.partitions],
    )


def _refused(asked: MirrorPartition, error: BrokerError) -> MirrorPartitionResult:
    return MirrorPartitionResult(index=asked.index, error_code=error.code, error_message=str(error))
