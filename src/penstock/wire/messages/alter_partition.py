"""AlterPartition (56): a leader proposes its in-sync replicas to the controller."""

from __future__ import annotations

from penstock.wire.fields import array, int8, int16, int32, int64, uuid
from penstock.wire.schema import Message, Struct


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class PartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, "2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicData(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible_from=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[TopicData] = array(TopicData)


class PartitionDataResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicDataResponse(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionDataResponse] = array(PartitionDataResponse)


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicDataResponse] = array(TopicDataResponse)
