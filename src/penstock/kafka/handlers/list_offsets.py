"""ListOffsets: the offset at a timestamp, exact also inside a batch, or at either end of a partition."""

from collections.abc import Awaitable
from typing import Final, NamedTuple

from penstock.broker.partitions.partition import Partition
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3  # KIP-734, v7
EARLIEST_LOCAL: Final = -4  # KIP-405, v8
LATEST_TIERED: Final = -5  # KIP-1005, v9
EARLIEST_PENDING_UPLOAD: Final = -6  # KIP-1023, v11
_SINCE_VERSION: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class Found(NamedTuple):
    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


_NOTHING: Final = Found(-1)


def handle(
    request: ListOffsetsRequest, context: Context
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Only a search by time has to read the log, which may take long."""
    if any(_is_by_time(asked.timestamp) for topic in request.topics for asked in topic.partitions):
        return _search(request, context)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(topic, asked, request.isolation_level, context)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _search(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    if not hasattr(context, "searched"):
        context.searched = set()  # all parts of a large request share it
    searched = context.searched
    for topic in request.topics:
        answered = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            if _is_by_time(asked.timestamp) and place in searched:
                repeated = BrokerError("a partition is named twice", ErrorCode.INVALID_REQUEST)
                partition = _refused(asked, repeated)
            elif _is_by_time(asked.timestamp):
                searched.add(place)
                partition = await _searched(topic, asked, request.isolation_level, context)
            else:
                partition = _answer(topic, asked, request.isolation_level, context)
            answered.partitions.append(partition)
    return response


def _is_by_time(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def refuse(request: ListOffsetsRequest, error: BrokerError) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[_refused(asked, error) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(
    topic: ListOffsetsTopic, asked: ListOffsetsPartition, isolation: int, context: Context
) -> ListOffsetsPartitionResponse:
    try:
        partition = _partition(topic, asked, context)
        try:
            found = _find_end(partition, asked.timestamp, isolation, context.version)
        except StorageFault as fault:
            raise partition.storage_failed(fault) from fault
    except BrokerError as error:
        return _refused(asked, error)
    return _answered(asked, found, context)


async def _searched(
    topic: ListOffsetsTopic, asked: ListOffsetsPartition, isolation: int, context: Context
) -> ListOffsetsPartitionResponse:
    try:
        partition = _partition(topic, asked, context)
        _check_version(asked.timestamp, context.version)
        end = partition.visible_end(isolation)
        try:
            log = partition.log
            by_time = asked.timestamp >= 0
            steps = log.search_timestamp(asked.timestamp) if by_time else log.search_max_timestamp()
            found = await context.replicas.opener.find_time(partition, steps)
        except StorageFault as fault:
            raise partition.storage_failed(fault) from fault
        partition = _partition(topic, asked, context)  # it may be led elsewhere by now
    except BrokerError as error:
        return _refused(asked, error)
    if found is None or found.offset >= end:
        return _answered(asked, _NOTHING, context)
    return _answered(asked, Found(found.offset, found.timestamp_ms, found.leader_epoch), context)


def _partition(topic: ListOffsetsTopic, asked: ListOffsetsPartition, context: Context) -> Partition:
    context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    replicas = context.replicas
    partition = replicas.partition(replicas.topic(topic.name), asked.partition_index)
    partition.check_epoch(asked.current_leader_epoch)
    return partition


def _answered(
    asked: ListOffsetsPartition, found: Found, context: Context
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch if context.version >= 4 else -1,
    )


def _refused(asked: ListOffsetsPartition, error: BrokerError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=error.code
    )


def _check_version(timestamp_ms: int, version: int) -> None:
    if version < _SINCE_VERSION.get(timestamp_ms, 0):
        raise BrokerError(
            f"timestamp {timestamp_ms} has no meaning in ListOffsets v{version}",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def _find_end(partition: Partition, timestamp_ms: int, isolation: int, version: int) -> Found:
    """What a special timestamp stands for: an end of the log."""
    log = partition.log
    _check_version(timestamp_ms, version)
    match timestamp_ms:
        case -1:
            end = partition.visible_end(isolation)
            partition.check_settled()
            return Found(end, -1, partition.leader_epoch)
        case -2:
            return Found(log.start_offset, -1, _epoch_at(partition, log.start_offset))
        case -4:
            return Found(log.local_start_offset, -1, _epoch_at(partition, log.local_start_offset))
        case -5 | -6:
            return _NOTHING  # no topic is tiered: nothing is in remote storage or waits for it
        case _:
            raise BrokerError(
                f"timestamp {timestamp_ms} has no meaning", ErrorCode.UNSUPPORTED_VERSION
            )


def _epoch_at(partition: Partition, offset: int) -> int:
    """An empty log has no epochs yet: what comes next will have the leader's."""
    epoch = partition.log.epochs.epoch_at(offset)
    return partition.leader_epoch if epoch < 0 else epoch
