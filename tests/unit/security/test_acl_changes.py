"""What CreateAcls, DeleteAcls and DescribeAcls decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import finish
from penstock.security import acl_changes
from penstock.security.acl_changes import create, delete, describe
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
        finish(delete(Rules(), [AclFilter()] * 10_001))
    rules = Rules([binding(name) for name in "abc"])
    with pytest.raises(InvalidAcl, match="more than 2 ACLs"):
        finish(delete(rules, [AclFilter()], max_changes=2))


def test_deleting_tells_each_filter_what_it_matched() -> None:
    rules = Rules([binding("b"), binding("a"), binding("a", "User:bob")])
    error = BrokerError("bad", ErrorCode.INVALID_REQUEST)
    wanted: list[AclFilter | BrokerError] = [
        AclFilter(resource_name="a"),
        error,
        AclFilter(principal="User:alice"),
        AclFilter(host="10.0.0.1"),
    ]
    deletions = finish(delete(rules, wanted))
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
    resources = finish(describe(rules, wanted))
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
    removed = finish(delete(rules, [wanted])).removed
    rest = rules.changed(removed=removed)
    assert finish(describe(rest, wanted)) == []
    assert len(rest) == len(rules) - len(removed)


def test_searches_are_limited_in_all_and_run_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "MAX_LOOKED_AT", 5000)
    rules = Rules([binding(f"t{number}") for number in range(2000)])
    steps = describe(rules, AclFilter())
    assert sum(1 for _ in steps) >= 12
    assert len(finish(delete(rules, [AclFilter(host="x")] * 2)).results) == 2
    with pytest.raises(InvalidAcl, match="more than 5000 ACLs together"):
        finish(delete(rules, [AclFilter(host="x")] * 3))
    by_name: list[AclFilter | BrokerError] = [AclFilter(resource_name=f"t{n}") for n in range(2000)]
    assert len(finish(delete(rules, by_name)).removed) == 2000
    by_principal: list[AclFilter | BrokerError] = [AclFilter(principal="User:bob")] * 5000
    assert finish(delete(rules, by_principal)).removed == []
