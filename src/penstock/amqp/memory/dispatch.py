"""Which consumer of a queue gets the next messages."""

from __future__ import annotations

from penstock.amqp.arguments import plain_argument
from penstock.amqp.backend import Subscriber

MAX_BATCH = 256


class Dispatcher:
    """The consumers of one queue.

    Those with the highest `x-priority` that have credit get messages in turn. With a single active
    consumer only the first gets any, until it goes.
    """

    def __init__(self, *, single_active: bool) -> None:
        self.single_active = single_active
        self._subscribers: list[Subscriber] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def subscribers(self) -> list[Subscriber]:
        return list(self._subscribers)

    @property
    def has_exclusive(self) -> bool:
        return any(subscriber.exclusive for subscriber in self._subscribers)

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def remove(self, subscriber: Subscriber) -> bool:
        """Return whether it was there."""
        if subscriber not in self._subscribers:
            return False
        self._subscribers.remove(subscriber)
        return True

    def next(self, ready: int) -> tuple[Subscriber, int] | None:
        """Return who gets how many of the ready messages, or `None` if nobody takes any."""
        eligible = self._eligible()
        if not eligible or not ready:
            return None
        total = sum(credit for _, credit in eligible)
        share = -(-min(ready, total) // len(eligible))
        self._turn += 1
        subscriber, credit = eligible[self._turn % len(eligible)]
        return subscriber, min(share, credit, ready, MAX_BATCH)

    def _eligible(self) -> list[tuple[Subscriber, int]]:
        """Return the consumers of the highest priority with credit, and their credit."""
        candidates = self._subscribers[:1] if self.single_active else self._subscribers
        found: list[tuple[Subscriber, int]] = []
        highest = 0
        for subscriber in candidates:
            credit = subscriber.credit
            if not credit:
                continue
            priority = plain_argument(subscriber.arguments, "x-priority") or 0
            if not found or priority > highest:
                found, highest = [(subscriber, credit)], priority
            elif priority == highest:
                found.append((subscriber, credit))
        return found
