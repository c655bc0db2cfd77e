"""DescribeAcls, CreateAcls and DeleteAcls as pure functions: one result for each part of a request.

Parts are independent: a bad binding or filter does not stop the others. Creating a binding that
exists succeeds and changes nothing, as in Kafka.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.model.errors import BrokerError, ErrorCode
from penstock.security.acls import MAX_ACLS, MAX_CHANGES, AclBinding, AclFilter, InvalidAcl
from penstock.security.resources import PatternType, ResourceType
from penstock.security.rules import Rules


class Creations(NamedTuple):
    """The error of each binding, None for those that succeed, and the bindings to write."""

    errors: list[BrokerError | None]
    added: list[AclBinding]


class Deletions(NamedTuple):
    """For each filter its bindings or its error, and all bindings to delete, each once."""

    results: list[list[AclBinding] | BrokerError]
    removed: list[AclBinding]


class DescribedResource(NamedTuple):
    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    bindings: list[AclBinding]


def create(
    rules: Rules, requested: Sequence[AclBinding | BrokerError], max_acls: int = MAX_ACLS
) -> Creations:
    """Decide CreateAcls. `requested` has an error where `binding_from_wire` raised one."""
    _check_size(len(requested))
    added: dict[AclBinding, None] = {}
    errors: list[BrokerError | None] = []
    for binding in requested:
        error = binding if isinstance(binding, BrokerError) else None
        if isinstance(binding, AclBinding) and binding not in rules and binding not in added:
            if len(rules) + len(added) >= max_acls:
                error = BrokerError(
                    f"the cluster has {max_acls} ACLs; the limit is {max_acls}",
                    ErrorCode.POLICY_VIOLATION,
                )
            else:
                added[binding] = None
        errors.append(error)
    return Creations(errors, list(added))


def delete(
    rules: Rules, filters: Sequence[AclFilter | BrokerError], max_changes: int = MAX_CHANGES
) -> Deletions:
    """Decide DeleteAcls. A binding that two filters match is in both results."""
    _check_size(len(filters))
    results: list[list[AclBinding] | BrokerError] = []
    removed: dict[AclBinding, None] = {}
    for wanted in filters:
        if isinstance(wanted, BrokerError):
            results.append(wanted)
            continue
        found = matching(rules, wanted)
        removed.update(dict.fromkeys(found))
        if len(removed) > max_changes:
            raise InvalidAcl(
                f"the filters match more than {max_changes} ACLs: delete fewer in one request"
            )
        results.append(found)
    return Deletions(results, list(removed))


def describe(rules: Rules, wanted: AclFilter) -> list[DescribedResource]:
    """Return the bindings that a filter matches, sorted and grouped by resource."""
    return [
        DescribedResource(*resource, list(bindings))
        for resource, bindings in groupby(matching(rules, wanted), key=_resource)
    ]


def matching(rules: Rules, wanted: AclFilter) -> list[AclBinding]:
    """Return the bindings that a filter matches, sorted."""
    return sorted(binding for binding in rules if wanted.matches(binding))


def _resource(binding: AclBinding) -> tuple[ResourceType, PatternType, str]:
    return binding.resource_type, binding.pattern_type, binding.resource_name


def _check_size(count: int) -> None:
    if count > MAX_CHANGES:
        raise InvalidAcl(f"{count} changes in one request; the limit is {MAX_CHANGES}")
