"""CreatePartitions (37): give topics more partitions."""

from __future__ import annotations

from penstock.wire.fields import UNSET, array, boolean, int16, int32, string
from penstock.wire.schema import Message, Struct


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Struct):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+", default=UNSET
    )


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible_from=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible_from=2):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
