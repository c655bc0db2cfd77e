"""ACL bindings: filters against a plain model, validation with Kafka's codes, and records."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ErrorCode
from penstock.security.acls import (
    AclBinding,
    AclFilter,
    InvalidAcl,
    acl_key,
    binding_from_wire,
    decode_acl,
    encode_acl,
    filter_from_wire,
    normalized_host,
    parse_address,
    parse_super_users,
)
from penstock.security.resources import (
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)

GOOD: dict[str, Any] = {
    "resource_type": 2,
    "pattern_type": 3,
    "resource_name": "orders",
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission": 3,
}
bindings = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["*", "a", "ab", "b"]),
    st.sampled_from(["User:alice", "User:*"]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.READ, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC]),
    st.sampled_from([p for p in PatternType if p]),
    st.sampled_from([None, "*", "a", "ab", "abc"]),
    st.sampled_from([None, "User:alice", "User:bob"]),
    st.sampled_from([None, "*", "10.0.0.2"]),
    st.sampled_from([Operation.ANY, Operation.READ, Operation.ALL]),
    st.sampled_from([Permission.ANY, Permission.DENY]),
)


@given(filters, bindings)
def test_filters_agree_with_the_plain_model(wanted: AclFilter, binding: AclBinding) -> None:
    """ResourcePatternFilter and AccessControlEntryFilter of Kafka's admin client."""
    same = (
        wanted.resource_type.name in ("ANY", binding.resource_type.name)
        and wanted.principal in (None, binding.principal)
        and wanted.host in (None, binding.host)
        and wanted.operation.name in ("ANY", binding.operation.name)
        and wanted.permission.name in ("ANY", binding.permission.name)
    )
    name, found = wanted.resource_name, binding.resource_name
    match wanted.pattern_type.name:
        case "ANY":
            names = name is None or name == found
        case "LITERAL" | "PREFIXED" as kind:
            names = kind == binding.pattern_type.name and (name is None or name == found)
        case _ if name is None:
            names = True
        case _ if binding.pattern_type is PatternType.LITERAL:
            names = found in (name, "*")
        case _:
            names = name.startswith(found)
    assert wanted.matches(binding) == (same and names)


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (PatternType.MATCH, "ab", ["*", "ab", "a-prefix", "ab-prefix"]),
        (PatternType.ANY, "ab", ["ab", "ab-prefix"]),
        (PatternType.LITERAL, "ab", ["ab"]),
        (PatternType.LITERAL, "*", ["*"]),
        (PatternType.PREFIXED, "ab", ["ab-prefix"]),
        (PatternType.MATCH, None, ["*", "ab", "b", "a-prefix", "ab-prefix"]),
        (PatternType.PREFIXED, None, ["a-prefix", "ab-prefix"]),
    ],
)
def test_filters_by_pattern(pattern_type: PatternType, name: str | None, found: list[str]) -> None:
    good = binding_from_wire(**GOOD)
    prefixed = good._replace(pattern_type=PatternType.PREFIXED)
    named = {text: good._replace(resource_name=text) for text in ("*", "ab", "b")}
    named |= {f"{text}-prefix": prefixed._replace(resource_name=text) for text in ("a", "ab")}
    wanted = AclFilter(pattern_type=pattern_type, resource_name=name)
    assert [text for text, binding in named.items() if wanted.matches(binding)] == found


def test_an_empty_filter_matches_everything() -> None:
    assert AclFilter().matches(binding_from_wire(**GOOD))


def test_a_good_binding() -> None:
    assert binding_from_wire(**GOOD) == AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "orders",
        "User:alice",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("resource_type", 0, "Invalid resourceType 0"),
        ("resource_type", 1, "Invalid resourceType ANY"),
        ("resource_type", 8, "Invalid resourceType 8"),
        ("resource_type", -1, "Invalid resourceType -1"),
        ("pattern_type", 0, "Invalid patternType 0"),
        ("pattern_type", 1, "Invalid patternType ANY"),
        ("pattern_type", 2, "Invalid patternType MATCH"),
        ("pattern_type", 5, "Invalid patternType 5"),
        ("operation", 0, "Invalid operation 0"),
        ("operation", 1, "Invalid operation ANY"),
        ("operation", 16, "Invalid operation 16"),
        ("permission", 0, "Invalid permissionType 0"),
        ("permission", 1, "Invalid permissionType ANY"),
        ("permission", 4, "Invalid permissionType 4"),
        ("resource_name", "", "Resource name should not be empty"),
        ("resource_name", "x" * 1025, "Invalid resource name: 1025 bytes"),
        ("principal", "alice", "Could not parse principal from `alice`"),
        ("principal", ":alice", "no form Type:name"),
        ("principal", "User:", "no form Type:name"),
        ("principal", "User:" + "x" * 1024, "Invalid principal: 1029 bytes"),
        ("host", "", "Invalid host"),
        ("host", "example.com", "Invalid host"),
        ("host", "10.0.0.0/33", "Invalid host"),
        ("host", "10.0.0.1/8", "Invalid host"),  # host bits: a typing error is likely
        ("host", "::ffff:10.0.0.0/104", "Invalid host"),
    ],
)
def test_bad_bindings_name_the_field(field: str, value: object, text: str) -> None:
    with pytest.raises(InvalidAcl) as caught:
        binding_from_wire(**{**GOOD, field: value})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert text in str(caught.value)


def test_the_cluster_has_one_name() -> None:
    good = {**GOOD, "resource_type": 4, "resource_name": "kafka-cluster"}
    assert binding_from_wire(**good).resource_type is ResourceType.CLUSTER
    with pytest.raises(InvalidAcl, match="only valid name for the CLUSTER resource"):
        binding_from_wire(**{**good, "resource_name": "other"})


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission"])
def test_filters_take_any_but_not_unknown(field: str) -> None:
    assert filter_from_wire(**{**GOOD, field: 1})
    with pytest.raises(InvalidAcl):
        filter_from_wire(**{**GOOD, field: 0})


def test_filters_leave_texts_open_but_limit_them() -> None:
    nothing = {**GOOD, "resource_name": None, "principal": None, "host": None}
    assert filter_from_wire(**nothing).matches(binding_from_wire(**GOOD))
    for field in ("resource_name", "principal", "host"):
        with pytest.raises(InvalidAcl, match="the limit is 1024"):
            filter_from_wire(**{**GOOD, field: "x" * 1025})


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("*", "*"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0::1", "::1"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:db8::/32"),
    ],
)
def test_hosts_have_one_form(host: str, normal: str) -> None:
    assert normalized_host(host) == normal
    assert normalized_host(normal) == normal


def test_a_filter_finds_a_host_in_any_of_its_forms() -> None:
    binding = binding_from_wire(**{**GOOD, "host": "0:0::1"})
    assert filter_from_wire(**{**GOOD, "host": "0::1"}).matches(binding)
    assert not filter_from_wire(**{**GOOD, "host": "example.com"}).matches(binding)


def test_addresses() -> None:
    assert parse_address("fe80::1%eth0") == parse_address("fe80::1")
    assert parse_address("::ffff:1.2.3.4") == parse_address("1.2.3.4")
    assert parse_address("") is None


def test_super_users() -> None:
    setting = "User:admin; User:CN=a,O=b:c ;"
    assert parse_super_users(setting) == {
        Principal("User", "admin"),
        Principal("User", "CN=a,O=b:c"),
    }
    with pytest.raises(ValueError, match="'admin' has no form"):
        parse_super_users("admin")


# Records -----------------------------------------------------------------------------------------


@given(bindings, bindings)
def test_records_come_back_and_keys_are_of_one_binding(one: AclBinding, two: AclBinding) -> None:
    assert decode_acl(encode_acl(one)) == one
    assert (acl_key(one) == acl_key(two)) == (one == two)
    assert len(acl_key(one)) == len("acl/") + 22


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 2),
        ("type", "ANY"),
        ("type", 2),
        ("operation", "FLY"),
        ("host", "example.com"),
        ("host", None),
        ("principal", "alice"),
        ("name", 7),
    ],
)
def test_damaged_records_are_refused(field: str, value: object) -> None:
    record = json.loads(encode_acl(binding_from_wire(**GOOD)))
    with pytest.raises(ValueError, match="ACL record"):
        decode_acl(json.dumps({**record, field: value}).encode())
    del record[field]
    with pytest.raises(ValueError, match="ACL record"):
        decode_acl(json.dumps(record).encode())
