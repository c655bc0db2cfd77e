"""Cached verdicts: what one principal at one host may do. A change of the rules drops them.

`Grants.allows` is on the hot path: one comparison of generations and one dictionary lookup.
"""

from collections import OrderedDict
from typing import Final

from penstock.security.resources import Operation, ResourceType
from penstock.security.rules import Requester, Rules

MAX_VERDICTS: Final = 10_000  # of one principal at one host
MAX_GRANTS: Final = 20_000


class CurrentRules:
    """The rules in force. Owned by one event loop; `swap` replaces them at once."""

    __slots__ = ("generation", "rules")

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.generation = 0

    def swap(self, rules: Rules) -> None:
        self.rules = rules
        self.generation += 1


class Grants:
    """The verdicts of one requester. Connections of the same requester share them."""

    __slots__ = ("_all", "_any", "_current", "_generation", "_verdicts", "requester")

    def __init__(self, current: CurrentRules, requester: Requester) -> None:
        self.requester = requester
        self._current = current
        self._generation = current.generation
        self._verdicts: dict[tuple[Operation, ResourceType, str], bool] = {}
        self._any: dict[tuple[Operation, ResourceType], bool] = {}
        self._all: dict[tuple[Operation, ResourceType], bool] = {}

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        if self._generation == self._current.generation:
            verdict = self._verdicts.get((operation, resource, name))
            if verdict is not None:
                return verdict
        return self._decide(operation, resource, name)

    def allows_any(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the operation is allowed for some name (KIP-679)."""
        self._drop_old_verdicts()
        verdict = self._any.get((operation, resource))
        if verdict is None:
            verdict = self._current.rules.allows_any(self.requester, operation, resource)
            self._any[operation, resource] = verdict
        return verdict

    def allows_all(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the operation is certainly allowed for every name: listings need no more checks."""
        self._drop_old_verdicts()
        verdict = self._all.get((operation, resource))
        if verdict is None:
            verdict = self._current.rules.allows_all(self.requester, operation, resource)
            self._all[operation, resource] = verdict
        return verdict

    def _decide(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        self._drop_old_verdicts()
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts.clear()
        decision = self._current.rules.decide(self.requester, operation, resource, name)
        self._verdicts[operation, resource, name] = decision.is_allowed
        return decision.is_allowed

    def _drop_old_verdicts(self) -> None:
        if self._generation != self._current.generation:
            self._verdicts.clear()
            self._any.clear()
            self._all.clear()
            self._generation = self._current.generation


class GrantsCache:
    """The grants of the last MAX_GRANTS requesters."""

    def __init__(self, current: CurrentRules) -> None:
        self._current = current
        self._grants: OrderedDict[Requester, Grants] = OrderedDict()

    def grants(self, requester: Requester) -> Grants:
        found = self._grants.get(requester)
        if found is None:
            found = self._grants[requester] = Grants(self._current, requester)
            if len(self._grants) > MAX_GRANTS:
                self._grants.popitem(last=False)
        else:
            self._grants.move_to_end(requester)
        return found
