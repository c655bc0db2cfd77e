"""ListConfigResources (74): the resources that have settings."""

from __future__ import annotations

from penstock.wire.fields import array, int8, int16, int32, string
from penstock.wire.schema import Message, Struct


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible_from=0):
    resource_types: list[int] = array(int8, "1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible_from=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
