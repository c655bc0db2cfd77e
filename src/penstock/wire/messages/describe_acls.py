"""DescribeAcls (29): the access rules that match a filter."""

from __future__ import annotations

from penstock.wire.fields import array, int8, int16, int32, string
from penstock.wire.schema import Message, Struct


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible_from=2):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+", default="")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string(nullable="0+", default="")
    host_filter: str | None = string(nullable="0+", default="")
    operation: int = int8()
    permission_type: int = int8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible_from=2):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default="")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
