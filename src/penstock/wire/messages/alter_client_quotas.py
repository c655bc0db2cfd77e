"""AlterClientQuotas (49): set or remove quotas."""

from __future__ import annotations

from penstock.wire.fields import array, boolean, float64, int16, int32, string
from penstock.wire.schema import Message, Struct


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+", default="")


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible_from=1):
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class EntryDataResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default="")
    entity: list[EntityData] = array(EntityData)


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible_from=1):
    throttle_time_ms: int = int32()
    entries: list[EntryDataResponse] = array(EntryDataResponse)
