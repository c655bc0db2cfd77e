"""A channel as a state machine: frames and answers in, frames out.

A method that needs the backend's answer stops the channel: what comes after it waits in order. After an
error the channel sends channel.close and ignores everything until channel.close-ok.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from penstock.amqp.backend import Outcome, Reply
from penstock.amqp.consuming import Consuming
from penstock.amqp.content import Assembled, Content, ContentAssembler
from penstock.amqp.context import ChannelContext
from penstock.amqp.declaring import Declaring
from penstock.amqp.failures import not_implemented
from penstock.amqp.publishing import Publishing
from penstock.wire.amqp.acks import AckRun
from penstock.wire.amqp.connection_methods import (
    AccessRequest,
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.frames import Frame
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ConfirmSelect,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from penstock.wire.amqp.publishes import Published, PublishReader


class ChannelState(Enum):
    STARTING = "starting"  # before channel.open
    OPEN = "open"
    CLOSING = "closing"  # channel.close was sent
    CLOSED = "closed"


class Channel:
    """Not thread-safe. Raises AmqpError only for frames that do not fit together."""

    def __init__(self, context: ChannelContext) -> None:
        self.state = ChannelState.STARTING
        self.reader = PublishReader(context.number)
        self._context = context
        context.ask = self._ask
        self._assembler = ContentAssembler(context.limits.max_message_bytes)
        self._publishing = Publishing(context)
        self._consuming = Consuming(context, self._publishing)
        self._declaring = Declaring(context)
        self._waiting: deque[Assembled] = deque()  # until the backend has answered
        self._is_asking = False
        self._is_handling = False
        self._current: type[Method] = ChannelOpen  # the method that is handled

    @property
    def number(self) -> int:
        return self._context.number

    @property
    def unacked_count(self) -> int:
        return self._consuming.unacked_count

    @property
    def unconfirmed_count(self) -> int:
        return self._publishing.unconfirmed

    @property
    def consumer_count(self) -> int:
        return self._consuming.consumer_count

    @property
    def takes_fast_paths(self) -> bool:
        """True if the next frames can be read by `reader` and `read_acks`."""
        return self.state is ChannelState.OPEN and self._assembler.method is None

    @property
    def collected_bytes(self) -> int:
        """Return the size of an incomplete body."""
        return self._assembler.collected_bytes

    # What comes from the client ---------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        assembled = self._assembler.add(frame)
        if assembled is not None:
            self._handle(assembled)

    def receive_published(self, published: Published) -> None:
        """Handle a message that was read at once. The channel must take fast paths."""
        method, properties, body = published
        content = Content(properties, body, len(body))
        if self._waiting or self._is_asking or self._context.link.is_blocked:
            self._handle(Assembled(method, content))
            return
        try:
            self._publishing.publish(method, content)
        except AmqpError as error:
            self._fail(error, BasicPublish)

    def receive_acks(self, run: AckRun) -> None:
        first_tag, last_tag, multiple = run
        if self._waiting or self._is_asking:
            for tag in range(first_tag, last_tag + 1):
                self._handle(Assembled(BasicAck(tag, multiple), None))
            return
        try:
            self._consuming.acknowledge(first_tag, last_tag, multiple=multiple)
        except AmqpError as error:
            self._fail(error, BasicAck)

    def _handle(self, assembled: Assembled) -> None:
        if not self._is_handling and not self._waiting and not self._must_wait(assembled):
            self._handle_now(assembled)
        else:
            self._waiting.append(assembled)
            self._context.link.wait(_size(assembled))

    def _handle_now(self, assembled: Assembled) -> None:
        method, content = assembled
        self._current = type(method)
        self._is_handling = True
        try:
            self._step(method, content)
        except AmqpError as error:
            self._fail(error, self._current)
        finally:
            self._is_handling = False
        self._handle_waiting()

    def _handle_waiting(self) -> None:
        while self._waiting and not self._is_handling and not self._must_wait(self._waiting[0]):
            assembled = self._waiting.popleft()
            self._context.link.wait(-_size(assembled))
            self._handle_now(assembled)
        if self.state is ChannelState.CLOSED:
            self._context.link.channel_closed(self.number)

    def _must_wait(self, assembled: Assembled) -> bool:
        if self.state is not ChannelState.OPEN:
            return False
        if self._is_asking:
            return True
        link, method = self._context.link, assembled.method
        if isinstance(method, BasicGet):  # or a read full of them would fill the output
            return not link.is_writable
        if isinstance(method, BasicPublish) and link.is_blocked:
            if self._publishing.waits_while_blocked:
                link.hold_publish()
            return self._publishing.waits_while_blocked
        return False

    def _step(self, method: Method, content: Content | None) -> None:
        if self.state is ChannelState.OPEN:
            if content is not None:
                self._step_with_content(method, content)
            elif not self._step_basic(method) and not self._step_channel(method):
                self._declaring.handle(method)
        elif self.state is ChannelState.STARTING:
            if not isinstance(method, ChannelOpen):
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            self.state = ChannelState.OPEN
            self._context.send(ChannelOpenOk())
        elif isinstance(method, ChannelCloseOk):
            self.state = ChannelState.CLOSED
        elif isinstance(method, ChannelClose):  # both sides closed at the same time
            self._context.send(ChannelCloseOk())

    def _step_with_content(self, method: Method, content: Content) -> None:
        if not isinstance(method, BasicPublish):
            raise AmqpError(ReplyCode.COMMAND_INVALID, "unimplemented method")
        self._publishing.publish(method, content)

    def _step_basic(self, method: Method) -> bool:
        """Handle methods of class basic. Return `False` if it is none of them."""
        consuming = self._consuming
        match method:
            case BasicAck():
                tag = method.delivery_tag
                consuming.acknowledge(tag, tag, multiple=method.multiple)
            case BasicNack():
                outcome = Outcome.RETURN if method.requeue else Outcome.REJECT
                consuming.settle(method.delivery_tag, outcome, multiple=method.multiple)
            case BasicReject():
                outcome = Outcome.FAIL if method.requeue else Outcome.REJECT
                consuming.settle(method.delivery_tag, outcome, multiple=False)
            case BasicGet():
                consuming.get(self._declaring.expand_queue(method))
            case BasicConsume():
                consuming.consume(self._declaring.expand_queue(method))
            case BasicCancel():
                consuming.cancel(method)
            case BasicCancelOk():
                pass  # the answer to a basic.cancel of ours
            case BasicQos():
                consuming.set_prefetch(method)
            case BasicRecover() | BasicRecoverAsync():
                consuming.recover(method)
            case _:
                return False
        return True

    def _step_channel(self, method: Method) -> bool:
        """Handle methods of classes channel, confirm, tx and access. Return `False` for others."""
        send = self._context.send
        match method:
            case ConfirmSelect():
                self._publishing.select_confirms(method)
            case TxSelect():
                self._publishing.select_transactions()
            case TxCommit():
                self._commit()
            case TxRollback():
                self._publishing.take_transaction()
                self._consuming.roll_back()
                send(TxRollbackOk())
            case ChannelFlow(active=True):
                send(ChannelFlowOk(active=True))
            case ChannelFlow():
                raise not_implemented("active=false")
            case ChannelClose():
                self._publishing.send_confirms()
                self._release()
                self.state = ChannelState.CLOSED
                send(ChannelCloseOk())
            case ChannelOpen():
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
            case AccessRequest():
                send(AccessRequestOk())
            case _:
                return False
        return True

    def _commit(self) -> None:
        context = self._context
        transaction = self._publishing.take_transaction()

        def committed(_: object) -> None:
            self._consuming.commit()
            context.send(TxCommitOk())

        context.ask(
            lambda reply: context.backend.commit(
                context.session, transaction.publications, transaction.settlements, reply
            ),
            committed,
        )

    # The backend ------------------------------------------------------------------------------------

    def _ask(
        self,
        start: Callable[[Reply[Any]], None],
        finish: Callable[[Any], None],
        late: Callable[[Any], None] | None = None,
    ) -> None:
        method = self._current
        self._is_asking = True

        def reply(result: Any) -> None:
            if self.state is not ChannelState.OPEN:
                if late is not None:
                    late(result)
                return
            assert self._is_asking, "the backend answers once"
            self._is_asking = False
            if isinstance(result, AmqpError):
                self._fail(result, method)
            else:
                finish(result)
            self._context.link.output_added()
            self._handle_waiting()

        start(reply)

    # What the connection tells ------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue after the connection was unblocked, or can be sent to again."""
        self._handle_waiting()
        if self.state is ChannelState.OPEN:
            self._consuming.wake_all()

    def recheck_permissions(self) -> None:
        """Drop what the user may no longer do."""
        self._context.forget_permissions()
        if self.state is ChannelState.OPEN:
            self._consuming.recheck_permissions()

    def terminate(self) -> None:
        """End the channel with its connection. Nothing is sent."""
        if self.state is ChannelState.OPEN:
            self._release()
        self.state = ChannelState.CLOSED
        while self._waiting:
            self._context.link.wait(-_size(self._waiting.popleft()))

    # Errors -----------------------------------------------------------------------------------------

    def _fail(self, error: AmqpError, method: type[Method]) -> None:
        """Close the channel, or the connection if the error ends that."""
        if error.code.closes_connection:
            self._context.link.fail(error, method)
            return
        if self.state is not ChannelState.OPEN:
            return
        class_id, method_id = method.index >> 16, method.index & 0xFFFF
        self._publishing.send_confirms()
        self._release()
        self.state = ChannelState.CLOSING
        self._context.send(ChannelClose(error.code, error.reply_text, class_id, method_id))

    def _release(self) -> None:
        self._consuming.close()
        self._publishing.close()
        self._is_asking = False


def _size(assembled: Assembled) -> int:
    content = assembled.content
    return 64 if content is None else 64 + len(content.body) + len(content.properties)
