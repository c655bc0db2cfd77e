"""ACL bindings: one rule of Kafka's authorizer, its validation, its filter and its record.

The rules and error texts are those of Kafka's StandardAuthorizer and AclControlManager. One
addition: a host may be a network such as `10.0.0.0/8`. Host names are rejected.
"""

import json
from base64 import urlsafe_b64encode
from contextlib import suppress
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode
from penstock.security.resources import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
    parse_principal,
)

MAX_ACLS: Final = 100_000  # default of penstock.acls.max
MAX_CHANGES: Final = 10_000  # bindings that one request may create, or delete, as in Kafka
MAX_TEXT_BYTES: Final = 1024  # of a resource name or a principal
ACL_PREFIX: Final = "acl/"
RECORD_VERSION: Final = 1
KEY_BYTES: Final = 16

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class InvalidAcl(BrokerError):
    code = ErrorCode.INVALID_REQUEST


class AclBinding(NamedTuple):
    """One rule: who may, or must not, do what to which resources, and from where."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Selects bindings for DescribeAcls and DeleteAcls. None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        """Compare names. MATCH selects every binding that applies to the resource of this name."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.resource_name == binding.resource_name
        if binding.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(binding.resource_name)
        return binding.resource_name in (self.resource_name, WILDCARD)


# Validation --------------------------------------------------------------------------------------


def binding_from_wire(
    resource_type: int,
    pattern_type: int,
    resource_name: str,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """Return the binding of a CreateAcls request. Raise InvalidAcl with the field at fault."""
    binding = AclBinding(
        _resource_type(resource_type, allow_any=False),
        _concrete_pattern_type(pattern_type),
        resource_name,
        principal,
        normalized_host(host),
        _operation(operation, allow_any=False),
        _permission(permission, allow_any=False),
    )
    _check_resource_name(binding)
    _check_principal(principal)
    return binding


def filter_from_wire(
    resource_type: int,
    pattern_type: int,
    resource_name: str | None,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Return the filter of a DescribeAcls or DeleteAcls request. Raise InvalidAcl if unknown."""
    for name, text in (("resource name", resource_name), ("principal", principal), ("host", host)):
        if text is not None:
            _check_length(name, text)
    if host is not None:
        with suppress(InvalidAcl):  # a host that no binding can have matches none
            host = normalized_host(host)
    return AclFilter(
        _resource_type(resource_type, allow_any=True),
        _pattern_type(pattern_type),
        resource_name,
        principal,
        host,
        _operation(operation, allow_any=True),
        _permission(permission, allow_any=True),
    )


def normalized_host(host: str) -> str:
    """Return `*`, an address or a network in its shortest form. Raise InvalidAcl for others."""
    if host == WILDCARD:
        return host
    try:
        network = parse_network(host)
    except ValueError:
        raise InvalidAcl(
            f"Invalid host {host[:64]!r}: use *, an IP address or a network such as 10.0.0.0/8"
        ) from None
    return str(network) if "/" in host else str(network.network_address)


def parse_address(text: str) -> Address | None:
    """Return the address, None if it is none. An IPv4-mapped IPv6 address is the IPv4 address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_network(text: str) -> Network:
    """Return the network, of one address without a prefix length. Raise ValueError if invalid."""
    address = None if "/" in text else parse_address(text)
    network = ip_network(text if address is None else str(address))
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("write networks of IPv4-mapped addresses as IPv4 networks")
    return network


def parse_super_users(setting: str) -> frozenset[Principal]:
    """Return the principals of `super.users`: separated by semicolons, as in Kafka."""
    return frozenset(parse_principal(part.strip()) for part in setting.split(";") if part.strip())


def _resource_type(number: int, *, allow_any: bool) -> ResourceType:
    if number == ResourceType.UNKNOWN or number not in set(ResourceType):
        raise InvalidAcl(f"Invalid resourceType {number}")
    if number == ResourceType.ANY and not allow_any:
        raise InvalidAcl("Invalid resourceType ANY")
    return ResourceType(number)


def _pattern_type(number: int) -> PatternType:
    if number == PatternType.UNKNOWN or number not in set(PatternType):
        raise InvalidAcl(f"Invalid patternType {number}")
    return PatternType(number)


def _concrete_pattern_type(number: int) -> PatternType:
    pattern_type = _pattern_type(number)
    if pattern_type in (PatternType.ANY, PatternType.MATCH):
        raise InvalidAcl(f"Invalid patternType {pattern_type.name}")
    return pattern_type


def _operation(number: int, *, allow_any: bool) -> Operation:
    if number == Operation.UNKNOWN or number not in set(Operation):
        raise InvalidAcl(f"Invalid operation {number}")
    if number == Operation.ANY and not allow_any:
        raise InvalidAcl("Invalid operation ANY")
    return Operation(number)


def _permission(number: int, *, allow_any: bool) -> Permission:
    if number == Permission.UNKNOWN or number not in set(Permission):
        raise InvalidAcl(f"Invalid permissionType {number}")
    if number == Permission.ANY and not allow_any:
        raise InvalidAcl("Invalid permissionType ANY")
    return Permission(number)


def _check_resource_name(binding: AclBinding) -> None:
    _check_length("resource name", binding.resource_name)
    if not binding.resource_name:
        raise InvalidAcl("Resource name should not be empty")
    if binding.resource_type is ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        raise InvalidAcl(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")


def _check_principal(principal: str) -> None:
    _check_length("principal", principal)
    if ":" not in principal:
        raise InvalidAcl(
            f"Could not parse principal from `{principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )
    try:
        parse_principal(principal)
    except ValueError as error:
        raise InvalidAcl(str(error)) from None


def _check_length(field: str, text: str) -> None:
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > MAX_TEXT_BYTES:
        raise InvalidAcl(f"Invalid {field}: {size_bytes} bytes; the limit is {MAX_TEXT_BYTES}")


# The record in the metadata store ----------------------------------------------------------------


def acl_key(binding: AclBinding) -> str:
    """Return the store key: a digest of the binding, so that the same binding exists once."""
    digest = sha256(encode_acl(binding)).digest()[:KEY_BYTES]
    return ACL_PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


def encode_acl(binding: AclBinding) -> bytes:
    record = {
        "v": RECORD_VERSION,
        "type": binding.resource_type.name,
        "pattern": binding.pattern_type.name,
        "name": binding.resource_name,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.name,
        "permission": binding.permission.name,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_acl(data: bytes) -> AclBinding:
    """Return the binding of a record. Raise ValueError if it is damaged or of a newer version."""
    record: Any = json.loads(data)
    if not isinstance(record, dict) or record.get("v") != RECORD_VERSION:
        raise ValueError(f"ACL record has no version {RECORD_VERSION}")
    try:
        return binding_from_wire(
            ResourceType[record["type"]],
            PatternType[record["pattern"]],
            record["name"],
            record["principal"],
            record["host"],
            Operation[record["operation"]],
            Permission[record["permission"]],
        )
    except (KeyError, TypeError, AttributeError, BrokerError) as error:
        raise ValueError(f"ACL record is damaged: {error!r}") from None
