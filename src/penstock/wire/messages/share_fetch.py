"""ShareFetch (78): acquire records for a share group, and acknowledge earlier ones (KIP-932)."""

from __future__ import annotations

from penstock.wire.fields import (
    Records,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nested,
    record_batches,
    string,
    uuid,
)
from penstock.wire.schema import Message, Struct


class AcknowledgementBatch(Struct):
    first_offset: int = int64("1+")
    last_offset: int = int64("1+")
    acknowledge_types: list[int] = array(int8, "1+")


class FetchPartition(Struct):
    partition_index: int = int32("1+")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "1+")


class FetchTopic(Struct):
    topic_id: bytes = uuid("1+")
    partitions: list[FetchPartition] = array(FetchPartition, "1+")


class ForgottenTopic(Struct):
    topic_id: bytes = uuid("1+")
    partitions: list[int] = array(int32, "1+")


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible_from=0):
    group_id: str | None = string("1+", nullable="1+")
    member_id: str | None = string("1+", nullable="1+")
    share_session_epoch: int = int32("1+")
    max_wait_ms: int = int32("1+")
    min_bytes: int = int32("1+")
    max_bytes: int = int32("1+", default=0x7FFFFFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)
    is_renew_ack: bool = boolean("2+", ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic, "1+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "1+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("1+")
    leader_epoch: int = int32("1+")


class AcquiredRecords(Struct):
    first_offset: int = int64("1+")
    last_offset: int = int64("1+")
    delivery_count: int = int16("1+")


class PartitionData(Struct):
    partition_index: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = string("1+", nullable="1+")
    acknowledge_error_code: int = int16("1+")
    acknowledge_error_message: str | None = string("1+", nullable="1+")
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "1+")
    records: Records = record_batches("1+")
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords, "1+")


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = uuid("1+")
    partitions: list[PartitionData] = array(PartitionData, "1+")


class NodeEndpoint(Struct):
    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = int32("1+")
    rack: str | None = string("1+", nullable="1+")


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible_from=0):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = string("1+", nullable="1+")
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse, "1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+")
