"""The records of __transaction_state, byte for byte as Kafka's own coordinator writes and reads them.

Key and value begin with their version. What is not known here stops the shard that holds it: to skip a
record in silence would be to forget a transaction that must still be ended.
"""

from __future__ import annotations

from struct import Struct as Packing
from typing import Final

from penstock.model.errors import UnknownRecord as UnknownRecord
from penstock.wire.fields import array, int8, int16, int32, int64, string
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import AnyMessage, Message, Struct, decode_for

_VERSION: Final = Packing(">h")
_WRITTEN_KEY: Final = 0
_WRITTEN_VALUE: Final = 1


class TransactionLogKey(Message, versions="0"):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, versions="0-1", flexible_from=1):
    producer_id: int = int64()
    previous_producer_id: int = int64("1+", default=-1, tag=0, ignorable=True)
    next_producer_id: int = int64("1+", default=-1, tag=1, ignorable=True)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", default=0, tag=2, ignorable=True)


def encode_key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _VERSION.pack(_WRITTEN_KEY) + key.encode(_WRITTEN_KEY)


def encode_value(value: TransactionLogValue, version: int = _WRITTEN_VALUE) -> bytes:
    return _VERSION.pack(version) + value.encode(version)


def untagged(value: bytes) -> bytes:
    """The same without the fields that only transaction.version 1 and above can read."""
    return encode_value(decode_value(value), version=0)


def decode_key(key: bytes) -> str:
    return _decode(TransactionLogKey, key).transactional_id


def decode_value(value: bytes) -> TransactionLogValue:
    return _decode(TransactionLogValue, value)


def _decode(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    if len(data) < _VERSION.size:
        raise UnknownRecord(f"a {kind.__name__} of {len(data)} bytes")
    version: int = _VERSION.unpack_from(data)[0]
    if version not in kind.versions:
        raise UnknownRecord(
            f"a {kind.__name__} of version {version}; this version knows up to {kind.versions[-1]}"
        )
    try:
        message, _ = decode_for(kind, version)(memoryview(data), _VERSION.size)
    except MalformedMessage as error:
        raise UnknownRecord(f"a {kind.__name__} v{version} that cannot be read: {error}") from error
    return message
