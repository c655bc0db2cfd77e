"""SyncGroup (14): the leader's assignment reaches the members of a classic group."""

from __future__ import annotations

from penstock.wire.fields import array, binary, int16, int32, string
from penstock.wire.schema import Message, Struct


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = binary()


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible_from=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+")
    protocol_type: str | None = string("5+", nullable="5+", ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible_from=4):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", ignorable=True)
    assignment: bytes = binary()
