"""InitProducerId (22): a producer id and epoch, for idempotence and transactions."""

from __future__ import annotations

from penstock.wire.fields import boolean, int16, int32, int64, string
from penstock.wire.schema import Message


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible_from=2):
    transactional_id: str | None = string(nullable="0+", default="")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible_from=2):
    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
