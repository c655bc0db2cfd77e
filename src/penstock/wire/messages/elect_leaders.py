"""ElectLeaders (43): elect preferred or unclean leaders."""

from __future__ import annotations

from penstock.wire.fields import UNSET, array, int8, int16, int32, string
from penstock.wire.schema import Message, Struct


class TopicPartitions(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible_from=2):
    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", default=UNSET
    )
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default="")


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible_from=2):
    throttle_time_ms: int = int32()
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
