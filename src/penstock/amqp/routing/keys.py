"""Matchers of direct and fanout exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.amqp.routing.bindings import Binding, Destination, DestinationCounts, uncount
from penstock.amqp.routing.messages import RoutedMessage


class DirectMatcher:
    """Matches bindings whose key equals the routing key."""

    by_key_only = True

    def __init__(self) -> None:
        self._by_key: dict[str, DestinationCounts] = {}

    def add(self, binding: Binding) -> None:
        counts = self._by_key.setdefault(binding.routing_key, Counter())
        counts[binding.destination] += 1

    def remove(self, binding: Binding) -> None:
        counts = self._by_key[binding.routing_key]
        uncount(counts, binding.destination)
        if not counts:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        return self._by_key.get(routing_key, ())


class FanoutMatcher:
    """Matches every binding."""

    by_key_only = True

    def __init__(self) -> None:
        self._counts: DestinationCounts = Counter()

    def add(self, binding: Binding) -> None:
        self._counts[binding.destination] += 1

    def remove(self, binding: Binding) -> None:
        uncount(self._counts, binding.destination)

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        return self._counts
