"""A backend that answers some time later, in any order between channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from penstock.amqp.backend import (
    Got,
    Publication,
    Receiver,
    Reply,
    Session,
    Settlement,
    Subscriber,
)
from penstock.amqp.memory.broker import MemoryBroker
from penstock.wire.amqp.method import Method


class _Waiting(NamedTuple):
    owner: object  # the session, or the subscriber
    do: Callable[[], None]


class LazyBroker:
    """Implements `Backend` by one in memory. `work` does some of what waits."""

    def __init__(self, broker: MemoryBroker, random: Random) -> None:
        self._broker = broker
        self._random = random
        self._waiting: list[_Waiting] = []

    def work(self, *, everything: bool = False) -> None:
        while self._waiting and (everything or self._random.random() < 0.6):
            at = self._random.randrange(min(3, len(self._waiting)))
            self._waiting.pop(at).do()

    def has_vhost(self, vhost: str) -> bool:
        return self._broker.has_vhost(vhost)

    def administer(self, session: Session, method: Method, reply: Reply[Method]) -> None:
        self._later(session, lambda: self._broker.administer(session, method, reply))

    def leave(self, session: Session) -> None:
        self._forget(session)
        self._broker.leave(session)

    def check_publish(self, session: Session, exchange: str) -> None:
        self._broker.check_publish(session, exchange)

    def publish(self, session: Session, publication: Publication) -> None:
        self._later(None, lambda: self._broker.publish(session, publication))

    def commit(
        self,
        session: Session,
        publications: Sequence[Publication],
        settlements: Sequence[Settlement],
        reply: Reply[None],
    ) -> None:
        self._later(None, lambda: self._broker.commit(session, publications, settlements, reply))

    def subscribe(self, subscriber: Subscriber, reply: Reply[None]) -> None:
        self._later(subscriber, lambda: self._broker.subscribe(subscriber, reply))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._forget(subscriber)
        self._broker.unsubscribe(subscriber)

    def get(self, receiver: Receiver, reply: Reply[Got | None]) -> None:
        self._later(None, lambda: self._broker.get(receiver, reply))

    def settle(self, settlement: Settlement) -> None:
        self._broker.settle(settlement)

    def wake(self, subscriber: Subscriber) -> None:
        self._broker.wake(subscriber)

    def _later(self, owner: Any, do: Callable[[], None]) -> None:
        self._waiting.append(_Waiting(owner, do))

    def _forget(self, owner: object) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting.owner is not owner]
