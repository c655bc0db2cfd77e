"""Publisher confirms of one channel: which sequence numbers are open, and what to send about the rest.

What was resolved below the lowest open number is confirmed at once by one basic.ack with multiple; what
was resolved above it is confirmed one by one. Rejected numbers are sent first, each by itself, so that
an ack with multiple never includes an unreported one.
"""

from __future__ import annotations

from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import BasicAck, BasicNack


class Confirms:
    """Invariant: each number is open, waits to be sent, or was sent."""

    __slots__ = ("_confirmed", "_open", "_rejected")

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # ascending, because publishes are numbered in order
        self._confirmed: list[int] = []
        self._rejected: list[int] = []

    def __len__(self) -> int:
        """Return how many numbers are open."""
        return len(self._open)

    @property
    def has_news(self) -> bool:
        return bool(self._confirmed or self._rejected)

    def open(self, number: int) -> None:
        self._open[number] = None

    def confirm(self, number: int) -> None:
        if self._open.pop(number, True) is None:
            self._confirmed.append(number)

    def reject(self, number: int) -> None:
        if self._open.pop(number, True) is None:
            self._rejected.append(number)

    def take(self, next_number: int) -> list[Method]:
        """Return the methods that report everything resolved since the last call."""
        methods: list[Method] = [
            BasicNack(number, multiple=False, requeue=False) for number in sorted(self._rejected)
        ]
        lowest_open = next(iter(self._open), next_number)
        below = [number for number in self._confirmed if number < lowest_open]
        if below:
            methods.append(BasicAck(max(below), multiple=len(below) > 1))
        methods += [BasicAck(number) for number in sorted(self._confirmed) if number >= lowest_open]
        self._confirmed.clear()
        self._rejected.clear()
        return methods
