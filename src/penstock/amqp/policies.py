"""Policies: settings for all queues and exchanges whose names match a pattern.

Of the policies that apply, the one with the highest priority counts, and so with operator policies.
Both are merged: of a limit in both, the smaller value counts. Arguments of a declaration win over
policies, except that of limits the smaller value counts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.amqp.arguments import QueueType
from penstock.amqp.failures import precondition_failed
from penstock.amqp.name_patterns import NamePattern
from penstock.amqp.overflow import Overflow
from penstock.amqp.stream_arguments import is_max_age

OWN_PREFIX: Final = "penstock-"
MAX_POLICIES: Final = 1000  # of one virtual host


class ApplyTo(StrEnum):
    ALL = "all"
    QUEUES = "queues"
    EXCHANGES = "exchanges"
    CLASSIC_QUEUES = "classic_queues"
    QUORUM_QUEUES = "quorum_queues"
    STREAMS = "streams"

    def includes(self, queue_type: QueueType | None) -> bool:
        """Return whether policies apply to queues of this type; `None` means an exchange."""
        if self is ApplyTo.ALL:
            return True
        if queue_type is None:
            return self is ApplyTo.EXCHANGES
        return self is ApplyTo.QUEUES or self is _QUEUES_OF_TYPE[queue_type]


_QUEUES_OF_TYPE: Final = {
    QueueType.CLASSIC: ApplyTo.CLASSIC_QUEUES,
    QueueType.QUORUM: ApplyTo.QUORUM_QUEUES,
    QueueType.STREAM: ApplyTo.STREAMS,
}


class Policy:
    """One policy. `definition` has plain JSON values, as clients and files give them."""

    __slots__ = ("apply_to", "definition", "name", "pattern", "priority")

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        apply_to: ApplyTo = ApplyTo.ALL,
        priority: int = 0,
    ) -> None:
        if not definition:
            raise precondition_failed(f"policy '{name}' has an empty definition")
        for key, value in definition.items():
            _check_definition(key, value)
        self.name = name
        self.pattern = NamePattern(pattern)
        self.definition = dict(definition)
        self.apply_to = apply_to
        self.priority = priority

    def applies(self, name: str, queue_type: QueueType | None) -> bool:
        return self.apply_to.includes(queue_type) and self.pattern.matches(name)


class PolicySet:
    """The policies and operator policies of one virtual host."""

    def __init__(
        self, policies: Iterable[Policy] = (), operator_policies: Iterable[Policy] = ()
    ) -> None:
        self._policies = _by_precedence(policies)
        self._operator_policies = _by_precedence(operator_policies)
        for policy in self._operator_policies:
            _check_operator_policy(policy)

    def effective(self, name: str, queue_type: QueueType | None) -> EffectivePolicy:
        """Return what applies to a queue, or with `queue_type` `None` to an exchange."""
        policy = _first(self._policies, name, queue_type)
        operator = _first(self._operator_policies, name, queue_type)
        definition = dict(policy.definition) if policy else {}
        for key, value in (operator.definition if operator else {}).items():
            definition[key] = _merge(key, definition[key], value) if key in definition else value
        return EffectivePolicy(
            policy.name if policy else None, operator.name if operator else None, definition
        )


class EffectivePolicy(NamedTuple):
    policy: str | None
    operator_policy: str | None
    definition: Mapping[str, Any]


def effective_value(key: str, argument: Any, definition: Mapping[str, Any]) -> Any:
    """Return the value of a setting, from the argument `x-<key>` and the policy; `None` if unset."""
    value = definition.get(key)
    if argument is None or value is None:
        return value if argument is None else argument
    return _smaller(key, argument, value) if key in _LIMITS else argument


def _by_precedence(policies: Iterable[Policy]) -> list[Policy]:
    """Sort by priority. Of two with the same priority the one with the smaller name counts."""
    return sorted(policies, key=lambda policy: (-policy.priority, policy.name))


def _first(policies: list[Policy], name: str, queue_type: QueueType | None) -> Policy | None:
    return next((policy for policy in policies if policy.applies(name, queue_type)), None)


def _merge(key: str, value: Any, operator_value: Any) -> Any:
    return _smaller(key, value, operator_value) if key in _LIMITS else operator_value


def _smaller(key: str, one: int, other: int) -> int:
    if key == "delivery-limit" and (one < 0 or other < 0):  # negative: without a limit
        return max(one, other)
    return min(one, other)


# Definitions ----------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: _is_integer(value) and value >= least


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values and not isinstance(value, bool)


_KEYS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "consumer-timeout": (_at_least(0), "consumer timeout"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "delivery-limit": (_is_integer, "delivery limit"),
    "delayed-retry-type": (_one_of("all", "failed", "returned"), "delayed retry type"),
    "delayed-retry-min": (_at_least(0), "delayed retry minimum"),
    "delayed-retry-max": (_at_least(0), "delayed retry maximum"),
    "expires": (_at_least(1), "queue expiry"),
    "initial-cluster-size": (_at_least(0), "cluster size"),
    "max-age": (is_max_age, "max age"),
    "max-in-memory-bytes": (_at_least(0), "maximum memory in bytes"),
    "max-in-memory-length": (_at_least(0), "maximum memory in bytes"),
    "max-length": (_at_least(0), "maximum length"),
    "max-length-bytes": (_at_least(0), "maximum length in bytes"),
    "max-priority": (_at_least(0), "maximum priority"),
    "message-ttl": (_at_least(0), "message TTL"),
    "overflow": (_one_of(*Overflow), "overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "stream-filter-size-bytes": (
        lambda value: _is_integer(value) and 16 <= value <= 255,
        "filter size. Valid range is 16-255",
    ),
    "stream-max-segment-size-bytes": (_at_least(0), "segment size"),
    "target-group-size": (_at_least(1), "target group size"),
}
_LIMITS: Final = frozenset(
    {
        "consumer-timeout",
        "delivery-limit",
        "expires",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "max-priority",
        "message-ttl",
    }
)
_OPERATOR_KEYS: Final = (_LIMITS - {"consumer-timeout", "max-priority"}) | {
    "queue-version",
    "overflow",
    "target-group-size",
}


def _check_definition(key: str, value: Any) -> None:
    if key.startswith(OWN_PREFIX):
        return
    if key not in _KEYS:
        raise precondition_failed(f"[{key!r}] are not recognised policy settings")
    is_valid, noun = _KEYS[key]
    if not is_valid(value):
        raise precondition_failed(f"{value!r} is not a valid {noun}")


def _check_operator_policy(policy: Policy) -> None:
    for key in policy.definition:
        if key not in _OPERATOR_KEYS and not key.startswith(OWN_PREFIX):
            raise precondition_failed(f"[{key!r}] are not recognised operator policy settings")
