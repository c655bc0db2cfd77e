"""DeleteTopics (20): remove topics, by name or by id."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, string, uuid
from penstock.wire.schema import Message, Struct


class DeleteTopicState(Struct):
    name: str | None = string("6+", nullable="6+")
    topic_id: bytes = uuid("6+")


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible_from=4):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+", default="")
    topic_id: bytes = uuid("6+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string("5+", nullable="5+", ignorable=True)


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible_from=4):
    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
