"""ListGroups (16): the groups that a broker coordinates."""

from __future__ import annotations

from penstock.wire.fields import array, int16, int32, string
from penstock.wire.schema import Message, Struct


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible_from=3):
    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible_from=3):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
