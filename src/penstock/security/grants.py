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

    __slots__ = ("_current", "_generation", "_verdicts", "requester")

    def __init__(self, current: CurrentRules, requester: Requester) -> None:
        self.requester = requester
        self._current = current
        self._generation = current.generation
        self._verdicts: dict[tuple[Operation, ResourceType, str], bool] = {}

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        if self._generation == self._current.generation:
            verdict = self._verdicts.get((operation, resource, name))
            if verdict is not None:
                return verdict
        return self._decide(operation, resource, name)

    def allows_any(self, operation: Operation, resource: ResourceType) -> bool:
        return self._current.rules.allows_any(self.requester, operation, resource)

    def allows_all(self, operation: Operation, resource: ResourceType) -> bool:
        return self._current.rules.allows_all(self.requester, operation, resource)

    def _decide(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        if self._generation != self._current.generation or len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts.clear()
            self._generation = self._current.generation
        decision = self._current.rules.decide(self.requester, operation, resource, name)
        self._verdicts[operation, resource, name] = decision.is_allowed
        return decision.is_allowed


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
