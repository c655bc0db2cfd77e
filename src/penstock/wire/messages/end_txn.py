"""EndTxn (26): commit or abort a transaction."""

from __future__ import annotations

from penstock.wire.fields import boolean, int16, int32, int64, string
from penstock.wire.schema import Message


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible_from=3):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible_from=3):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
