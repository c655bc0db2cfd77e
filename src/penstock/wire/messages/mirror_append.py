"""MirrorAppend (10000): Penstock's own. Batches of another cluster's log, at their own offsets; without records, how far it is."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, int64, record_batches, string, uuid
from penstock.wire.schema import Message, Struct


class MirrorPartition(Struct):
    index: int = int32()
    continues_at: int = int64()  # of the source nothing is missing from there to the last batch
    records: memoryview | None = record_batches(nullable="0+")  # whole batches, in order


class MirrorTopic(Struct):
    name: str = string()
    topic_id: bytes = uuid()  # zeros: whichever has that name
    partitions: list[MirrorPartition] = array(MirrorPartition)


class MirrorAppendRequest(Message, api_key=10000, versions="0", flexible_from=0):
    timeout_ms: int = int32()
    topics: list[MirrorTopic] = array(MirrorTopic)


class MirrorPartitionResult(Struct):
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    log_start_offset: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)


class MirrorTopicResult(Struct):
    name: str = string()
    topic_id: bytes = uuid()
    mirror_source: str | None = string(nullable="0+")  # null: it is no mirror
    promotion: int = int64()  # while it is being made a topic of its own: the number of that
    partitions: list[MirrorPartitionResult] = array(MirrorPartitionResult)


class MirrorAppendResponse(Message, api_key=10000, versions="0", flexible_from=0):
    throttle_time_ms: int = int32()
    topics: list[MirrorTopicResult] = array(MirrorTopicResult)
