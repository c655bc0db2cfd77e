"""Heartbeat (12): a member of a classic group is alive."""

from __future__ import annotations

from penstock.wire.fields import int16, int32, string
from penstock.wire.schema import Message


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible_from=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+")


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible_from=4):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
