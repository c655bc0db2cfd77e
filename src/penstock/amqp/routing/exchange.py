"""An exchange: its properties, its bindings and the matcher that routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.amqp.equivalence import check_arguments_equivalent, check_field_equivalent
from penstock.amqp.failures import TYPE_NAMES, describe, precondition_failed
from penstock.amqp.routing.bindings import Binding, Matcher
from penstock.amqp.routing.exchange_types import DELAYED, make_matcher
from penstock.wire.amqp.tables import FieldTable

ALTERNATE: Final = "alternate-exchange"


class ExchangeProperties(NamedTuple):
    """What a declaration says about an exchange."""

    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: FieldTable = {}  # noqa: RUF012  # never changed


@dataclass(slots=True, eq=False)
class Exchange:
    """Invariant: `matcher` holds exactly the bindings of `bindings`."""

    name: str
    properties: ExchangeProperties
    bindings: dict[object, Binding] = field(default_factory=dict)  # by identity
    incoming: dict[object, Binding] = field(default_factory=dict)  # that lead to this exchange
    policy: Mapping[str, Any] = field(default_factory=dict)
    matcher: Matcher = field(init=False)

    def __post_init__(self) -> None:
        self.matcher = make_matcher(self.properties.type, self.properties.arguments)

    @property
    def alternate(self) -> str | None:
        """Return the exchange for messages that match no binding. An argument wins over a policy."""
        argument = self.properties.arguments.get(ALTERNATE)
        name = argument[1] if argument is not None else self.policy.get(ALTERNATE)
        return str(name) if name else None

    @property
    def is_delayed(self) -> bool:
        return self.properties.type == DELAYED


def check_equivalent(exchange: Exchange, declared: ExchangeProperties, vhost: str) -> None:
    """Check that a second declaration describes the exchange as it is."""
    current = exchange.properties
    resource = describe("exchange", exchange.name, vhost)
    for name in ("type", "durable", "auto_delete", "internal"):
        check_field_equivalent(name, resource, getattr(declared, name), getattr(current, name))
    keys = [ALTERNATE]
    if current.type == DELAYED:
        keys.append("x-delayed-type")
    check_arguments_equivalent(resource, declared.arguments, current.arguments, keys)


def check_alternate(name: str, arguments: FieldTable, vhost: str) -> None:
    letter, _ = arguments.get(ALTERNATE, ("S", ""))
    if letter != "S":
        raise precondition_failed(
            f"invalid type '{TYPE_NAMES[letter]}' for arg '{ALTERNATE}' in "
            f"{describe('exchange', name, vhost)}"
        )
