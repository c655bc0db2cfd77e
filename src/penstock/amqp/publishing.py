"""The publishing half of a channel: basic.publish, confirms, returns and transactions."""

from __future__ import annotations

from typing import Final

from penstock.amqp.backend import Permission, Publication, Settlement
from penstock.amqp.confirms import Confirms
from penstock.amqp.content import Content
from penstock.amqp.context import ChannelContext
from penstock.amqp.expiry import parse_expiration
from penstock.amqp.failures import (
    REPLY_TO,
    not_implemented,
    precondition_failed,
    resource_error,
)
from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.errors import ReplyCode
from penstock.wire.amqp.methods import (
    BasicNack,
    BasicPublish,
    BasicReturn,
    ConfirmSelect,
    ConfirmSelectOk,
    TxSelectOk,
)
from penstock.wire.amqp.properties import USER_ID_FLAG, decode_properties, encode_properties

_EXPIRATION_FLAG: Final = 1 << 8
_REPLY_TO_FLAG: Final = 1 << 9
_CHECKED_FLAGS: Final = USER_ID_FLAG | _EXPIRATION_FLAG | _REPLY_TO_FLAG


class Transaction:
    """What a channel published and settled since tx.select or the last commit."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.settlements: list[Settlement] = []
        self._publication_bytes = 0

    def publish(self, publication: Publication, max_messages: int, max_bytes: int) -> None:
        self._publication_bytes += len(publication.body)
        if len(self.publications) >= max_messages or self._publication_bytes > max_bytes:
            raise resource_error(
                f"transaction of {len(self.publications) + 1} messages and "
                f"{self._publication_bytes} bytes; the limits are {max_messages} messages and "
                f"{max_bytes} bytes"
            )
        self.publications.append(publication)


class Publishing:
    """Invariant: a channel confirms, is transactional, or neither."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self.transaction: Transaction | None = None
        self._confirms: Confirms | None = None
        self._number = 0  # of the last publication
        self._is_closed = False
        self.reply_queue: str | None = None  # of the consumer of direct replies on this channel

    @property
    def waits_while_blocked(self) -> bool:
        """True if publications must wait while the broker accepts none: they cannot be rejected."""
        return self._confirms is None

    @property
    def unconfirmed(self) -> int:
        return len(self._confirms) if self._confirms is not None else 0

    def publish(self, method: BasicPublish, content: Content) -> None:
        publication = self._check(method, content)
        context = self._context
        if self.transaction is not None:
            limits = context.limits
            self.transaction.publish(
                publication, limits.max_transaction_messages, limits.max_transaction_bytes
            )
            return
        if self._confirms is not None:
            if context.link.is_blocked:
                context.link.publish_while_blocked()
                context.send(BasicNack(publication.number, multiple=False, requeue=False))
                return
            self._confirms.open(publication.number)
        context.link.published(_size(publication))
        context.backend.publish(context.session, publication)

    def select_confirms(self, method: ConfirmSelect) -> None:
        if self.transaction is not None:
            raise precondition_failed("cannot switch from tx to confirm mode")
        if self._confirms is None:
            self._confirms = Confirms()
            self._number = 0
        if not method.nowait:
            self._context.send(ConfirmSelectOk())

    def select_transactions(self) -> None:
        if self._confirms is not None:
            raise precondition_failed("cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction()
        self._context.send(TxSelectOk())

    def take_transaction(self) -> Transaction:
        """Return the open transaction and begin the next one."""
        if self.transaction is None:
            raise precondition_failed("channel is not transactional")
        taken, self.transaction = self.transaction, Transaction()
        return taken

    def send_confirms(self) -> None:
        """Send what was confirmed since the last call. Called once a turn of the loop."""
        if self._confirms is not None and self._confirms.has_news:
            for method in self._confirms.take(self._number + 1):
                self._context.send(method)

    def close(self) -> None:
        """Forget the open confirms, and send nothing from now on."""
        self._is_closed = True
        self._confirms = self.transaction = None

    # Publisher --------------------------------------------------------------------------------------

    def returned(self, publication: Publication) -> None:
        if self._is_closed:
            return
        message = publication.message
        code = ReplyCode.NO_ROUTE
        method = BasicReturn(code, code.name, message.exchange, message.routing_key)
        self._context.send_content(method, message.properties_bytes, publication.body)

    def confirmed(self, publication: Publication) -> None:
        self._context.link.resolved(_size(publication))
        if self._confirms is not None:
            self._confirms.confirm(publication.number)
            self._context.link.confirms_added(self)

    def rejected(self, publication: Publication) -> None:
        self._context.link.resolved(_size(publication))
        if self._confirms is not None:
            self._confirms.reject(publication.number)
            self._context.link.confirms_added(self)

    # Checks -----------------------------------------------------------------------------------------

    def _check(self, method: BasicPublish, content: Content) -> Publication:
        """Return the publication, numbered, if the client may publish it."""
        context = self._context
        if method.immediate:
            raise not_implemented("immediate=true")
        limit = context.limits.max_message_bytes
        if content.body_bytes > limit:
            raise precondition_failed(
                f"message size {content.body_bytes} is larger than configured max size {limit}"
            )
        context.authorize(Permission.WRITE, "exchange", method.exchange)
        context.backend.check_publish(context.session, method.exchange)
        properties = content.properties
        if (properties[0] << 8 | properties[1]) & _CHECKED_FLAGS:
            properties = self._check_properties(properties)
        message = RoutedMessage(method.exchange, method.routing_key, properties, self._number)
        if message.has_extra_keys:
            message.routing_keys()
        self._number += 1
        return Publication(message, content.body, method.mandatory, self._number, self)

    def _check_properties(self, encoded: bytes) -> bytes:
        properties = decode_properties(encoded, 0, len(encoded))
        user = self._context.session.user.name
        if properties.user_id is not None and properties.user_id != user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}' but authenticated user was '{user}'"
            )
        if properties.expiration is not None:
            parse_expiration(properties.expiration)
        if properties.reply_to == REPLY_TO:
            if self.reply_queue is None:
                raise precondition_failed("fast reply consumer does not exist")
            properties.reply_to = self.reply_queue
            return encode_properties(properties)
        return encoded


def _size(publication: Publication) -> int:
    return len(publication.body) + len(publication.message.properties_bytes)
