"""Matchers that choose one destination: consistent hashing, hash modulo count, and random.

A consistent-hash exchange has a ring with 100 points for each unit of a binding's weight. Adding or
removing a binding moves only the messages between its points and the points before them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final, TypeAlias

from penstock.amqp.failures import precondition_failed
from penstock.amqp.routing.bindings import Binding, Destination, DestinationCounts, uncount
from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.tables import FieldTable

POINTS_PER_WEIGHT: Final = 100
MAX_WEIGHT: Final = 10_000  # as in RabbitMQ
MAX_RING_POINTS: Final = 1_000_000  # of one exchange: 100 MB at most
HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")

HashInput: TypeAlias = Callable[[str, RoutedMessage], bytes]


def hash64(data: bytes) -> int:
    """Return a hash that is the same on every broker and in every release."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def check_hash_arguments(arguments: FieldTable) -> None:
    if HASH_HEADER in arguments and HASH_PROPERTY in arguments:
        raise precondition_failed("hash-header and hash-property are mutually exclusive")
    if HASH_PROPERTY in arguments and arguments[HASH_PROPERTY][1] not in _PROPERTIES:
        raise precondition_failed(f"Unsupported property: {arguments[HASH_PROPERTY][1]}")


def hash_input(arguments: FieldTable) -> HashInput:
    """Return the function that chooses which bytes of a message are hashed."""
    if HASH_HEADER in arguments:
        name = str(arguments[HASH_HEADER][1])
        return lambda _, message: _as_bytes(message.headers.get(name, ("V", None))[1])
    if HASH_PROPERTY in arguments:
        attribute = str(arguments[HASH_PROPERTY][1])
        return lambda _, message: _as_bytes(getattr(message.properties, attribute))
    return lambda routing_key, _: _as_bytes(routing_key)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def check_weight(binding: Binding) -> None:
    key = binding.routing_key
    if not (key.isascii() and key.removeprefix("-").isdigit() and len(key) < 12):
        raise precondition_failed(f'The binding key must be an integer: <<"{key}">>')
    if int(key) < 1:
        raise precondition_failed("The binding key must be greater than 0")
    if int(key) > MAX_WEIGHT:
        raise precondition_failed(f"The binding key must not exceed {MAX_WEIGHT}")


class ConsistentHashMatcher:
    """Invariant: the ring holds points 0 to 100 x weight of each destination, in hash order.

    Several bindings of one destination add their weights.
    """

    by_key_only = False

    def __init__(self, arguments: FieldTable) -> None:
        self._hash_input = hash_input(arguments)
        self._weights: Counter[Destination] = Counter()
        self._ring: list[tuple[int, Destination]] = []

    def add(self, binding: Binding) -> None:
        weight = int(binding.routing_key)
        if len(self._ring) + weight * POINTS_PER_WEIGHT > MAX_RING_POINTS:
            raise precondition_failed(
                f"the weights of a consistent-hash exchange must not exceed "
                f"{MAX_RING_POINTS // POINTS_PER_WEIGHT} in total"
            )
        destination = binding.destination
        before = self._weights[destination]
        self._weights[destination] = before + weight
        points = _points(destination, before, before + weight)
        if len(points) <= POINTS_PER_WEIGHT:
            for point in points:
                insort(self._ring, point)
        else:
            self._ring = sorted(self._ring + points)

    def remove(self, binding: Binding) -> None:
        destination = binding.destination
        before = self._weights[destination]
        after = before - int(binding.routing_key)
        dropped = set(_points(destination, after, before))
        self._ring = [point for point in self._ring if point not in dropped]
        self._weights[destination] = after
        if not after:
            del self._weights[destination]

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:
        ring = self._ring
        if not ring:
            return ()
        at = bisect_left(ring, hash64(self._hash_input(routing_key, message)), key=_position)
        return (ring[at % len(ring)][1],)


def _position(point: tuple[int, Destination]) -> int:
    return point[0]


def _points(destination: Destination, low: int, high: int) -> list[tuple[int, Destination]]:
    """Return the ring points of a destination for its units of weight from `low` to `high`."""
    stem = f"{destination.kind}:{destination.name}:"
    numbers = range(low * POINTS_PER_WEIGHT, high * POINTS_PER_WEIGHT)
    return [(hash64(f"{stem}{number}".encode()), destination) for number in numbers]


class ModulusHashMatcher:
    """Chooses by the hash of the routing key modulo the number of destinations."""

    by_key_only = True

    def __init__(self) -> None:
        self._counts: DestinationCounts = Counter()
        self._sorted: list[Destination] | None = None

    def add(self, binding: Binding) -> None:
        self._counts[binding.destination] += 1
        self._sorted = None

    def remove(self, binding: Binding) -> None:
        uncount(self._counts, binding.destination)
        self._sorted = None

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        return self.choose(hash64(_as_bytes(routing_key)))

    def choose(self, number: int) -> Iterable[Destination]:
        """Return the destination at `number` modulo the number of destinations."""
        if self._sorted is None:
            self._sorted = sorted(self._counts)
        destinations = self._sorted
        return (destinations[number % len(destinations)],) if destinations else ()


class RandomMatcher:
    """Chooses by the random number that comes with the message."""

    by_key_only = False

    def __init__(self) -> None:
        self._destinations = ModulusHashMatcher()

    def add(self, binding: Binding) -> None:
        self._destinations.add(binding)

    def remove(self, binding: Binding) -> None:
        self._destinations.remove(binding)

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        return self._destinations.choose(message.random_number)
