"""The exchanges and bindings of one virtual host: declared, bound, deleted.

Queues are known by name only. Invariants: every binding is in the `bindings` of its source and, if it
leads to an exchange, in the `incoming` of that exchange; bindings lead only to what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.amqp.failures import (
    access_refused,
    check_not_default_exchange,
    check_not_reserved,
    describe,
    not_found,
    precondition_failed,
)
from penstock.amqp.routing.bindings import (
    Binding,
    Destination,
    DestinationKind,
    exchange_named,
    queue_named,
)
from penstock.amqp.routing.exchange import (
    Exchange,
    ExchangeProperties,
    check_alternate,
    check_equivalent,
)
from penstock.amqp.routing.exchange_types import (
    check_binding,
    check_exchange_arguments,
    check_exchange_type,
)
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.router import Router

PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
RESERVED_EXCHANGES: Final = "amq."


class TopologyLimits(NamedTuple):
    """Limits of one virtual host."""

    max_exchanges: int = 10_000
    max_bindings: int = 1_000_000
    max_targets: int = 10_000  # queues that one message may go to


class Topology:
    """Not thread-safe. `on_deleted` is called with each exchange that goes, in order."""

    def __init__(
        self,
        vhost: str = "/",
        limits: TopologyLimits | None = None,
        on_deleted: Callable[[Exchange], None] | None = None,
    ) -> None:
        self.vhost = vhost
        self.limits = limits or TopologyLimits()
        self.queues: dict[str, dict[object, Binding]] = {}  # by name: the bindings that lead to it
        self.exchanges: dict[str, Exchange] = {}
        self._binding_count = 0
        self._on_deleted = on_deleted
        self._router = Router(self.exchanges, self.queues, self.limits.max_targets)
        for name, kind in PREDECLARED.items():
            self.exchanges[name] = Exchange(name, ExchangeProperties(kind, durable=True))

    # Exchanges ------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name, self.vhost)
        return exchange

    def declare_exchange(self, name: str, properties: ExchangeProperties) -> Exchange:
        """Make the exchange, or check that the one with this name is equivalent."""
        check_exchange_type(properties.type)
        check_not_default_exchange(name)
        existing = self.exchanges.get(name)
        if existing is not None:
            check_equivalent(existing, properties, self.vhost)
            return existing
        check_not_reserved("exchange", name)
        check_alternate(name, properties.arguments, self.vhost)
        check_exchange_arguments(properties.type, properties.arguments)
        if len(self.exchanges) >= self.limits.max_exchanges:
            raise precondition_failed(
                f"cannot declare {describe('exchange', name, self.vhost)}: "
                f"exchange limit ({self.limits.max_exchanges}) is reached"
            )
        exchange = self.exchanges[name] = Exchange(name, properties)
        self._router.forget(name)
        return exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete the exchange and its bindings. Deleting what does not exist is no error."""
        check_not_default_exchange(name)
        if name.startswith(RESERVED_EXCHANGES):
            resource = describe("exchange", name, self.vhost)
            raise access_refused(f"deletion of system {resource} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise precondition_failed(f"{describe('exchange', name, self.vhost)} in use")
        self._delete([exchange])

    def set_policy(self, name: str, policy: Mapping[str, Any]) -> None:
        """Replace the effective policy of an exchange."""
        self.exchange(name).policy = policy
        self._router.forget(name)

    # Queues ---------------------------------------------------------------------------------------

    def add_queue(self, name: str) -> None:
        self.queues.setdefault(name, {})

    def remove_queue(self, name: str) -> None:
        """Forget the queue and its bindings. Exchanges with auto-delete can go with them."""
        bindings = self.queues.pop(name, {})
        self._delete(self._remove_bindings(list(bindings.values())))

    # Bindings -------------------------------------------------------------------------------------

    def bind(self, binding: Binding) -> bool:
        """Add a binding. Return `False` if it exists already."""
        source = self._check_ends(binding)
        identity = binding.identity
        if identity in source.bindings:
            return False
        check_binding(source.properties.type, source.properties.arguments, binding)
        if self._binding_count >= self.limits.max_bindings:
            raise precondition_failed(f"binding limit ({self.limits.max_bindings}) is reached")
        source.matcher.add(binding)
        source.bindings[identity] = binding
        self._bindings_to(binding.destination)[identity] = binding
        self._binding_count += 1
        self._router.forget(source.name)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding. Return `False` if it does not exist."""
        source = self._check_ends(binding)
        existing = source.bindings.get(binding.identity)
        if existing is None:
            return False
        self._delete(self._remove_bindings([existing]))
        return True

    def bindings(self) -> Iterator[Binding]:
        """Return all bindings except the implied ones of the default exchange."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings.values()

    # Routing --------------------------------------------------------------------------------------

    def route(self, message: RoutedMessage) -> tuple[str, ...]:
        """Return the names of the queues that a message goes to, each once."""
        if message.exchange not in self.exchanges:
            raise not_found("exchange", message.exchange, self.vhost)
        return self._router.route(message)

    def check_publish(self, exchange: str) -> Exchange:
        """Return the exchange if a client may publish to it."""
        found = self.exchange(exchange)
        if found.properties.internal:
            resource = describe("exchange", exchange, self.vhost)
            raise access_refused(f"cannot publish to internal {resource}")
        return found

    def _check_ends(self, binding: Binding) -> Exchange:
        check_not_default_exchange(binding.source)
        kind, name = binding.destination
        if kind is DestinationKind.EXCHANGE:
            check_not_default_exchange(name)
        source = self.exchange(binding.source)
        if name not in (self.exchanges if kind is DestinationKind.EXCHANGE else self.queues):
            raise not_found(kind, name, self.vhost)
        return source

    def _bindings_to(self, destination: Destination) -> dict[object, Binding]:
        kind, name = destination
        if kind is DestinationKind.QUEUE:
            return self.queues.get(name, {})
        exchange = self.exchanges.get(name)
        return exchange.incoming if exchange is not None else {}

    def _remove_bindings(self, bindings: list[Binding]) -> list[Exchange]:
        """Remove bindings. Return the exchanges that auto-delete because they lost their last."""
        unused: dict[Exchange, None] = {}
        for binding in bindings:
            source = self.exchanges.get(binding.source)
            identity = binding.identity
            if source is None or source.bindings.pop(identity, None) is None:
                continue
            source.matcher.remove(binding)
            self._bindings_to(binding.destination).pop(identity, None)
            self._binding_count -= 1
            self._router.forget(source.name)
            if source.properties.auto_delete and not source.bindings:
                unused[source] = None
        return list(unused)

    def _delete(self, doomed: list[Exchange]) -> None:
        """Delete exchanges, and those with auto-delete that were bound only to them."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            outgoing = list(exchange.bindings.values())
            self._remove_bindings(outgoing)
            doomed += self._remove_bindings(list(exchange.incoming.values()))
            del self.exchanges[exchange.name]
            self._router.forget(exchange.name)
            if self._on_deleted is not None:
                self._on_deleted(exchange)


def queue_binding(
    queue: str, exchange: str, routing_key: str = "", arguments: dict[str, Any] | None = None
) -> Binding:
    return Binding(exchange, queue_named(queue), routing_key, arguments or {})


def exchange_binding(
    destination: str, source: str, routing_key: str = "", arguments: dict[str, Any] | None = None
) -> Binding:
    return Binding(source, exchange_named(destination), routing_key, arguments or {})
