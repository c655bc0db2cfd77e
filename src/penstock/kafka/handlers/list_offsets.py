"""ListOffsets: the offset at a timestamp, exact also inside a batch, or at either end of a partition."""

from typing import Final, NamedTuple

from penstock.broker.partition import Partition
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


def handle(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
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
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        replicas = context.replicas
        partition = replicas.partition(replicas.topic(topic.name), asked.partition_index)
        partition.check_epoch(asked.current_leader_epoch)
        try:
            found = find(partition, asked.timestamp, isolation, context.version)
        except StorageFault as fault:
            raise partition.storage_failed(fault) from fault
    except BrokerError as error:
        return _refused(asked, error)
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


def find(partition: Partition, timestamp_ms: int, isolation: int, version: int) -> Found:
    log = partition.log
    end = partition.visible_end(isolation)
    if version < _SINCE_VERSION.get(timestamp_ms, 0):
        raise BrokerError(
            f"timestamp {timestamp_ms} has no meaning in ListOffsets v{version}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    match timestamp_ms:
        case -1:
            partition.check_settled()
            return Found(end, -1, partition.leader_epoch)
        case -2:
            return Found(log.start_offset, -1, _epoch_at(partition, log.start_offset))
        case -4:
            return Found(log.local_start_offset, -1, _epoch_at(partition, log.local_start_offset))
        case -5 | -6:
            return _NOTHING  # no topic is tiered: nothing is in remote storage or waits for it
        case -3:
            found = log.max_timestamp()
        case _ if timestamp_ms < 0:
            raise BrokerError(
                f"timestamp {timestamp_ms} has no meaning", ErrorCode.UNSUPPORTED_VERSION
            )
        case _:
            found = log.offset_for_timestamp(timestamp_ms)
    if found is None or found.offset >= end:
        return _NOTHING
    return Found(found.offset, found.timestamp_ms, found.leader_epoch)


def _epoch_at(partition: Partition, offset: int) -> int:
    """An empty log has no epochs yet: what comes next will have the leader's."""
    epoch = partition.log.epochs.epoch_at(offset)
    return partition.leader_epoch if epoch < 0 else epoch
