"""Decisions of the compiled rules, against a plain reading of Kafka's definition."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security import grants as grants_module
from penstock.security.acls import AclBinding
from penstock.security.grants import CurrentRules, Grants, GrantsCache
from penstock.security.resources import (
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)
from penstock.security.rules import Requester, Rules

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
ADMIN_ROLE = Principal("Role", "admin")
HOSTS = ["10.0.0.1", "10.0.0.2", "::1"]
OPERATIONS = [operation for operation in Operation if operation > Operation.ALL]

bindings = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["*", "a", "ab", "abc", "b"]),
    st.sampled_from(["User:alice", "User:bob", "User:*", "Role:admin", "Role:*"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.0/31", "::1"]),
    st.sampled_from([*OPERATIONS, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
requesters = st.builds(
    Requester,
    st.sampled_from([ALICE, BOB, ADMIN_ROLE]),
    st.sampled_from([*HOSTS, "::ffff:10.0.0.1", "?"]),
    st.sampled_from([(), (ADMIN_ROLE,)]),
)
resources = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
names = st.sampled_from(["*", "a", "ab", "abc", "abcd", "b", "c", ""])


def plain_decision(
    found: list[AclBinding],
    requester: Requester,
    operation: Operation,
    resource: ResourceType,
    name: str,
    *,
    allow_everyone: bool,
) -> bool:
    """Kafka's StandardAuthorizer, as its documentation says it."""
    on_resource = [
        b
        for b in found
        if b.resource_type == resource
        and (
            b.resource_name in (name, "*")
            if b.pattern_type is PatternType.LITERAL
            else name.startswith(b.resource_name)
        )
    ]
    if not on_resource:
        return allow_everyone
    host = requester.host.removeprefix("::ffff:")

    def matches(b: AclBinding) -> bool:
        principals = (requester.principal, *requester.others)
        return (
            (b.principal == "User:*" or b.principal in map(str, principals))
            and host_matches(b)
            and (b.operation in (operation, Operation.ALL) or implies(b))
        )

    def host_matches(b: AclBinding) -> bool:
        if b.host == "*":
            return True
        if host == "?":  # not known: closed
            return b.permission is Permission.DENY
        return ip_address(host) in ip_network(b.host)

    def implies(b: AclBinding) -> bool:
        if b.permission is Permission.DENY:
            return False
        if operation is Operation.DESCRIBE:
            return b.operation.name in ("READ", "WRITE", "DELETE", "ALTER")
        return operation is Operation.DESCRIBE_CONFIGS and b.operation is Operation.ALTER_CONFIGS

    matching = [b.permission for b in on_resource if matches(b)]
    return Permission.DENY not in matching and Permission.ALLOW in matching


@settings(max_examples=500)
@given(
    found=st.lists(bindings, max_size=12),
    requester=requesters,
    operation=st.sampled_from(OPERATIONS),
    resource=resources,
    name=names,
    allow_everyone=st.booleans(),
)
def test_decisions_agree_with_the_plain_model(
    found: list[AclBinding],
    requester: Requester,
    operation: Operation,
    resource: ResourceType,
    name: str,
    allow_everyone: bool,
) -> None:
    rules = Rules(found, allow_everyone=allow_everyone)
    expected = plain_decision(
        found, requester, operation, resource, name, allow_everyone=allow_everyone
    )
    assert rules.decide(requester, operation, resource, name).is_allowed == expected


@given(
    before=st.lists(bindings, max_size=8),
    removed=st.lists(bindings, max_size=8),
    added=st.lists(bindings, max_size=8),
    requester=requesters,
)
def test_changed_rules_equal_rules_that_are_compiled_anew(
    before: list[AclBinding],
    removed: list[AclBinding],
    added: list[AclBinding],
    requester: Requester,
) -> None:
    removed = [*removed, *before[::2]]
    changed = Rules(before).changed(removed=removed, added=added)
    anew = Rules((set(before) - set(removed)) | set(added))
    assert sorted(changed) == sorted(anew) == sorted(set(anew))
    for name in Rules.__slots__:
        assert _comparable(changed, name) == _comparable(anew, name)
    for resource in (ResourceType.TOPIC, ResourceType.GROUP):
        for name in ("a", "ab", "abcd", "c"):
            for operation in OPERATIONS:
                assert changed.decide(requester, operation, resource, name) == anew.decide(
                    requester, operation, resource, name
                )


def _comparable(rules: Rules, name: str) -> Any:
    """Return a field of rules. Counts and lengths of what is gone may stay as zeros."""
    value = getattr(rules, name)
    return {key: kept for key, kept in value.items() if kept} if isinstance(value, dict) else value


def test_changes_leave_the_old_rules_alone() -> None:
    allow = binding("User:alice", Operation.READ)
    before = Rules([allow])
    after = before.changed(removed=[allow], added=[binding("User:bob", Operation.READ)])
    assert before.decide(Requester(ALICE, "10.0.0.1"), *READ_A).is_allowed
    assert not after.decide(Requester(ALICE, "10.0.0.1"), *READ_A).is_allowed
    assert after.decide(Requester(BOB, "10.0.0.1"), *READ_A).is_allowed


@settings(max_examples=300)
@given(
    found=st.lists(bindings, max_size=8),
    requester=requesters,
    operation=st.sampled_from(OPERATIONS),
    resource=resources,
    allow_everyone=st.booleans(),
)
def test_any_and_all_agree_with_decisions_about_many_names(
    found: list[AclBinding],
    requester: Requester,
    operation: Operation,
    resource: ResourceType,
    allow_everyone: bool,
) -> None:
    rules = Rules(found, allow_everyone=allow_everyone)
    # `a~`, `ab~` and so on are names that no literal binding has
    many = [name + end for name in ("*", "a", "ab", "abc", "b", "c") for end in ("", "~")]
    verdicts = [rules.decide(requester, operation, resource, name).is_allowed for name in many]
    assert rules.allows_any(requester, operation, resource) == any(verdicts)
    if rules.allows_all(requester, operation, resource):
        assert all(verdicts)


def binding(
    principal: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    name: str = "a",
    host: str = "*",
) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, PatternType.LITERAL, name, principal, host, operation, permission
    )


READ_A = (Operation.READ, ResourceType.TOPIC, "a")


def test_deny_wins_over_every_kind_of_allow() -> None:
    rules = Rules(
        [
            binding("User:*", Operation.ALL, name="*"),
            binding("Role:admin", Operation.ALL),
            binding("User:alice", Operation.READ, Permission.DENY),
        ]
    )
    decision = rules.decide(Requester(ALICE, "10.0.0.1", (ADMIN_ROLE,)), *READ_A)
    assert not decision.is_allowed
    assert decision.binding == binding("User:alice", Operation.READ, Permission.DENY)


def test_deny_does_not_imply_describe() -> None:
    rules = Rules(
        [
            binding("User:alice", Operation.READ, Permission.DENY),
            binding("User:alice", Operation.WRITE),
        ]
    )
    requester = Requester(ALICE, "10.0.0.1")
    assert rules.decide(requester, Operation.DESCRIBE, ResourceType.TOPIC, "a").is_allowed


def test_super_users_and_their_roles_are_allowed_everything() -> None:
    everyone_denied = [binding("User:*", Operation.ALL, Permission.DENY, name="*")]
    rules = Rules(everyone_denied, frozenset({ALICE, ADMIN_ROLE}))
    assert rules.decide(Requester(ALICE, "x"), *READ_A).is_allowed
    assert rules.decide(Requester(BOB, "x", (ADMIN_ROLE,)), *READ_A).is_allowed
    assert not rules.decide(Requester(BOB, "x"), *READ_A).is_allowed
    assert rules.allows_all(Requester(ALICE, "x"), Operation.READ, ResourceType.TOPIC)
    assert rules.allows_any(Requester(ALICE, "x"), Operation.READ, ResourceType.TOPIC)


def test_a_denied_wildcard_leaves_no_name_and_any_deny_leaves_not_all() -> None:
    requester = Requester(ALICE, "10.0.0.1")
    allow_a = binding("User:alice", Operation.WRITE)
    allow_all = binding("User:alice", Operation.WRITE, name="*")
    deny_a = binding("User:alice", Operation.WRITE, Permission.DENY)
    deny_all = binding("User:alice", Operation.WRITE, Permission.DENY, name="*")
    expected = {  # some name, every name
        (allow_a,): (True, False),
        (allow_all,): (True, True),
        (allow_a, deny_a): (False, False),
        (allow_all, deny_a): (True, False),
        (allow_a, deny_all): (False, False),
        (allow_all, deny_all): (False, False),
    }
    for found, (some, every) in expected.items():
        rules = Rules(found)
        assert rules.allows_any(requester, Operation.WRITE, ResourceType.TOPIC) == some
        assert rules.allows_all(requester, Operation.WRITE, ResourceType.TOPIC) == every
        assert not rules.allows_any(requester, Operation.WRITE, ResourceType.GROUP)


def test_a_binding_for_one_user_closes_a_resource_that_was_open_to_everyone() -> None:
    rules = Rules([binding("User:alice", Operation.WRITE)], allow_everyone=True)
    assert not rules.decide(Requester(BOB, "10.0.0.1"), *READ_A).is_allowed
    assert rules.decide(
        Requester(BOB, "10.0.0.1"), Operation.READ, ResourceType.TOPIC, "b"
    ).is_allowed


@pytest.mark.parametrize("host", ["::ffff:10.1.2.3", "10.1.2.3", "10.1.255.255"])
def test_networks_match_mapped_addresses(host: str) -> None:
    deny = binding("User:alice", Operation.READ, Permission.DENY, host="10.1.0.0/16")
    rules = Rules([binding("User:alice", Operation.READ), deny])
    assert not rules.decide(Requester(ALICE, host), *READ_A).is_allowed
    assert rules.decide(Requester(ALICE, "10.2.0.1"), *READ_A).is_allowed


def test_grants_follow_a_swap_of_the_rules_at_once() -> None:
    current = CurrentRules(Rules([binding("User:alice", Operation.READ)]))
    all_of_bob = binding("User:bob", Operation.ALL, name="*")
    cache = GrantsCache(current)
    grants = cache.grants(Requester(ALICE, "10.0.0.1"))
    assert grants is cache.grants(Requester(ALICE, "10.0.0.1"))
    assert grants.allows(*READ_A)
    assert grants.allows_any(Operation.READ, ResourceType.TOPIC)
    assert not grants.allows_all(Operation.READ, ResourceType.TOPIC)
    admin = cache.grants(Requester(BOB, "10.0.0.1"))
    current.swap(current.rules.changed(removed=list(current.rules), added=[all_of_bob]))
    assert admin.allows_all(Operation.READ, ResourceType.TOPIC)
    assert not grants.allows(*READ_A)
    assert not grants.allows_any(Operation.READ, ResourceType.TOPIC)


def test_caches_of_verdicts_and_grants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants_module, "MAX_VERDICTS", 10)
    monkeypatch.setattr(grants_module, "MAX_GRANTS", 3)
    current = CurrentRules(Rules(allow_everyone=True))
    grants = Grants(current, Requester(ALICE, "10.0.0.1"))
    assert all(grants.allows(Operation.READ, ResourceType.TOPIC, f"t{n}") for n in range(25))
    assert len(grants._verdicts) <= 10
    cache = GrantsCache(current)
    first = cache.grants(Requester(ALICE, "10.0.0.0"))
    for number in range(5):
        cache.grants(Requester(ALICE, f"10.0.0.{number + 1}"))
    assert len(cache._grants) == 3
    assert cache.grants(Requester(ALICE, "10.0.0.0")) is not first
