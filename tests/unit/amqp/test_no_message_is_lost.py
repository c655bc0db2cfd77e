"""Consumers that acknowledge, requeue, die and return: every message is settled exactly once."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.connection_methods import ChannelClose, ChannelOpen
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicReject,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tests.support.amqp_client import Client, World
from tests.support.seed import chosen_seed

MESSAGES: Final = 120


class Worker:
    """A client with one channel that remembers what it holds, as applications do."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.client = self._connect()

    def _connect(self) -> Client:
        self.held: dict[int, bytes] = {}
        self.unsure: dict[int, bytes] = {}  # acknowledged in an open transaction
        self.is_transactional = False
        return self.world.open(1)

    def step(self) -> list[bytes]:
        """Do one thing. Return the bodies that were settled for good."""
        random, client = self.random, self.client
        self.learn()  # what was delivered before recover or close is void after it
        kind = random.choice(
            ["consume"] * 3
            + ["get", "ack", "ack", "ack many", "nack", "reject", "recover", "cancel", "qos"]
            + ["close", "die", "tx", "commit", "roll back"]
        )
        settled: list[bytes] = []
        if kind == "consume":
            client.send(BasicConsume(queue="q", no_ack=False))
        elif kind == "get":
            client.send(BasicGet(queue="q"))
        elif kind == "qos":
            client.send(
                BasicQos(prefetch_count=random.choice([0, 1, 5]), global_=random.random() < 0.3)
            )
        elif kind == "recover":
            client.send(BasicRecover(requeue=True))
            self.held.clear()
        elif kind == "cancel":
            client.send(BasicCancel(f"amq.ctag-{random.randrange(40)}"))
        elif kind == "close":
            client.send(ChannelClose(200))
            client.send(ChannelOpen())
            client.take()
            client.received.clear()
            self.held, self.unsure, self.is_transactional = {}, {}, False
        elif kind == "die":
            client.connection.connection_lost()
            self.client = self._connect()
        elif kind == "tx" and random.random() < 0.2:
            client.send(TxSelect())
            self.is_transactional = True
        elif kind == "commit" and self.is_transactional:
            client.send(TxCommit())
            settled, self.unsure = list(self.unsure.values()), {}
        elif kind == "roll back" and self.is_transactional:
            client.send(TxRollback())
            self.held.update(self.unsure)
            self.unsure = {}
        elif self.held and kind in ("ack", "ack many", "nack", "reject"):
            settled = self._settle(kind)
        self.learn()
        return settled

    def _settle(self, kind: str) -> list[bytes]:
        tag = self.random.choice(list(self.held))
        many = kind == "ack many"
        tags = [each for each in sorted(self.held) if each <= tag] if many else [tag]
        bodies = {each: self.held.pop(each) for each in tags}
        if kind.startswith("ack"):
            self.client.send(BasicAck(tag, multiple=many))
            if not self.is_transactional:
                return list(bodies.values())
            self.unsure.update(bodies)
        elif not self.is_transactional:
            requeue: BasicNack | BasicReject = (
                BasicNack(tag, requeue=True) if kind == "nack" else BasicReject(tag, requeue=True)
            )
            self.client.send(requeue)
        else:
            self.held.update(bodies)
        return []

    def learn(self) -> None:
        self.client.take()
        for received in self.client.received:
            assert received.method.name not in ("channel.close", "connection.close"), received
            if isinstance(received.method, BasicDeliver | BasicGetOk):
                self.held[received.method.delivery_tag] = received.body
        self.client.received.clear()


@pytest.mark.parametrize("round_", range(25))
def test_every_message_is_settled_exactly_once(round_: int) -> None:
    random = Random(f"{chosen_seed()} {round_}")
    world = World(ConnectionSettings(max_output_bytes=random.choice([20, 1000, 1_000_000])))
    publisher = world.open()
    publisher.declare("q", {"x-max-priority": 3} if round_ % 2 else None)
    workers = [Worker(world, random) for _ in range(3)]
    published: list[bytes] = []
    settled: list[bytes] = []
    for step in range(600):
        if len(published) < MESSAGES and step % 3 == 0:
            body = b"%d" % len(published)
            published.append(body)
            publisher.publish("q", body, priority=random.choice([None, 1, 3]))
        settled += random.choice(workers).step()
        for worker in workers:
            worker.learn()
        check_holders(world, workers)
    for worker in workers:
        worker.client.connection.connection_lost()
    left = []
    while True:
        publisher.send(BasicGet(queue="q", no_ack=True))
        received = publisher.next()
        if not isinstance(received.method, BasicGetOk):
            break
        left.append(received.body)
    assert sorted(settled + left) == sorted(published)
    assert settled


def check_holders(world: World, workers: list[Worker]) -> None:
    """Check that what the workers hold is what the queue has given out, each message once."""
    queue = world.broker.vhosts["/"].queues["q"]
    held = [body for worker in workers for body in (*worker.held.values(), *worker.unsure.values())]
    assert len(held) == len(set(held))
    assert len(held) == queue.message_count - queue.ready_count
