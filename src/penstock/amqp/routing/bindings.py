"""Bindings: from an exchange to a queue or to another exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.tables import FieldTable, encode_table


class DestinationKind(StrEnum):
    QUEUE = "queue"
    EXCHANGE = "exchange"


class Destination(NamedTuple):
    kind: DestinationKind
    name: str


def queue_named(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def exchange_named(name: str) -> Destination:
    return Destination(DestinationKind.EXCHANGE, name)


class Binding(NamedTuple):
    source: str  # an exchange
    destination: Destination
    routing_key: str
    arguments: FieldTable  # never changed after the binding is made

    @property
    def identity(self) -> tuple[str, Destination, str, bytes]:
        """Return what makes two bindings the same one. The order of arguments does not count."""
        arguments = encode_table(dict(sorted(self.arguments.items()))) if self.arguments else b""
        return self.source, self.destination, self.routing_key, arguments


class Matcher(Protocol):
    """The bindings of one exchange, compiled for matching.

    The caller adds each binding once, and removes only bindings that it added.
    """

    by_key_only: bool  # the result depends on nothing but the routing key, so it can be cached

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:
        """Return the destinations of the bindings that match. One can appear more than once."""
        ...


DestinationCounts = Counter[Destination]  # how many bindings lead to each destination


def uncount(counts: DestinationCounts, destination: Destination) -> None:
    counts[destination] -= 1
    if not counts[destination]:
        del counts[destination]
