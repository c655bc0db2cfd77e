"""What connections and channels need of the broker: two narrow protocols, and what passes through them.

Calls never block. An answer is given to the `reply` of the call, at once or later. Before it replies
to `subscribe`, a backend delivers nothing to that receiver; after `unsubscribe` it delivers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.tables import FieldTable

_Result = TypeVar("_Result", contravariant=True)
Span: TypeAlias = tuple[int, int]  # positions in a queue, from the first to one past the last


class Reply(Protocol[_Result]):
    def __call__(self, result: _Result | AmqpError) -> None: ...


class Permission(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class User(Protocol):
    """An authenticated client, and what it may do."""

    @property
    def name(self) -> str: ...

    def may_enter(self, vhost: str) -> bool: ...

    def may(self, permission: Permission, vhost: str, kind: str, name: str) -> bool: ...


@dataclass(slots=True, eq=False)
class Session:
    """One open connection. It owns the exclusive queues that it declared."""

    id: str
    user: User
    vhost: str


class Message(NamedTuple):
    """A message as consumers get it. `properties` are the bytes from the wire."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Delivered(NamedTuple):
    """A message that a receiver holds from now on."""

    position: int  # in the queue
    message: Message
    redelivered: bool


class Got(NamedTuple):
    """The answer of basic.get."""

    delivered: Delivered
    ready_left: int


class Outcome(Enum):
    """What becomes of delivered messages."""

    ACCEPT = "accept"
    REJECT = "reject"  # dead-lettered or dropped
    RETURN = "return"  # back to its place
    FAIL = "fail"  # back to its place, and counted as a failed delivery


class Receiver(Protocol):
    """Holds messages of one queue: a consumer, or basic.get on a channel."""

    @property
    def session(self) -> Session: ...

    @property
    def queue(self) -> str: ...

    @property
    def no_ack(self) -> bool: ...


class Subscriber(Receiver, Protocol):
    """A consumer. The backend delivers at most `credit` messages to it, in small batches: the credit
    also ends when too many bytes wait to be sent."""

    @property
    def tag(self) -> str: ...

    @property
    def exclusive(self) -> bool: ...

    @property
    def arguments(self) -> FieldTable: ...

    @property
    def shares_prefetch(self) -> bool:
        """True if the channel has a prefetch limit for all of its consumers."""
        ...

    @property
    def credit(self) -> int: ...

    def deliver(self, deliveries: Sequence[Delivered]) -> None: ...

    def cancel(self) -> None:
        """End the subscription: the queue is gone."""
        ...


class Publisher(Protocol):
    """Learns what became of publications. `returned` comes before `confirmed`."""

    def returned(self, publication: Publication) -> None: ...

    def confirmed(self, publication: Publication) -> None: ...

    def rejected(self, publication: Publication) -> None: ...


class Publication(NamedTuple):
    message: RoutedMessage
    body: bytes
    mandatory: bool
    number: int  # of this publisher, from 1
    publisher: Publisher


class Settlement(NamedTuple):
    receiver: Receiver
    spans: Sequence[Span]
    outcome: Outcome


class Administration(Protocol):
    """Virtual hosts, exchanges, queues and bindings."""

    def has_vhost(self, vhost: str) -> bool: ...

    def administer(self, session: Session, method: Method, reply: Reply[Method]) -> None:
        """Do what a method of class exchange or queue requests. Reply with its `-ok` method.

        Shortcuts are expanded and permissions are checked. `nowait` has no effect here.
        """
        ...

    def leave(self, session: Session) -> None:
        """Delete what the session owns."""
        ...


class QueueClient(Protocol):
    """Publishing to exchanges and receiving from queues."""

    def check_publish(self, session: Session, exchange: str) -> None:
        """Raise AmqpError if a client cannot publish to this exchange."""
        ...

    def publish(self, session: Session, publication: Publication) -> None:
        """Publish, and tell the publisher what became of it. Raises AmqpError for too many queues."""
        ...

    def commit(
        self,
        session: Session,
        publications: Sequence[Publication],
        settlements: Sequence[Settlement],
        reply: Reply[None],
    ) -> None:
        """Publish and settle together. Publishers are not told of confirms, only of returns."""
        ...

    def subscribe(self, subscriber: Subscriber, reply: Reply[None]) -> None: ...

    def unsubscribe(self, subscriber: Subscriber) -> None: ...

    def get(self, receiver: Receiver, reply: Reply[Got | None]) -> None: ...

    def settle(self, settlement: Settlement) -> None: ...

    def wake(self, subscriber: Subscriber) -> None:
        """Deliver, because the credit of a subscriber grew."""
        ...


class Backend(Administration, QueueClient, Protocol):
    """Both, as a connection gets them."""


class Unrestricted:
    """A user who may do everything: what there is while the store has no users."""

    def __init__(self, name: str) -> None:
        self.name = name

    def may_enter(self, vhost: str) -> bool:  # noqa: ARG002
        return True

    def may(self, permission: Permission, vhost: str, kind: str, name: str) -> bool:  # noqa: ARG002
        return True


FreshId: TypeAlias = Callable[[str], str]  # makes a name that begins with a prefix and is unique
