"""The methods of classes exchange and queue: shortcuts, names and permissions, then the backend.

The queue that a channel declared last stands in for an empty queue name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from penstock.amqp.arguments import QueueType
from penstock.amqp.backend import Permission
from penstock.amqp.context import ChannelContext
from penstock.amqp.failures import (
    REPLY_TO,
    TYPE_NAMES,
    access_refused,
    check_not_default_exchange,
    check_not_reserved,
    describe,
    precondition_failed,
    strip_line_ends,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import (
    BasicConsume,
    BasicGet,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from penstock.wire.amqp.tables import FieldTable

GENERATED_PREFIX: Final = "amq.gen-"
ALTERNATE: Final = "alternate-exchange"
DEAD_LETTER: Final = "x-dead-letter-exchange"
CONFIGURE, WRITE, READ = Permission.CONFIGURE, Permission.WRITE, Permission.READ
_Named = TypeVar("_Named", BasicConsume, BasicGet, QueueDelete, QueuePurge)


class Declaring:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context

    def expand_queue(self, method: _Named) -> _Named:
        """Fill in the queue that was declared last, where a method names none."""
        return method if method.queue else replace(method, queue=self._last_queue())

    def handle(self, method: Method) -> None:
        """Check a method and pass it to the backend."""
        match method:
            case ExchangeDeclare():
                self._ask(self._exchange_declare(method), nowait=method.nowait)
            case ExchangeDelete():
                self._ask(self._exchange_delete(method), nowait=method.nowait)
            case ExchangeBind() | ExchangeUnbind():
                self._ask(self._exchange_bind(method), nowait=method.nowait)
            case QueueDeclare():
                self._ask(self._queue_declare(method), nowait=method.nowait)
            case QueueBind():
                self._ask(self._queue_bind(method), nowait=method.nowait)
            case QueueUnbind():
                self._ask(self._queue_bind(method), nowait=False)
            case QueuePurge():
                purge = self.expand_queue(method)
                self._context.authorize(READ, "queue", purge.queue)
                self._ask(purge, nowait=purge.nowait)
            case QueueDelete():
                delete = self.expand_queue(method)
                self._context.authorize(CONFIGURE, "queue", delete.queue)
                self._ask(delete, nowait=delete.nowait)
            case _:
                raise AmqpError(ReplyCode.COMMAND_INVALID, "unimplemented method")

    def _ask(self, method: Method, *, nowait: bool) -> None:
        context = self._context

        def done(answer: object) -> None:
            assert isinstance(answer, Method)
            if isinstance(answer, QueueDeclareOk):
                context.last_queue = answer.queue
            if not nowait:
                context.send(answer)

        context.ask(lambda reply: context.backend.administer(context.session, method, reply), done)

    # Exchanges --------------------------------------------------------------------------------------

    def _exchange_declare(self, method: ExchangeDeclare) -> ExchangeDeclare:
        name = strip_line_ends(method.exchange)
        check_not_default_exchange(name)
        if not method.passive:
            self._context.authorize(CONFIGURE, "exchange", name)
            self._authorize_target("exchange", name, method.arguments, ALTERNATE)
        return replace(method, exchange=name)

    def _exchange_delete(self, method: ExchangeDelete) -> ExchangeDelete:
        name = strip_line_ends(method.exchange)
        check_not_default_exchange(name)
        self._context.authorize(CONFIGURE, "exchange", name)
        return replace(method, exchange=name)

    def _exchange_bind(self, method: ExchangeBind | ExchangeUnbind) -> Method:
        source = strip_line_ends(method.source)
        destination = strip_line_ends(method.destination)
        self._context.authorize(WRITE, "exchange", destination)
        check_not_default_exchange(destination)
        check_not_default_exchange(source)
        self._context.authorize(READ, "exchange", source)
        return replace(method, source=source, destination=destination)

    # Queues -----------------------------------------------------------------------------------------

    def _queue_declare(self, method: QueueDeclare) -> QueueDeclare:
        name = strip_line_ends(method.queue)
        if method.passive or name.startswith(REPLY_TO):
            return replace(method, queue=name, passive=True)
        if name:
            check_not_reserved("queue", name)
        else:
            name = self._generated_name(method.arguments)
        self._context.authorize(CONFIGURE, "queue", name)
        self._authorize_target("queue", name, method.arguments, DEAD_LETTER)
        return replace(method, queue=name)

    def _generated_name(self, arguments: FieldTable) -> str:
        letter, kind = arguments.get("x-queue-type", ("S", QueueType.CLASSIC))
        if letter == "S" and kind == QueueType.STREAM:
            raise precondition_failed("Cannot declare a server-named queue for type stream")
        return self._context.fresh_id(GENERATED_PREFIX)

    def _queue_bind(self, method: QueueBind | QueueUnbind) -> Method:
        routing_key = method.routing_key
        if not method.queue and not routing_key:
            routing_key = self._last_queue()
        queue = strip_line_ends(method.queue or self._last_queue())
        exchange = strip_line_ends(method.exchange)
        if queue.startswith(REPLY_TO):
            raise access_refused("cannot bind or unbind to a volatile (direct reply-to) queue")
        self._context.authorize(WRITE, "queue", queue)
        check_not_default_exchange(exchange)
        self._context.authorize(READ, "exchange", exchange)
        return replace(method, queue=queue, exchange=exchange, routing_key=routing_key)

    def _last_queue(self) -> str:
        if not self._context.last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self._context.last_queue

    def _authorize_target(self, kind: str, name: str, arguments: FieldTable, key: str) -> None:
        """Check permissions for the exchange that an argument sends messages to."""
        if key not in arguments:
            return
        letter, target = arguments[key]
        if letter != "S":
            resource = describe(kind, name, self._context.session.vhost)
            raise precondition_failed(
                f"invalid type '{TYPE_NAMES[letter]}' for arg '{key}' in {resource}"
            )
        self._context.authorize(READ, kind, name)
        self._context.authorize(WRITE, "exchange", target)
