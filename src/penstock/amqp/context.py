"""What the parts of a channel share: its number, its session, its limits, and how to send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from penstock.amqp.backend import Backend, FreshId, Permission, Reply, Session
from penstock.amqp.failures import access_refused, describe
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.frames import content_frames
from penstock.wire.amqp.method import Method

_MAX_GRANTED: Final = 1000


class ChannelLimits(NamedTuple):
    """Limits of one channel."""

    max_message_bytes: int = 16 * 1024 * 1024
    max_consumers: int = 1000
    max_transaction_messages: int = 10_000
    max_transaction_bytes: int = 64 * 1024 * 1024
    unlimited_prefetch: int = 1000  # messages ahead of a consumer without a limit


class ConfirmSource(Protocol):
    """A channel with confirms to send."""

    def send_confirms(self) -> None: ...


class Link(Protocol):
    """What channels need of their connection."""

    @property
    def is_writable(self) -> bool:
        """True if the client reads what it is sent, and not too much waits to be sent."""
        ...

    def delivered(self, size_bytes: int) -> None:
        """Count what is to be sent."""
        ...

    @property
    def is_blocked(self) -> bool:
        """True while the broker accepts no messages."""
        ...

    def published(self, size_bytes: int) -> None:
        """Count a message that waits for its confirm."""
        ...

    def resolved(self, size_bytes: int) -> None:
        """Count a message that no longer waits."""
        ...

    def publish_while_blocked(self) -> None:
        """Tell the client why its messages are not accepted."""
        ...

    def hold_publish(self) -> None:
        """The same for a publish that waits: the connection is not read meanwhile."""
        ...

    def wait(self, size_bytes: int) -> None:
        """Count bytes that wait for the backend's answer; negative when they do no longer."""
        ...

    def confirms_added(self, source: ConfirmSource) -> None:
        """Have `send_confirms` called before the next output is taken."""
        ...

    def output_added(self) -> None:
        """Note that there is something to send."""
        ...

    def channel_closed(self, number: int) -> None:
        """Forget a channel."""
        ...

    def fail(self, error: AmqpError, method: type[Method]) -> None:
        """End the connection."""
        ...


class Ask(Protocol):
    """Starts a call of the backend. Until the reply the channel handles nothing else.

    `finish` gets the result; an error closes the channel. `late` gets a result that comes after the
    channel is closed.
    """

    def __call__(
        self,
        start: Callable[[Reply[Any]], None],
        finish: Callable[[Any], None],
        late: Callable[[Any], None] | None = None,
    ) -> None: ...


@dataclass(slots=True, eq=False)
class ChannelContext:
    """Not thread-safe. `ask` belongs to the channel."""

    number: int
    session: Session
    backend: Backend
    link: Link
    limits: ChannelLimits
    frame_max_bytes: int
    notifies_cancel: bool  # the client understands a basic.cancel from the broker
    fresh_id: FreshId
    out: list[bytes | memoryview]  # of the whole connection
    last_queue: str = ""  # the queue that was declared last on this channel
    ask: Ask = field(init=False)
    _granted: set[tuple[Permission, str, str]] = field(default_factory=set)

    def send(self, method: Method) -> None:
        self.out.append(encode_method(self.number, method))
        self.link.output_added()

    def send_content(self, method: Method, properties: bytes, body: bytes) -> None:
        self.out.append(encode_method(self.number, method))
        self.out += content_frames(self.number, properties, body, self.frame_max_bytes)
        self.link.delivered(len(body))

    def authorize(self, permission: Permission, kind: str, name: str) -> None:
        """Raise ACCESS_REFUSED if the user lacks a permission. What was granted is remembered."""
        wanted = permission, kind, name
        if wanted in self._granted:
            return
        session = self.session
        shown = "amq.default" if kind == "exchange" and not name else name
        if not session.user.may(permission, session.vhost, kind, shown):
            resource = describe(kind, shown, session.vhost)
            raise access_refused(
                f"{permission} access to {resource} refused for user '{session.user.name}'"
            )
        if len(self._granted) >= _MAX_GRANTED:
            self._granted.clear()
        self._granted.add(wanted)

    def forget_permissions(self) -> None:
        self._granted.clear()
