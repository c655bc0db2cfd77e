"""AssignReplicasToDirs (73): a broker tells the controller in which directory its replicas are, or that one is lost (KIP-858)."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, int64, uuid
from penstock.wire.schema import Message, Struct


class PartitionData(Struct):
    partition_index: int = int32()


class TopicData(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class DirectoryData(Struct):
    id: bytes = uuid()
    topics: list[TopicData] = array(TopicData)


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible_from=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    directories: list[DirectoryData] = array(DirectoryData)


class PartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TopicResponse(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DirectoryResponse(Struct):
    id: bytes = uuid()
    topics: list[TopicResponse] = array(TopicResponse)


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    directories: list[DirectoryResponse] = array(DirectoryResponse)
