"""A backend that keeps everything in memory and answers at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.amqp.arguments import (
    QueueProperties,
    QueueType,
    check_consumer_arguments,
    check_queue_equivalent,
)
from penstock.amqp.backend import (
    Got,
    Publication,
    Receiver,
    Reply,
    Session,
    Settlement,
    Subscriber,
)
from penstock.amqp.failures import (
    REPLY_TO,
    access_refused,
    describe,
    locked,
    not_found,
    not_implemented,
    precondition_failed,
)
from penstock.amqp.memory.queue import MemoryQueue
from penstock.amqp.memory.vhost import MemoryLimits, MemoryVhost
from penstock.amqp.routing.bindings import Binding, exchange_named, queue_named
from penstock.amqp.routing.exchange import ExchangeProperties
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)


class MemoryBroker:
    """Implements `Backend`. `now_ms` is the wall clock, for times to live and delays."""

    def __init__(self, now_ms: Callable[[], int], limits: MemoryLimits | None = None) -> None:
        self._now_ms = now_ms
        self._limits = limits or MemoryLimits()
        self.vhosts: dict[str, MemoryVhost] = {}
        self.add_vhost("/")

    def add_vhost(self, name: str) -> MemoryVhost:
        vhost = self.vhosts[name] = MemoryVhost(name, self._limits)
        return vhost

    def advance(self) -> None:
        """Do what the time demands."""
        for vhost in self.vhosts.values():
            vhost.advance(self._now_ms())

    # Administration -----------------------------------------------------------------------------------

    def has_vhost(self, vhost: str) -> bool:
        return vhost in self.vhosts

    def administer(self, session: Session, method: Method, reply: Reply[Method]) -> None:
        vhost = self.vhosts[session.vhost]
        answer: Method | AmqpError
        try:
            if method.index >> 16 == ExchangeDeclare.index >> 16:
                answer = self._administer_exchange(vhost, method)
            else:
                answer = self._administer_queue(vhost, session, method)
        except AmqpError as error:
            answer = error
        reply(answer)

    def leave(self, session: Session) -> None:
        vhost = self.vhosts[session.vhost]
        for queue in list(vhost.queues.values()):
            if queue.owner is session:
                vhost.delete_queue(queue)

    def _administer_exchange(self, vhost: MemoryVhost, method: Method) -> Method:
        topology = vhost.topology
        match method:
            case ExchangeDeclare(passive=True):
                topology.exchange(method.exchange)
                return ExchangeDeclareOk()
            case ExchangeDeclare():
                properties = ExchangeProperties(
                    method.type,
                    method.durable,
                    method.auto_delete,
                    method.internal,
                    method.arguments,
                )
                exchange = topology.declare_exchange(method.exchange, properties)
                policy = vhost.policies.effective(exchange.name, None).definition
                topology.set_policy(exchange.name, policy)
                return ExchangeDeclareOk()
            case ExchangeDelete():
                topology.delete_exchange(method.exchange, if_unused=method.if_unused)
                return ExchangeDeleteOk()
            case ExchangeBind() | ExchangeUnbind():
                destination = exchange_named(method.destination)
                binding = Binding(method.source, destination, method.routing_key, method.arguments)
                if isinstance(method, ExchangeBind):
                    topology.bind(binding)
                    return ExchangeBindOk()
                topology.unbind(binding)
                return ExchangeUnbindOk()
            case _:
                raise _unknown(method)

    def _administer_queue(self, vhost: MemoryVhost, session: Session, method: Method) -> Method:
        match method:
            case QueueDeclare():
                return self._declare_queue(vhost, session, method)
            case QueueBind() | QueueUnbind():
                if method.queue in vhost.queues:
                    vhost.queue(method.queue, session)
                destination = queue_named(method.queue)
                binding = Binding(
                    method.exchange, destination, method.routing_key, method.arguments
                )
                if isinstance(method, QueueBind):
                    vhost.topology.bind(binding)
                    return QueueBindOk()
                vhost.topology.unbind(binding)
                return QueueUnbindOk()
            case QueuePurge():
                return QueuePurgeOk(vhost.queue(method.queue, session).purge())
            case QueueDelete():
                return QueueDeleteOk(self._delete_queue(vhost, session, method))
            case _:
                raise _unknown(method)

    def _declare_queue(
        self, vhost: MemoryVhost, session: Session, method: QueueDeclare
    ) -> QueueDeclareOk:
        name = method.queue
        if name.startswith(REPLY_TO):
            if name not in vhost.replies:
                raise not_found("queue", name, vhost.name)
            return QueueDeclareOk(name, 0, 1)
        if method.passive:
            return _declared(vhost.queue(name, session))
        properties = QueueProperties(
            method.durable and not method.exclusive,
            method.exclusive,
            method.auto_delete,
            method.arguments,
        )
        owner = session if method.exclusive else None
        queue = vhost.queues.get(name)
        if queue is None:
            queue = vhost.make_queue(name, properties, owner, self._now_ms())
        else:
            if queue.owner is not owner:
                raise locked(name, vhost.name)
            check_queue_equivalent(name, properties, queue.properties, vhost.name)
            queue.used_ms = self._now_ms()
        return _declared(queue)

    def _delete_queue(self, vhost: MemoryVhost, session: Session, method: QueueDelete) -> int:
        if method.queue not in vhost.queues:
            return 0
        queue = vhost.queue(method.queue, session)
        resource = describe("queue", queue.name, vhost.name)
        if method.if_unused and len(queue.dispatcher):
            raise precondition_failed(f"{resource} in use")
        if method.if_empty and queue.message_count:
            raise precondition_failed(f"{resource} not empty")
        return vhost.delete_queue(queue)

    # Publishing ---------------------------------------------------------------------------------------

    def check_publish(self, session: Session, exchange: str) -> None:
        self.vhosts[session.vhost].topology.check_publish(exchange)

    def publish(self, session: Session, publication: Publication) -> None:
        if self.vhosts[session.vhost].publish(publication, self._now_ms()):
            publication.publisher.confirmed(publication)
        else:
            publication.publisher.rejected(publication)

    def commit(
        self,
        session: Session,
        publications: Sequence[Publication],
        settlements: Sequence[Settlement],
        reply: Reply[None],
    ) -> None:
        vhost = self.vhosts[session.vhost]
        answer: AmqpError | None = None
        for publication in publications:
            try:
                if not vhost.publish(publication, self._now_ms()):
                    answer = answer or precondition_failed("partial tx completion")
            except AmqpError as error:
                answer = error
        for settlement in settlements:
            self.settle(settlement)
        reply(answer)

    # Receiving ----------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber, reply: Reply[None]) -> None:
        vhost = self.vhosts[subscriber.session.vhost]
        if subscriber.queue.startswith(REPLY_TO):
            vhost.replies[subscriber.queue] = subscriber
            reply(None)
            return
        try:
            queue = vhost.queue(subscriber.queue, subscriber.session)
            _check_subscription(queue, subscriber, vhost.name)
        except AmqpError as error:
            reply(error)
            return
        queue.subscribe(subscriber)
        reply(None)
        queue.dispatch(self._now_ms())
        vhost.bury(self._now_ms())

    def unsubscribe(self, subscriber: Subscriber) -> None:
        vhost = self.vhosts[subscriber.session.vhost]
        vhost.replies.pop(subscriber.queue, None)
        queue = vhost.queues.get(subscriber.queue)
        if queue is None or not queue.dispatcher.remove(subscriber):
            return
        queue.used_ms = self._now_ms()
        if queue.properties.auto_delete and not len(queue.dispatcher):
            vhost.delete_queue(queue)
        else:
            queue.dispatch(self._now_ms())

    def get(self, receiver: Receiver, reply: Reply[Got | None]) -> None:
        vhost = self.vhosts[receiver.session.vhost]
        result: Got | AmqpError | None
        try:
            queue = vhost.queue(receiver.queue, receiver.session)
            _check_get(queue, vhost.name)
            result = queue.get(receiver, self._now_ms())
        except AmqpError as error:
            result = error
        reply(result)
        vhost.bury(self._now_ms())

    def settle(self, settlement: Settlement) -> None:
        receiver, spans, outcome = settlement
        vhost = self.vhosts[receiver.session.vhost]
        queue = vhost.queues.get(receiver.queue)
        if queue is not None:
            queue.settle(receiver, spans, outcome)
            queue.dispatch(self._now_ms())
            vhost.bury(self._now_ms())

    def wake(self, subscriber: Subscriber) -> None:
        vhost = self.vhosts[subscriber.session.vhost]
        queue = vhost.queues.get(subscriber.queue)
        if queue is not None:
            queue.dispatch(self._now_ms())
            vhost.bury(self._now_ms())


def _declared(queue: MemoryQueue) -> QueueDeclareOk:
    return QueueDeclareOk(queue.name, queue.ready_count, len(queue.dispatcher))


def _check_subscription(queue: MemoryQueue, subscriber: Subscriber, vhost: str) -> None:
    resource = describe("queue", queue.name, vhost)
    kind = queue.properties.type
    check_consumer_arguments(queue.name, kind, subscriber.arguments, vhost)
    if kind is QueueType.QUORUM and subscriber.shares_prefetch:
        raise not_implemented(f"{resource} does not support global qos")
    if queue.dispatcher.has_exclusive or (subscriber.exclusive and len(queue.dispatcher)):
        raise access_refused(f"{resource} in exclusive use")


def _check_get(queue: MemoryQueue, vhost: str) -> None:
    if queue.properties.type is QueueType.QUORUM and queue.settings.single_active_consumer:
        raise AmqpError(
            ReplyCode.RESOURCE_LOCKED,
            f"cannot obtain access to locked {describe('queue', queue.name, vhost)}. basic.get "
            "operations are not supported by quorum queues with single active consumer",
        )


def _unknown(method: Method) -> AmqpError:
    return AmqpError(ReplyCode.COMMAND_INVALID, f"unimplemented method {method.name}")
