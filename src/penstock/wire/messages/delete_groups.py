"""DeleteGroups (42): remove empty groups and their offsets."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, string
from penstock.wire.schema import Message, Struct


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible_from=2):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible_from=2):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
