"""GetReplicaLogInfo (93): the controller asks a broker how far its logs go (KIP-966)."""

from __future__ import annotations

from penstock.wire.fields import array, boolean, int16, int32, int64, string, uuid
from penstock.wire.schema import Message, Struct


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class GetReplicaLogInfoRequest(Message, api_key=93, versions="0", flexible_from=0):
    broker_id: int = int32()
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class PartitionLogInfo(Struct):
    partition: int = int32()
    last_written_leader_epoch: int = int32()
    current_leader_epoch: int = int32()
    log_end_offset: int = int64()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default="")


class TopicPartitionLogInfo(Struct):
    topic_id: bytes = uuid()
    partition_log_info: list[PartitionLogInfo] = array(PartitionLogInfo)


class GetReplicaLogInfoResponse(Message, api_key=93, versions="0", flexible_from=0):
    throttle_time_ms: int = int32()
    broker_epoch: int = int64()
    has_more_data: bool = boolean()
    topic_partition_log_info_list: list[TopicPartitionLogInfo] = array(TopicPartitionLogInfo)
