"""ShareAcknowledge (79): accept, release or reject acquired records (KIP-932)."""

from __future__ import annotations

from penstock.wire.fields import array, boolean, int8, int16, int32, int64, nested, string, uuid
from penstock.wire.schema import Message, Struct


class AcknowledgementBatch(Struct):
    first_offset: int = int64("1+")
    last_offset: int = int64("1+")
    acknowledge_types: list[int] = array(int8, "1+")


class AcknowledgePartition(Struct):
    partition_index: int = int32("1+")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "1+")


class AcknowledgeTopic(Struct):
    topic_id: bytes = uuid("1+")
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition, "1+")


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible_from=0):
    group_id: str | None = string("1+", nullable="1+")
    member_id: str | None = string("1+", nullable="1+")
    share_session_epoch: int = int32("1+")
    is_renew_ack: bool = boolean("2+", ignorable=True)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic, "1+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("1+")
    leader_epoch: int = int32("1+")


class PartitionData(Struct):
    partition_index: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = string("1+", nullable="1+")
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "1+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = uuid("1+")
    partitions: list[PartitionData] = array(PartitionData, "1+")


class NodeEndpoint(Struct):
    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = int32("1+")
    rack: str | None = string("1+", nullable="1+")


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible_from=0):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = string("1+", nullable="1+")
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, "1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+")
