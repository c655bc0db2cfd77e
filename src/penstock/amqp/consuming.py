"""The consuming half of a channel: consumers, deliveries, acknowledgements, prefetch and basic.get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.amqp.backend import (
    Delivered,
    Got,
    Outcome,
    Permission,
    Session,
    Settlement,
    Span,
)
from penstock.amqp.context import ChannelContext
from penstock.amqp.failures import REPLY_TO, not_allowed, not_implemented, precondition_failed
from penstock.amqp.publishing import Publishing, Transaction
from penstock.amqp.unacked import Run, Unacked
from penstock.wire.amqp.deliveries import DeliveryWriter
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
)
from penstock.wire.amqp.tables import FieldTable

TAG_PREFIX: Final = "amq.ctag-"


@dataclass(slots=True, eq=False)
class Getter:
    """Holds what basic.get took from one queue."""

    session: Session
    queue: str
    no_ack: bool = False


class Consumer:
    """A consumer of one queue. Its deliveries count until they are acknowledged."""

    __slots__ = (
        "_consuming",
        "_writer",
        "arguments",
        "exclusive",
        "no_ack",
        "prefetch",
        "queue",
        "session",
        "tag",
        "unacked",
    )

    def __init__(
        self, consuming: Consuming, session: Session, method: BasicConsume, prefetch: int
    ) -> None:
        self._consuming = consuming
        self.session = session
        self.queue = method.queue
        self.tag = method.consumer_tag
        self.no_ack = method.no_ack
        self.exclusive = method.exclusive
        self.arguments: FieldTable = method.arguments
        self.prefetch = prefetch  # 0: no limit
        self.unacked = 0
        self._writer = consuming.writer(self.tag)

    @property
    def shares_prefetch(self) -> bool:
        return self._consuming.shared_prefetch > 0

    @property
    def credit(self) -> int:
        """Return how many messages the consumer may get now."""
        return self._consuming.credit_of(self)

    def deliver(self, deliveries: Sequence[Delivered]) -> None:
        self._consuming.deliver(self, self._writer, deliveries)

    def cancel(self) -> None:
        self._consuming.queue_is_gone(self)


class Consuming:
    """Delivery tags count from 1 on each channel, over all consumers and gets."""

    def __init__(self, context: ChannelContext, publishing: Publishing) -> None:
        self._context = context
        self._publishing = publishing
        self._consumers: dict[str, Consumer] = {}
        self._reply_consumer: Consumer | None = None
        self._unacked = Unacked()
        self._in_transaction: list[Run] = []  # settled, but not committed
        self._last_tag = 0
        self._prefetch = 0  # of consumers to come
        self.shared_prefetch = 0  # of all consumers together; 0: no limit
        self._shared_unacked = 0

    @property
    def unacked_count(self) -> int:
        return self._unacked.count

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    def writer(self, tag: str) -> DeliveryWriter:
        context = self._context
        return DeliveryWriter(context.number, tag, context.frame_max_bytes)

    # Consumers --------------------------------------------------------------------------------------

    def consume(self, method: BasicConsume) -> None:
        context = self._context
        if method.consumer_tag in self._consumers:
            raise not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
        limit = context.limits.max_consumers
        if len(self._consumers) >= limit:
            raise not_allowed(f"reached maximum ({limit}) of consumers per channel")
        is_reply = method.queue == REPLY_TO
        if is_reply:
            self._check_reply_consumer(method)
        else:
            context.authorize(Permission.READ, "queue", method.queue)
        consumer = self._new_consumer(method, is_reply=is_reply)
        self._consumers[consumer.tag] = consumer

        def subscribed(_: object) -> None:
            if is_reply:
                self._reply_consumer = consumer
                self._publishing.reply_queue = consumer.queue
            if not method.nowait:
                context.send(BasicConsumeOk(consumer.tag))

        context.ask(lambda reply: context.backend.subscribe(consumer, reply), subscribed)

    def _check_reply_consumer(self, method: BasicConsume) -> None:
        if not method.no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        if self._reply_consumer is not None:
            raise precondition_failed("reply consumer already set")

    def _new_consumer(self, method: BasicConsume, *, is_reply: bool) -> Consumer:
        fresh_id = self._context.fresh_id
        wanted = BasicConsume(
            queue=fresh_id(f"{REPLY_TO}.") if is_reply else method.queue,
            consumer_tag=method.consumer_tag or fresh_id(TAG_PREFIX),
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=method.arguments,
        )
        return Consumer(self, self._context.session, wanted, self._prefetch)

    def cancel(self, method: BasicCancel) -> None:
        """Cancel a consumer. Cancelling an unknown one is no error."""
        consumer = self._consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self._unsubscribe(consumer)
        if not method.nowait:
            self._context.send(BasicCancelOk(method.consumer_tag))

    def queue_is_gone(self, consumer: Consumer) -> None:
        """Forget a consumer and its deliveries, and tell clients that understand it."""
        if self._consumers.get(consumer.tag) is not consumer:
            return
        del self._consumers[consumer.tag]
        self._forget_reply_consumer(consumer)
        if self._context.notifies_cancel:
            self._context.send(BasicCancel(consumer.tag, nowait=True))

    def recheck_permissions(self) -> None:
        """Cancel the consumers of queues that the user may no longer read."""
        session = self._context.session
        for consumer in list(self._consumers.values()):
            if consumer is self._reply_consumer:
                continue
            if not session.user.may(Permission.READ, session.vhost, "queue", consumer.queue):
                self._context.backend.unsubscribe(consumer)
                self.queue_is_gone(consumer)

    def _unsubscribe(self, consumer: Consumer) -> None:
        self._context.backend.unsubscribe(consumer)
        self._forget_reply_consumer(consumer)

    def _forget_reply_consumer(self, consumer: Consumer) -> None:
        if consumer is self._reply_consumer:
            self._reply_consumer = self._publishing.reply_queue = None

    # Deliveries -------------------------------------------------------------------------------------

    def credit_of(self, consumer: Consumer) -> int:
        context = self._context
        if not context.link.is_writable:
            return 0
        credit = context.limits.unlimited_prefetch
        if not consumer.no_ack:
            if consumer.prefetch:
                credit = min(credit, consumer.prefetch - consumer.unacked)
            if self.shared_prefetch:
                credit = min(credit, self.shared_prefetch - self._shared_unacked)
        return max(0, credit)

    def deliver(
        self, consumer: Consumer, writer: DeliveryWriter, deliveries: Sequence[Delivered]
    ) -> None:
        out = self._context.out
        size_bytes = 0
        for position, message, redelivered in deliveries:
            size_bytes += len(message.body) + len(message.properties)
            self._last_tag += 1
            if not consumer.no_ack:
                self._unacked.add(self._last_tag, consumer, position)
            writer.write(
                out,
                self._last_tag,
                redelivered=redelivered,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=message.properties,
                body=message.body,
            )
        if not consumer.no_ack:
            consumer.unacked += len(deliveries)
            self._shared_unacked += len(deliveries)
        self._context.link.delivered(size_bytes)

    def get(self, method: BasicGet) -> None:
        context = self._context
        context.authorize(Permission.READ, "queue", method.queue)
        getter = Getter(context.session, method.queue, method.no_ack)

        def got(result: object) -> None:
            if result is None:
                context.send(BasicGetEmpty())
            else:
                assert isinstance(result, Got)
                self._send_got(getter, result)

        def give_back(result: object) -> None:
            if isinstance(result, Got) and not getter.no_ack:
                position = result.delivered.position
                spans = [(position, position + 1)]
                context.backend.settle(Settlement(getter, spans, Outcome.FAIL))

        context.ask(lambda reply: context.backend.get(getter, reply), got, give_back)

    def _send_got(self, getter: Getter, got: Got) -> None:
        position, message, redelivered = got.delivered
        self._last_tag += 1
        if not getter.no_ack:
            self._unacked.add(self._last_tag, getter, position)
        method = BasicGetOk(
            self._last_tag, redelivered, message.exchange, message.routing_key, got.ready_left
        )
        self._context.send_content(method, message.properties, message.body)

    def wake_all(self) -> None:
        """Ask for deliveries to all consumers: credit grew for a reason that concerns them all."""
        for consumer in list(self._consumers.values()):
            self._context.backend.wake(consumer)

    # Acknowledgements -------------------------------------------------------------------------------

    def acknowledge(self, first_tag: int, last_tag: int, *, multiple: bool) -> None:
        """Accept a run of deliveries, as neighbouring basic.acks name them."""
        try:
            runs = self._unacked.take(first_tag, last_tag, multiple=multiple)
        except AmqpError:  # up to the unknown tag each ack counts
            for tag in range(first_tag, last_tag):
                self.settle(tag, Outcome.ACCEPT, multiple=False)
            raise
        self._settle(runs, Outcome.ACCEPT)

    def settle(self, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        self._settle(self._unacked.take(tag, tag, multiple=multiple), outcome)

    def recover(self, method: BasicRecover | BasicRecoverAsync) -> None:
        """Return all unacknowledged deliveries to their queues."""
        if not method.requeue:
            raise not_implemented("requeue=false")
        if isinstance(method, BasicRecover):  # before what is delivered again
            self._context.send(BasicRecoverOk())
        self._apply(self._unacked.take_all(), Outcome.RETURN)

    def set_prefetch(self, method: BasicQos) -> None:
        if method.prefetch_size:
            raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.shared_prefetch = method.prefetch_count
        else:
            self._prefetch = method.prefetch_count
        self._context.send(BasicQosOk())
        self.wake_all()

    def commit(self) -> None:
        """Forget the deliveries that a transaction settled: it is committed."""
        runs, self._in_transaction = self._in_transaction, []
        self._wake(self._free(runs))

    def roll_back(self) -> None:
        """Make what the transaction settled unacknowledged again."""
        self._unacked.restore(self._in_transaction)
        self._in_transaction = []

    def close(self) -> None:
        """End all consumers. What they hold goes back to the queues, as failed."""
        for consumer in self._consumers.values():
            self._context.backend.unsubscribe(consumer)
        self._consumers.clear()
        self._reply_consumer = self._publishing.reply_queue = None
        self._unacked.restore(self._in_transaction)
        self._in_transaction = []
        for settlement in _settlements(self._unacked.take_all(), Outcome.FAIL):
            self._context.backend.settle(settlement)

    def _settle(self, runs: list[Run], outcome: Outcome) -> None:
        transaction: Transaction | None = self._publishing.transaction
        if transaction is not None:
            transaction.settlements += _settlements(runs, outcome)
            self._in_transaction += runs
        else:
            self._apply(runs, outcome)

    def _apply(self, runs: list[Run], outcome: Outcome) -> None:
        for settlement in _settlements(self._free(runs), outcome):
            self._context.backend.settle(settlement)
        self._wake(runs)

    def _wake(self, runs: list[Run]) -> None:
        """Ask for deliveries to the consumers whose credit grew."""
        if self.shared_prefetch:
            self.wake_all()
            return
        for receiver in {run.receiver: None for run in runs}:
            if isinstance(receiver, Consumer) and self._consumers.get(receiver.tag) is receiver:
                self._context.backend.wake(receiver)

    def _free(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            receiver = run.receiver
            if isinstance(receiver, Consumer):
                receiver.unacked -= run.size
                self._shared_unacked -= run.size
        return runs


def _settlements(runs: Iterable[Run], outcome: Outcome) -> list[Settlement]:
    """Group runs by receiver. Positions that follow each other are joined."""
    spans: dict[object, list[Span]] = {}
    receivers = {}
    for run in runs:
        receivers[run.receiver] = run.receiver
        found = spans.setdefault(run.receiver, [])
        if found and found[-1][1] == run.first_position:
            found[-1] = found[-1][0], run.end_position
        else:
            found.append((run.first_position, run.end_position))
    return [Settlement(receiver, spans[receiver], outcome) for receiver in receivers.values()]
