"""Finds the queues of a message: through bindings between exchanges and alternate exchanges.

Each exchange is visited at most once, so cycles end. Results that depend on the routing key alone are
cached, and dropped when an exchange that they passed changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.amqp.failures import resource_error
from penstock.amqp.routing.bindings import DestinationKind
from penstock.amqp.routing.exchange import Exchange
from penstock.amqp.routing.messages import RoutedMessage

MAX_CACHED_ROUTES: Final = 65_536


class Router:
    """Reads `exchanges` and `queues`, which their owner changes; it then calls `forget`."""

    def __init__(
        self, exchanges: Mapping[str, Exchange], queues: Mapping[str, object], max_targets: int
    ) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self._max_targets = max_targets
        self._cache: dict[str, dict[str, tuple[str, ...]]] = {}  # by exchange and routing key
        self._cached_routes = 0
        self._starts: dict[
            str, set[str]
        ] = {}  # by exchange: where the cached routes through it begin

    def route(self, message: RoutedMessage) -> tuple[str, ...]:
        start = message.exchange
        if message.has_extra_keys:
            keys = list(dict.fromkeys(message.routing_keys()))
            if len(keys) > 1:
                return self._search(start, keys, message)[0]
        key = message.routing_key
        if not start:
            return (key,) if key in self._queues else ()
        cached = self._cache.get(start)
        if cached is not None:
            found = cached.get(key)
            if found is not None:
                return found
        targets, passed, is_cacheable = self._search(start, [key], message)
        if is_cacheable:
            self._remember(start, key, targets, passed)
        return targets

    def forget(self, exchange: str) -> None:
        """Drop the cached routes that pass an exchange."""
        for start in (exchange, *self._starts.pop(exchange, ())):
            dropped = self._cache.pop(start, None)
            if dropped is not None:
                self._cached_routes -= len(dropped)

    def _remember(self, start: str, key: str, targets: tuple[str, ...], passed: list[str]) -> None:
        if self._cached_routes >= MAX_CACHED_ROUTES:
            self._cache.clear()
            self._starts.clear()
            self._cached_routes = 0
        self._cache.setdefault(start, {})[key] = targets
        self._cached_routes += 1
        for name in passed:
            if name != start:
                self._starts.setdefault(name, set()).add(start)

    def _search(
        self, start: str, keys: list[str], message: RoutedMessage
    ) -> tuple[tuple[str, ...], list[str], bool]:
        """Return the queues, the exchanges that were passed, and whether the key decided alone.

        Exchanges that are named but do not exist count as passed: they can be declared later.
        """
        targets: dict[str, None] = {}
        passed = {start: None}
        waiting = [start]
        is_cacheable = True
        while waiting:
            name = waiting.pop()
            if not name:  # the default exchange, as an alternate exchange
                targets.update((key, None) for key in keys if key in self._queues)
                is_cacheable = False
                continue
            exchange = self._exchanges.get(name)
            if exchange is None:
                continue
            is_cacheable = is_cacheable and exchange.matcher.by_key_only
            for following in self._follow(exchange, keys, message, targets):
                if following not in passed:
                    passed[following] = None
                    waiting.append(following)
            if len(targets) > self._max_targets:
                raise resource_error(
                    f"a message to exchange '{start}' matches more than {self._max_targets} queues"
                )
        return tuple(targets), list(passed), is_cacheable

    def _follow(
        self,
        exchange: Exchange,
        keys: list[str],
        message: RoutedMessage,
        targets: dict[str, None],
    ) -> list[str]:
        """Add the queues that the exchange matches. Return the exchanges that come next."""
        following = []
        matched = False
        for key in keys:
            for kind, name in exchange.matcher.match(key, message):
                matched = True
                if kind is DestinationKind.QUEUE:
                    targets[name] = None
                else:
                    following.append(name)
        if not matched and exchange.alternate is not None:
            following.append(exchange.alternate)
        return following
