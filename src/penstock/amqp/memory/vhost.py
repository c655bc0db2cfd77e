"""A virtual host in memory: its topology, its queues, and how messages move between them."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from penstock.amqp.arguments import QueueProperties, QueueType, check_queue_declaration
from penstock.amqp.backend import Delivered, Message, Publication, Session, Subscriber
from penstock.amqp.deaths import DeathReason, dead_letter, is_cycle
from penstock.amqp.expiry import parse_expiration
from penstock.amqp.failures import (
    REPLY_TO,
    describe,
    locked,
    not_found,
    not_implemented,
    resource_error,
)
from penstock.amqp.memory.queue import MemoryQueue, Stored
from penstock.amqp.policies import PolicySet
from penstock.amqp.queue_settings import resolve_settings
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.topology import Topology, TopologyLimits
from penstock.wire.amqp.errors import AmqpError


class MemoryLimits(NamedTuple):
    max_queues: int = 50_000
    max_queue_bytes: int = 64 * 1024 * 1024
    topology: TopologyLimits = TopologyLimits()


class _Dead(NamedTuple):
    queue: MemoryQueue
    stored: Stored
    reason: DeathReason


class MemoryVhost:
    """Not thread-safe. Dead letters are routed one after the other, so chains of queues do not nest."""

    def __init__(self, name: str, limits: MemoryLimits) -> None:
        self.name = name
        self.topology = Topology(name, limits.topology)
        self.queues: dict[str, MemoryQueue] = {}
        self.replies: dict[str, Subscriber] = {}  # consumers of direct replies
        self.policies = PolicySet()
        self._limits = limits
        self._dead: deque[_Dead] = deque()
        self._is_burying = False
        self._delayed: list[tuple[int, int, RoutedMessage, bytes]] = []
        self._delayed_count = 0

    # Queues -------------------------------------------------------------------------------------------

    def queue(self, name: str, session: Session) -> MemoryQueue:
        """Return a queue that the session may use."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_found("queue", name, self.name)
        if queue.owner is not None and queue.owner is not session:
            raise locked(name, self.name)
        return queue

    def make_queue(
        self, name: str, properties: QueueProperties, owner: Session | None, now_ms: int
    ) -> MemoryQueue:
        check_queue_declaration(name, properties, self.name)
        if properties.type is QueueType.STREAM:
            raise not_implemented(f"{describe('queue', name, self.name)}: no stream is in memory")
        if len(self.queues) >= self._limits.max_queues:
            raise resource_error(
                f"cannot declare {describe('queue', name, self.name)}: "
                f"queue limit ({self._limits.max_queues}) is reached"
            )
        policy = self.policies.effective(name, properties.type)
        settings = resolve_settings(properties, policy.definition)
        queue = MemoryQueue(name, properties, settings, owner, self._on_death, now_ms)
        self.queues[name] = queue
        self.topology.add_queue(name)
        return queue

    def delete_queue(self, queue: MemoryQueue) -> int:
        """Delete a queue. Return how many ready messages it had."""
        del self.queues[queue.name]
        self.topology.remove_queue(queue.name)
        for subscriber in queue.dispatcher.subscribers:
            subscriber.cancel()
        return queue.ready_count

    def apply_policies(self, policies: PolicySet, now_ms: int) -> None:
        """Replace the policies. They take effect on queues and exchanges at once."""
        self.policies = policies
        for name, exchange in list(self.topology.exchanges.items()):
            definition = policies.effective(name, None).definition
            if definition != exchange.policy:
                self.topology.set_policy(name, definition)
        for queue in list(self.queues.values()):
            definition = policies.effective(queue.name, queue.properties.type).definition
            queue.settings = resolve_settings(queue.properties, definition)
            queue.dispatch(now_ms)

    # Messages -----------------------------------------------------------------------------------------

    def publish(self, publication: Publication, now_ms: int) -> bool:
        """Route a publication. Return whether all queues took it."""
        message, body = publication.message, publication.body
        exchange = self.topology.exchanges.get(message.exchange)
        delay_ms = message.delay_ms() if exchange is not None and exchange.is_delayed else 0
        if delay_ms:
            self._delayed_count += 1
            entry = now_ms + delay_ms, self._delayed_count, message, body
            heappush(self._delayed, entry)
            return True
        if message.routing_key.startswith(REPLY_TO) and not message.exchange:
            is_routed, is_taken = self._reply(message, body), True
        else:
            targets = self._route(message)
            is_routed = bool(targets)
            is_taken = self._enqueue(targets, message, body, now_ms)
        if not is_routed and publication.mandatory:
            publication.publisher.returned(publication)
        self.bury(now_ms)
        return is_taken

    def _route(self, message: RoutedMessage) -> tuple[str, ...]:
        """Return the queues. An exchange that was deleted meanwhile routes to none."""
        if message.exchange not in self.topology.exchanges:
            return ()
        return self.topology.route(message)

    def _route_or_drop(self, message: RoutedMessage) -> tuple[str, ...]:
        """The same for a message whose publisher waits no longer: nobody gets an error."""
        try:
            return self._route(message)
        except AmqpError:
            return ()

    def _reply(self, message: RoutedMessage, body: bytes) -> bool:
        subscriber = self.replies.get(message.routing_key)
        if subscriber is None:
            return False
        reply = Message("", message.routing_key, message.without_bcc(), body)
        subscriber.deliver([Delivered(0, reply, redelivered=False)])
        return True

    def _enqueue(
        self, targets: tuple[str, ...], message: RoutedMessage, body: bytes, now_ms: int
    ) -> bool:
        if not targets:
            return True
        priority, text = message.priority_and_expiration()
        expiration_ms = None if text is None else parse_expiration(text)
        stored = Message(message.exchange, message.routing_key, message.without_bcc(), body)
        is_taken = True
        for name in targets:
            queue = self.queues[name]
            if queue.total_bytes + len(body) > self._limits.max_queue_bytes or not queue.publish(
                stored, priority, expiration_ms, now_ms
            ):
                is_taken = False
        return is_taken

    def _on_death(self, queue: MemoryQueue, stored: Stored, reason: DeathReason) -> None:
        if queue.settings.dead_letter_exchange is not None:
            self._dead.append(_Dead(queue, stored, reason))

    def bury(self, now_ms: int) -> None:
        """Route the dead letters. Without a dead-letter exchange or a route they are dropped."""
        if self._is_burying:
            return
        self._is_burying = True
        try:
            while self._dead:
                self._send_dead(self._dead.popleft(), now_ms)
        finally:
            self._is_burying = False

    def _send_dead(self, dead: _Dead, now_ms: int) -> None:
        queue, message = dead.queue, dead.stored.message
        exchange = queue.settings.dead_letter_exchange
        if exchange is None or exchange not in self.topology.exchanges:
            return
        letter = dead_letter(
            RoutedMessage(message.exchange, message.routing_key, message.properties),
            queue=queue.name,
            reason=dead.reason,
            exchange=exchange,
            routing_key=queue.settings.dead_letter_routing_key,
            now_ms=now_ms,
        )
        if letter.obstacle is not None:
            return
        targets = self._route_or_drop(letter.message)
        allowed = tuple(name for name in targets if not is_cycle(name, letter))
        self._enqueue(allowed, letter.message, message.body, now_ms)

    # Time ---------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Forward what is due, drop what expired, delete queues that nobody used."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, message, body = heappop(self._delayed)
            self._enqueue(self._route_or_drop(message), message, body, now_ms)
        for queue in list(self.queues.values()):
            queue.dispatch(now_ms)
            expires_ms = queue.settings.expires_ms
            if expires_ms is None or len(queue.dispatcher):
                queue.used_ms = now_ms if len(queue.dispatcher) else queue.used_ms
            elif now_ms >= queue.used_ms + expires_ms:
                self.delete_queue(queue)
        self.bury(now_ms)
