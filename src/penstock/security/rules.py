"""All ACL bindings, compiled for decisions. A snapshot is immutable: a change makes a new one.

A decision looks at the bindings of one resource only: those of its literal name, of the wildcard,
and of each prefix. Within these it looks at the principals of the request only. So its cost does
not depend on the number of bindings.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final, NamedTuple

from penstock.security.acls import AclBinding, AclFilter, Address, parse_address, parse_network
from penstock.security.resources import (
    IMPLIED_BY,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)


class Requester(NamedTuple):
    """Who sends a request, from where. Roles and groups are further principals."""

    principal: Principal
    host: str
    others: tuple[Principal, ...] = ()


class Decision(NamedTuple):
    """A verdict and the binding that made it; None: a default or a super user."""

    is_allowed: bool
    binding: AclBinding | None = None
    reason: str = ""


class _Rule(NamedTuple):
    binding: AclBinding
    network: IPv4Network | IPv6Network | None  # None: every host
    operations: frozenset[Operation] | None  # None: ALL

    def applies(self, address: Address | None, operation: Operation) -> bool:
        if self.operations is not None and operation not in self.operations:
            return False
        if self.network is None:
            return True
        if address is None:  # unknown: what denies any address denies this one
            return self.binding.permission is Permission.DENY
        return address in self.network


_Resource = tuple[ResourceType, PatternType, str]
_Pattern = tuple[PatternType, str]
_ByPrincipal = Mapping[str, tuple[_Rule, ...]]  # the bindings of one resource pattern

_EVERYBODY: Final = f"User:{WILDCARD}"
_NOTHING_FOUND: Final = Decision(False, reason="no binding allows it")
_SUPER_USER: Final = Decision(True, reason="super user")
_NO_BINDING: Final = Decision(True, reason="allow.everyone.if.no.acl.found")
_UNBOUND: Final = Decision(False, reason="the resource has no bindings")


class Rules:
    """Decides what a requester may do. Kafka's rules: any DENY wins, then any ALLOW."""

    __slots__ = (
        "_allow_everyone",
        "_by_resource",
        "_count",
        "_lengths",
        "_patterns_of",
        "_prefix_counts",
        "_resource_counts",
        "_super_users",
    )

    def __init__(
        self,
        bindings: Iterable[AclBinding] = (),
        super_users: frozenset[Principal] = frozenset(),
        *,
        allow_everyone: bool = False,
    ) -> None:
        self._super_users = super_users
        self._allow_everyone = allow_everyone
        self._count = 0
        self._by_resource: dict[_Resource, _ByPrincipal] = {}
        self._patterns_of: dict[tuple[ResourceType, str], frozenset[_Pattern]] = {}  # by principal
        self._prefix_counts: Counter[tuple[ResourceType, int]] = Counter()  # by length
        self._resource_counts: Counter[ResourceType] = Counter()
        self._lengths: dict[ResourceType, tuple[int, ...]] = {}  # of prefixes, ascending
        self._apply(frozenset(), frozenset(bindings))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        """Yield every binding once."""
        for by_principal in self._by_resource.values():
            for rules in by_principal.values():
                yield from (rule.binding for rule in rules)

    def __contains__(self, binding: AclBinding) -> bool:
        rules = self._by_resource.get(binding[:3], {}).get(binding.principal, ())
        return any(rule.binding == binding for rule in rules)

    def candidates(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """Yield the bindings that a filter may match: few, if it has a name or a principal."""
        types = [wanted.resource_type]
        if wanted.resource_type is ResourceType.ANY:
            types = [found for found in ResourceType if found > ResourceType.ANY]
        if wanted.resource_name is not None:
            for resource in types:
                for by_principal in self._applying(resource, wanted.resource_name):
                    for rules in by_principal.values():
                        yield from (rule.binding for rule in rules)
        elif wanted.principal is not None:
            for resource in types:
                for pattern in self._patterns_of.get((resource, wanted.principal), ()):
                    rules = self._by_resource[resource, *pattern][wanted.principal]
                    yield from (rule.binding for rule in rules)
        else:
            yield from self

    def changed(
        self, *, removed: Iterable[AclBinding] = (), added: Iterable[AclBinding] = ()
    ) -> "Rules":
        """Return new rules. The cost is a copy of one dict, plus the resources that change."""
        rules = Rules((), self._super_users, allow_everyone=self._allow_everyone)
        rules._count = self._count
        rules._by_resource = dict(self._by_resource)
        rules._patterns_of = dict(self._patterns_of)
        rules._prefix_counts = Counter(self._prefix_counts)
        rules._resource_counts = Counter(self._resource_counts)
        rules._lengths = dict(self._lengths)
        new = frozenset(added)  # a binding that is both removed and added stays
        rules._apply(
            frozenset(binding for binding in removed if binding in self and binding not in new),
            frozenset(binding for binding in new if binding not in self),
        )
        return rules

    def decide(
        self, requester: Requester, operation: Operation, resource: ResourceType, name: str
    ) -> Decision:
        if self._is_super_user(requester):
            return _SUPER_USER
        address = parse_address(requester.host)
        names = matching_principals(requester)
        allowing: AclBinding | None = None
        has_bindings = False
        for by_principal in self._applying(resource, name):
            has_bindings = True
            for rule in _rules_of(by_principal, names):
                if rule.applies(address, operation):
                    if rule.binding.permission is Permission.DENY:
                        return Decision(False, rule.binding, "a binding denies it")
                    allowing = allowing or rule.binding
        if allowing is not None:
            return Decision(True, allowing, "a binding allows it")
        if has_bindings:
            return _NOTHING_FOUND
        return _NO_BINDING if self._allow_everyone else _UNBOUND

    def allows_any(
        self, requester: Requester, operation: Operation, resource: ResourceType
    ) -> bool:
        """Whether there is a name of this type for which `decide` allows the operation (KIP-679)."""
        if self._is_super_user(requester):
            return True
        denied, allowed = self._patterns(requester, operation, resource)
        wildcard = (PatternType.LITERAL, WILDCARD)
        if wildcard in denied:
            return False
        if self._allow_everyone and (resource, *wildcard) not in self._by_resource:
            return True
        prefixes = {name for pattern_type, name in denied if pattern_type is PatternType.PREFIXED}
        return any(
            pattern == wildcard or not _is_denied(pattern, denied, prefixes) for pattern in allowed
        )

    def allows_all(
        self, requester: Requester, operation: Operation, resource: ResourceType
    ) -> bool:
        """Whether `decide` allows the operation for every name. False if that is not certain."""
        if self._is_super_user(requester):
            return True
        denied, allowed = self._patterns(requester, operation, resource)
        if not denied and (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        return self._allow_everyone and not self._resource_counts[resource]

    def _is_super_user(self, requester: Requester) -> bool:
        return requester.principal in self._super_users or not self._super_users.isdisjoint(
            requester.others
        )

    def _applying(self, resource: ResourceType, name: str) -> Iterator[_ByPrincipal]:
        """Yield the bindings of each pattern that the resource matches."""
        find = self._by_resource.get
        if found := find((resource, PatternType.LITERAL, name)):
            yield found
        if name != WILDCARD and (found := find((resource, PatternType.LITERAL, WILDCARD))):
            yield found
        for length in self._lengths.get(resource, ()):
            if length > len(name):
                break
            if found := find((resource, PatternType.PREFIXED, name[:length])):
                yield found

    def _patterns(
        self, requester: Requester, operation: Operation, resource: ResourceType
    ) -> tuple[set[_Pattern], set[_Pattern]]:
        """Return the patterns that deny the operation, and those that allow it."""
        address = parse_address(requester.host)
        denied: set[_Pattern] = set()
        allowed: set[_Pattern] = set()
        for principal in matching_principals(requester):
            for pattern in self._patterns_of.get((resource, principal), ()):
                for rule in self._by_resource[resource, *pattern][principal]:
                    if rule.applies(address, operation):
                        is_deny = rule.binding.permission is Permission.DENY
                        (denied if is_deny else allowed).add(pattern)
        return denied, allowed

    def _apply(self, removed: frozenset[AclBinding], added: frozenset[AclBinding]) -> None:
        changes: dict[_Resource, tuple[list[AclBinding], list[AclBinding]]] = {}
        for kind, bindings in enumerate((removed, added)):
            for binding in bindings:
                changes.setdefault(binding[:3], ([], []))[kind].append(binding)
        edits: dict[tuple[ResourceType, str], tuple[set[_Pattern], set[_Pattern]]] = {}
        for resource, (gone, new) in changes.items():
            before = self._by_resource.get(resource, {})
            after = _compiled(before, gone, new)
            self._set_resource(resource, after)
            for principal in before.keys() ^ after.keys():
                lost_and_found = edits.setdefault((resource[0], principal), (set(), set()))
                lost_and_found[principal in after].add(resource[1:])
        for key, (lost, found) in edits.items():
            patterns = (self._patterns_of.get(key, frozenset()) - lost) | found
            if patterns:
                self._patterns_of[key] = patterns
            else:
                del self._patterns_of[key]
        self._count += len(added) - len(removed)

    def _set_resource(self, resource: _Resource, by_principal: _ByPrincipal) -> None:
        resource_type, pattern_type, name = resource
        was_there = resource in self._by_resource
        if by_principal:
            self._by_resource[resource] = by_principal
        else:
            self._by_resource.pop(resource, None)
        change = bool(by_principal) - was_there
        self._resource_counts[resource_type] += change
        if pattern_type is PatternType.PREFIXED and change:
            count = self._prefix_counts[resource_type, len(name)] = (
                self._prefix_counts[resource_type, len(name)] + change
            )
            lengths = set(self._lengths.get(resource_type, ()))
            (lengths.add if count else lengths.discard)(len(name))
            self._lengths[resource_type] = tuple(sorted(lengths))


def matching_principals(requester: Requester) -> tuple[str, ...]:
    """Return the principals of bindings that apply: the requester's own, and `User:*`."""
    principals = (requester.principal, *requester.others)
    names = dict.fromkeys(str(principal) for principal in principals)
    names[_EVERYBODY] = None
    return tuple(names)


def _rules_of(by_principal: _ByPrincipal, names: tuple[str, ...]) -> Iterator[_Rule]:
    for name in names:
        yield from by_principal.get(name, ())


def _compiled(
    before: _ByPrincipal, removed: Iterable[AclBinding], added: Iterable[AclBinding]
) -> _ByPrincipal:
    """Return the bindings of one resource, in an order that does not depend on their history."""
    rules = {name: {rule.binding: rule for rule in found} for name, found in before.items()}
    for binding in removed:
        del rules[binding.principal][binding]
    for binding in added:
        rules.setdefault(binding.principal, {})[binding] = _rule(binding)
    return {
        name: tuple(found[binding] for binding in sorted(found))
        for name, found in rules.items()
        if found
    }


def _rule(binding: AclBinding) -> _Rule:
    network = None if binding.host == WILDCARD else parse_network(binding.host)
    return _Rule(binding, network, _operations(binding.operation, binding.permission))


@cache  # few, shared by all rules
def _operations(operation: Operation, permission: Permission) -> frozenset[Operation] | None:
    """Return what a binding's operation stands for; None: everything."""
    if operation is Operation.ALL:
        return None
    implied: set[Operation] = {operation}
    if permission is Permission.ALLOW:
        implied.update(weaker for weaker, stronger in IMPLIED_BY.items() if operation in stronger)
    return frozenset(implied)


def _is_denied(
    pattern: _Pattern,
    denied: set[_Pattern],
    denied_prefixes: set[str],
) -> bool:
    """Whether DENY bindings cover every name of an allowed pattern that is no wildcard."""
    pattern_type, name = pattern
    if pattern_type is PatternType.LITERAL and pattern in denied:
        return True
    return any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))
