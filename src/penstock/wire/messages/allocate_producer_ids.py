"""AllocateProducerIds (67): a block of producer ids for one broker."""

from __future__ import annotations

from penstock.wire.fields import int16, int32, int64
from penstock.wire.schema import Message


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible_from=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
