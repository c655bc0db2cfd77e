"""What channels need of their connection, and whether the connection may be read.

Reading stops while too many bytes wait for confirms or answers, while a publish waits for a blocked
broker, and while the client does not read what it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.amqp.context import ConfirmSource
from penstock.amqp.handshake import Handshake
from penstock.amqp.output import Output
from penstock.wire.amqp.connection_methods import ConnectionBlocked, ConnectionUnblocked
from penstock.wire.amqp.errors import MAX_TEXT_BYTES, AmqpError
from penstock.wire.amqp.method import Method

_RESUME_PART: Final = 2  # reading resumes at half of the limit


class ConnectionLink:
    """Invariant: while reading is off, something else turns it on: a confirm, an answer, `unblock`."""

    def __init__(
        self,
        output: Output,
        handshake: Handshake,
        on_failure: Callable[[AmqpError, type[Method] | None], None],
        on_channel_closed: Callable[[int], None],
        *,
        max_unconfirmed_bytes: int,
        max_output_bytes: int,
    ) -> None:
        self.is_socket_writable = True
        self.blocked_reason: str | None = None  # why the broker accepts no messages
        self.has_held_publish = False  # one without confirms, while the broker is blocked
        self._output = output
        self._handshake = handshake
        self._on_failure = on_failure
        self._on_channel_closed = on_channel_closed
        self._max_bytes = max_unconfirmed_bytes
        self._max_output_bytes = max_output_bytes
        self._output_bytes = 0  # of messages, since the output was taken
        self._used_bytes = 0
        self._is_full = False
        self._is_block_notified = False
        self._confirming: dict[ConfirmSource, None] = {}

    @property
    def is_blocked(self) -> bool:
        return self.blocked_reason is not None

    @property
    def is_writable(self) -> bool:
        return self.is_socket_writable and self._output_bytes < self._max_output_bytes

    def delivered(self, size_bytes: int) -> None:
        self._output_bytes += size_bytes
        self._output.announce()

    def output_taken(self) -> bool:
        """Return whether deliveries waited for it."""
        was_full = self._output_bytes >= self._max_output_bytes
        self._output_bytes = 0
        return was_full

    def may_read(self) -> bool:
        limit = self._max_bytes // _RESUME_PART if self._is_full else self._max_bytes
        self._is_full = self._used_bytes > limit
        return self.is_socket_writable and not self._is_full and not self.has_held_publish

    def published(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def resolved(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        if self._is_full:
            self._output.announce()

    def wait(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes
        if self._is_full:
            self._output.announce()

    def publish_while_blocked(self) -> None:
        if not self._is_block_notified and self._handshake.has_capability("connection.blocked"):
            self._is_block_notified = True
            reason = (self.blocked_reason or "").encode()[:MAX_TEXT_BYTES]
            self._output.send(ConnectionBlocked(reason.decode(errors="ignore")))

    def hold_publish(self) -> None:
        self.publish_while_blocked()
        self.has_held_publish = True

    def unblock(self) -> None:
        """Tell the client, if it was told of the block."""
        if self._is_block_notified:
            self._output.send(ConnectionUnblocked())
        self.blocked_reason = None
        self._is_block_notified = self.has_held_publish = False

    def confirms_added(self, source: ConfirmSource) -> None:
        self._confirming[source] = None
        self._output.announce()

    def send_confirms(self) -> None:
        confirming, self._confirming = self._confirming, {}
        for source in confirming:
            source.send_confirms()

    def output_added(self) -> None:
        self._output.announce()

    def channel_closed(self, number: int) -> None:
        self._on_channel_closed(number)

    def fail(self, error: AmqpError, method: type[Method]) -> None:
        self._on_failure(error, method)
