"""ListTransactions (66): the transactions that a broker coordinates."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, int64, string
from penstock.wire.schema import Message, Struct


class ListTransactionsRequest(Message, api_key=66, versions="0-2", flexible_from=0):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+")


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
