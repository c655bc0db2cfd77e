"""What CreateAcls, DeleteAcls and DescribeAcls decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BrokerError, ErrorCode
from penstock.security.acl_changes import create, delete, describe, matching
from penstock.security.acls import AclBinding, AclFilter, InvalidAcl
from penstock.security.resources import Operation, PatternType, Permission, ResourceType
from penstock.security.rules import Rules
from tests.unit.security.test_acls import bindings, filters


def binding(name: str, principal: str = "User:alice") -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        name,
        principal,
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


def test_creating_is_idempotent_and_parts_are_independent() -> None:
    error = InvalidAcl("Invalid operation ANY")
    creations = create(
        Rules([binding("a")]), [binding("a"), error, binding("b"), binding("b"), binding("c")]
    )
    assert creations.errors == [None, error, None, None, None]
    assert creations.added == [binding("b"), binding("c")]


def test_the_number_of_acls_is_limited() -> None:
    creations = create(
        Rules([binding("a")]), [binding("b"), binding("c"), binding("a")], max_acls=2
    )
    codes = [error and error.code for error in creations.errors]
    assert codes == [None, ErrorCode.POLICY_VIOLATION, None]
    assert creations.added == [binding("b")]
    twice = create(Rules(), [binding("b"), binding("b")], max_acls=1)
    assert twice.errors == [None, None]


def test_large_requests_are_refused() -> None:
    with pytest.raises(InvalidAcl, match="10001 changes in one request"):
        create(Rules(), [binding("a")] * 10_001)
    with pytest.raises(InvalidAcl, match="10001 changes in one request"):
        delete(Rules(), [AclFilter()] * 10_001)
    rules = Rules([binding(name) for name in "abc"])
    with pytest.raises(InvalidAcl, match="more than 2 ACLs"):
        delete(rules, [AclFilter()], max_changes=2)


def test_deleting_tells_each_filter_what_it_matched() -> None:
    rules = Rules([binding("b"), binding("a"), binding("a", "User:bob")])
    error = BrokerError("bad", ErrorCode.INVALID_REQUEST)
    deletions = delete(
        rules,
        [
            AclFilter(resource_name="a"),
            error,
            AclFilter(principal="User:alice"),
            AclFilter(host="10.0.0.1"),
        ],
    )
    assert deletions.results == [
        [binding("a"), binding("a", "User:bob")],
        error,
        [binding("a"), binding("b")],
        [],
    ]
    assert sorted(deletions.removed) == sorted(rules)


@given(st.lists(bindings, max_size=12), filters)
def test_descriptions_are_sorted_groups_of_what_matches(
    found: list[AclBinding], wanted: AclFilter
) -> None:
    rules = Rules(found)
    assert len(rules) == len(set(found))
    resources = describe(rules, wanted)
    assert [binding for resource in resources for binding in resource.bindings] == sorted(
        binding for binding in set(found) if wanted.matches(binding)
    )
    assert len({resource[:3] for resource in resources}) == len(resources)
    for resource in resources:
        assert all(binding[:3] == resource[:3] for binding in resource.bindings)


@given(st.lists(bindings, max_size=12), filters)
def test_deleting_what_a_filter_matches_leaves_nothing_to_match(
    found: list[AclBinding], wanted: AclFilter
) -> None:
    rules = Rules(found)
    rest = rules.changed(removed=delete(rules, [wanted]).removed)
    assert matching(rest, wanted) == []
    assert len(rest) == len(rules) - len(matching(rules, wanted))
