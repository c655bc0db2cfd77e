"""UnregisterBroker (64): a broker that will not come back is struck off."""

from __future__ import annotations

from penstock.wire.fields import int16, int32, string
from penstock.wire.schema import Message


class UnregisterBrokerRequest(Message, api_key=64, versions="0", flexible_from=0):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api_key=64, versions="0", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
