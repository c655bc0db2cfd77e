"""The exchange types: which matcher each has, and what it accepts as arguments and bindings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.amqp.failures import precondition_failed
from penstock.amqp.routing.bindings import Binding, Matcher
from penstock.amqp.routing.hashing import (
    ConsistentHashMatcher,
    ModulusHashMatcher,
    RandomMatcher,
    check_hash_arguments,
    check_weight,
)
from penstock.amqp.routing.headers import HeadersMatcher, check_headers_binding
from penstock.amqp.routing.keys import DirectMatcher, FanoutMatcher
from penstock.amqp.routing.topic import TopicMatcher
from penstock.wire.amqp.tables import FieldTable

DELAYED: Final = "x-delayed-message"
_DELAYED_TYPE: Final = "x-delayed-type"


def _accept_arguments(_: FieldTable) -> None:
    """Accept any arguments: unknown ones are kept and have no effect."""


def _accept_binding(_: Binding) -> None:
    """Accept any binding."""


class _ExchangeType(NamedTuple):
    make_matcher: Callable[[FieldTable], Matcher]
    check_arguments: Callable[[FieldTable], None] = _accept_arguments
    check_binding: Callable[[Binding], None] = _accept_binding


_TYPES: Final = {
    "direct": _ExchangeType(lambda _: DirectMatcher()),
    "fanout": _ExchangeType(lambda _: FanoutMatcher()),
    "topic": _ExchangeType(lambda _: TopicMatcher()),
    "headers": _ExchangeType(lambda _: HeadersMatcher(), check_binding=check_headers_binding),
    "x-consistent-hash": _ExchangeType(ConsistentHashMatcher, check_hash_arguments, check_weight),
    "x-modulus-hash": _ExchangeType(lambda _: ModulusHashMatcher()),
    "x-random": _ExchangeType(lambda _: RandomMatcher()),
}


def check_exchange_type(kind: str) -> None:
    if kind not in _TYPES and kind != DELAYED:
        raise precondition_failed(f"unknown exchange type '{kind}'")


def check_exchange_arguments(kind: str, arguments: FieldTable) -> None:
    """Check the arguments of a new exchange."""
    _type_of(kind, arguments).check_arguments(arguments)


def make_matcher(kind: str, arguments: FieldTable) -> Matcher:
    return _type_of(kind, arguments).make_matcher(arguments)


def check_binding(kind: str, arguments: FieldTable, binding: Binding) -> None:
    """Check a new binding of an exchange with this type and these arguments."""
    _type_of(kind, arguments).check_binding(binding)


def _type_of(kind: str, arguments: FieldTable) -> _ExchangeType:
    """Return the type that routes. A delayed exchange names it in an argument."""
    if kind == DELAYED:
        _, kind = arguments.get(_DELAYED_TYPE, ("V", ""))
        if kind not in _TYPES:
            raise precondition_failed(
                "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            )
    return _TYPES[kind]
