"""AddOffsetsToTxn (25): a group's offsets join a transaction."""

from __future__ import annotations

from penstock.wire.fields import int16, int32, int64, string
from penstock.wire.schema import Message


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible_from=3):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible_from=3):
    throttle_time_ms: int = int32()
    error_code: int = int16()
