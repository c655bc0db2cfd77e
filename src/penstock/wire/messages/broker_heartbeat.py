"""BrokerHeartbeat (63): a broker tells the controller that it is alive, and how far it has read."""

from __future__ import annotations

from penstock.wire.fields import array, boolean, int16, int32, int64, uuid
from penstock.wire.schema import Message


class BrokerHeartbeatRequest(Message, api_key=63, versions="0-2", flexible_from=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[bytes] = array(uuid, "1+", tag=0, ignorable=True)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "2+", nullable="2+", tag=1, ignorable=True)
    unreachable_leaders: list[int] = array(int32, "0+", tag=10_000, ignorable=True)  # not Kafka's


class BrokerHeartbeatResponse(Message, api_key=63, versions="0-2", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()
