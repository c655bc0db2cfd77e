"""DescribeAcls, CreateAcls and DeleteAcls as pure functions: one result for each part of a request.

Parts are independent: a bad binding or filter does not stop the others. Creating a binding that
exists succeeds and changes nothing, as in Kafka. Searches run in steps: with 100,000 bindings they
take longer than the event loop can wait.
"""

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.steps import Steps
from penstock.security.acls import MAX_ACLS, MAX_CHANGES, AclBinding, AclFilter, InvalidAcl
from penstock.security.resources import PatternType, ResourceType
from penstock.security.rules import Rules

MAX_LOOKED_AT: Final = 2_000_000  # bindings, by all filters of a request
_AT_ONCE: Final = 500


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
) -> Steps[Deletions]:
    """Decide DeleteAcls. A binding that two filters match is in both results."""
    _check_size(len(filters))
    results: list[list[AclBinding] | BrokerError] = []
    removed: dict[AclBinding, None] = {}
    search = _Search(rules)
    for wanted in filters:
        if isinstance(wanted, BrokerError):
            results.append(wanted)
            continue
        found = yield from search.matching(wanted)
        removed.update(dict.fromkeys(found))
        if len(removed) > max_changes:
            raise InvalidAcl(
                f"the filters match more than {max_changes} ACLs: delete fewer in one request"
            )
        results.append(found)
    return Deletions(results, list(removed))


def describe(rules: Rules, wanted: AclFilter) -> Steps[list[DescribedResource]]:
    """Return the bindings that a filter matches, sorted and grouped by resource."""
    found = yield from _Search(rules).matching(wanted)
    described: list[DescribedResource] = []
    for count, binding in enumerate(found, 1):
        if not described or described[-1][:3] != binding[:3]:
            described.append(DescribedResource(*binding[:3], []))
        described[-1].bindings.append(binding)
        if count % _AT_ONCE == 0:
            yield
    return described


class _Search:
    """Finds what the filters of one request match, in steps, with a limit of work for all."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._looked_at = 0

    def matching(self, wanted: AclFilter) -> Steps[list[AclBinding]]:
        """Return the bindings that a filter matches, sorted."""
        runs: list[list[AclBinding]] = []
        candidates = self._rules.candidates(wanted)
        while slice_ := list(islice(candidates, _AT_ONCE)):
            self._looked_at += len(slice_)
            if self._looked_at > MAX_LOOKED_AT:
                raise InvalidAcl(
                    f"the filters select from more than {MAX_LOOKED_AT} ACLs together: "
                    "use fewer filters, or filters with a resource name or a principal"
                )
            runs.append(sorted(binding for binding in slice_ if wanted.matches(binding)))
            yield
        merged: list[AclBinding] = []
        ordered = merge(*runs)
        while slice_ := list(islice(ordered, _AT_ONCE)):
            merged += slice_
            yield
        return merged


def _check_size(count: int) -> None:
    if count > MAX_CHANGES:
        raise InvalidAcl(f"{count} changes in one request; the limit is {MAX_CHANGES}")
