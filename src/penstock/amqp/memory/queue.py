"""A queue in memory: its messages in order, who holds which, and what expires or overflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.amqp.arguments import QueueProperties, QueueType
from penstock.amqp.backend import (
    Delivered,
    Got,
    Message,
    Outcome,
    Receiver,
    Session,
    Span,
    Subscriber,
)
from penstock.amqp.deaths import DeathReason
from penstock.amqp.expiry import is_expired, message_ttl_ms
from penstock.amqp.memory.dispatch import Dispatcher
from penstock.amqp.overflow import Overflow
from penstock.amqp.priorities import ReadyOrder
from penstock.amqp.queue_settings import QueueSettings
from penstock.amqp.redelivery import with_delivery_counts

MAX_BATCH_BYTES: Final = 64 * 1024  # then the credit is looked at again


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a queue."""

    message: Message
    priority: int
    enqueued_ms: int
    ttl_ms: int | None
    failed: int = 0
    acquired: int = 0
    redelivered: bool = False
    holder: Receiver | None = None  # None: ready

    @property
    def size_bytes(self) -> int:
        return len(self.message.body)


class MemoryQueue:
    """Invariant: each message is ready or has a holder; only ready ones count for limits.

    `on_death` gets each message that is dropped for a reason, with the reason.
    """

    def __init__(
        self,
        name: str,
        properties: QueueProperties,
        settings: QueueSettings,
        owner: Session | None,
        on_death: Callable[[MemoryQueue, Stored, DeathReason], None],
        now_ms: int,
    ) -> None:
        self.name = name
        self.properties = properties
        self.settings = settings
        self.owner = owner  # of an exclusive queue
        self.dispatcher = Dispatcher(single_active=settings.single_active_consumer)
        self.had_consumers = False
        self.used_ms = now_ms
        self.total_bytes = 0
        self._on_death = on_death
        self._messages: dict[int, Stored] = {}
        self._ready = ReadyOrder()
        self._ready_bytes = 0
        self._next_position = 0

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def message_count(self) -> int:
        return len(self._messages)

    # Publishing ---------------------------------------------------------------------------------------

    def rejects(self, body_bytes: int) -> bool:
        """Return whether the queue is full and rejects publishes."""
        return self.settings.limits.rejects(len(self._ready), self._ready_bytes, body_bytes)

    def publish(
        self, message: Message, priority: int | None, expiration_ms: int | None, now_ms: int
    ) -> bool:
        """Add a message, unless the queue rejects it. Return whether it was added."""
        ttl_ms = message_ttl_ms(self.settings.message_ttl_ms, expiration_ms)
        stored = Stored(message, self.settings.priority(priority), now_ms, ttl_ms)
        if self.rejects(stored.size_bytes):
            if self.settings.limits.overflow is Overflow.REJECT_PUBLISH_DLX:
                self._on_death(self, stored, DeathReason.MAXLEN)
            return False
        position = self._next_position
        self._next_position += 1
        self._messages[position] = stored
        self._ready.add(position, stored.priority)
        self._ready_bytes += stored.size_bytes
        self.total_bytes += stored.size_bytes
        self.dispatch(now_ms)
        self._drop_heads()
        return True

    # Receiving ----------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> None:
        self.dispatcher.add(subscriber)
        self.had_consumers = True

    def dispatch(self, now_ms: int) -> None:
        """Deliver ready messages to consumers with credit. Expired messages are dropped first."""
        self.expire(now_ms, keep_new=True)
        while (chosen := self.dispatcher.next(len(self._ready))) is not None:
            subscriber, count = chosen
            subscriber.deliver(self._take_batch(subscriber, count))
            self.expire(now_ms, keep_new=True)
        self.expire(now_ms)

    def get(self, receiver: Receiver, now_ms: int) -> Got | None:
        self.used_ms = now_ms
        self.expire(now_ms)
        if not self._ready:
            return None
        return Got(self._take(receiver), len(self._ready))

    def _take_batch(self, receiver: Receiver, count: int) -> list[Delivered]:
        """Take at most `count` messages, and not much more than the limit of bytes."""
        deliveries: list[Delivered] = []
        size_bytes = 0
        while len(deliveries) < count and size_bytes < MAX_BATCH_BYTES:
            delivered = self._take(receiver)
            deliveries.append(delivered)
            size_bytes += len(delivered.message.body)
        return deliveries

    def _take(self, receiver: Receiver) -> Delivered:
        position = self._ready.pop()
        stored = self._messages[position]
        self._ready_bytes -= stored.size_bytes
        if receiver.no_ack:
            self._forget(position)
        else:
            stored.holder = receiver
        return Delivered(position, self._counted(stored), stored.redelivered)

    def _counted(self, stored: Stored) -> Message:
        """Return the message, in a quorum queue with the counts of earlier deliveries."""
        message, earlier = stored.message, stored.acquired
        stored.acquired += 1
        if not earlier or self.settings.type is not QueueType.QUORUM:
            return message
        properties = with_delivery_counts(
            message.properties, failed=stored.failed, acquired=earlier
        )
        return message._replace(properties=properties)

    # Settling -----------------------------------------------------------------------------------------

    def settle(self, receiver: Receiver, spans: Iterable[Span], outcome: Outcome) -> None:
        """Settle what a receiver holds. Positions that it does not hold are ignored."""
        for first, end in spans:
            for position in range(first, end):
                stored = self._messages.get(position)
                if stored is None or stored.holder is not receiver:
                    continue
                if outcome is Outcome.ACCEPT:
                    self._forget(position)
                elif outcome is Outcome.REJECT:
                    self._die(position, DeathReason.REJECTED)
                else:
                    self._give_back(position, stored, failed=outcome is Outcome.FAIL)
        self._drop_heads()

    def _give_back(self, position: int, stored: Stored, *, failed: bool) -> None:
        stored.holder = None
        stored.redelivered = True
        stored.failed += failed
        limit = self.settings.delivery_limit
        if limit is not None and stored.failed > limit:
            self._die(position, DeathReason.DELIVERY_LIMIT)
            return
        self._ready.give_back(position, stored.priority)
        self._ready_bytes += stored.size_bytes

    # Dropping -----------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop all ready messages. Return how many."""
        positions = list(self._ready)
        self._ready.clear()
        self._ready_bytes = 0
        for position in positions:
            self._forget(position)
        return len(positions)

    def expire(self, now_ms: int, *, keep_new: bool = False) -> None:
        """Drop expired messages at the head. With `keep_new`, those of this instant stay."""
        while (position := self._ready.first()) is not None:
            stored = self._messages[position]
            if not is_expired(stored.ttl_ms, stored.enqueued_ms, now_ms):
                return
            if keep_new and stored.enqueued_ms == now_ms and not stored.redelivered:
                return
            self._drop_head(DeathReason.EXPIRED)

    def next_expiry_ms(self) -> int | None:
        """Return when the message at the head expires."""
        position = self._ready.first()
        if position is None:
            return None
        stored = self._messages[position]
        return None if stored.ttl_ms is None else stored.enqueued_ms + stored.ttl_ms

    def _drop_heads(self) -> None:
        limits = self.settings.limits
        if limits.overflow is not Overflow.DROP_HEAD:
            return
        while self._ready and limits.is_over(len(self._ready), self._ready_bytes):
            self._drop_head(DeathReason.MAXLEN)

    def _drop_head(self, reason: DeathReason) -> None:
        position = self._ready.pop()
        self._ready_bytes -= self._messages[position].size_bytes
        self._die(position, reason)

    def _die(self, position: int, reason: DeathReason) -> None:
        stored = self._messages[position]
        self._forget(position)
        self._on_death(self, stored, reason)

    def _forget(self, position: int) -> None:
        self.total_bytes -= self._messages.pop(position).size_bytes
