"""Limits, late answers and changed permissions: what seldom happens."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.amqp.backend import Permission, Reply, Unrestricted, User
from penstock.amqp.credentials import Credentials, Peer
from penstock.amqp.memory.broker import MemoryBroker
from penstock.amqp.memory.vhost import MemoryLimits
from penstock.amqp.routing import router
from penstock.amqp.routing.exchange import Exchange, ExchangeProperties
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.topology import (
    Topology,
    TopologyLimits,
    exchange_binding,
    queue_binding,
)
from penstock.wire.amqp.connection_methods import (
    ChannelClose,
    ChannelCloseOk,
    ConnectionClose,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    ConfirmSelect,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxSelect,
    TxSelectOk,
)
from penstock.wire.amqp.tables import as_table
from tests.support.amqp_client import World
from tests.support.amqp_errors import refusal
from tests.support.amqp_lazy_broker import LazyBroker
from tests.unit.amqp.test_channel_consuming import consume
from tests.unit.amqp.test_channel_publishing import expect_channel_close, ready


class Revocable(Unrestricted):
    """May read what is not in `forbidden`, and enters every virtual host but `private`."""

    forbidden: frozenset[str] = frozenset()

    def may_enter(self, vhost: str) -> bool:
        return vhost != "private"

    def may(self, permission: Permission, vhost: str, kind: str, name: str) -> bool:
        del permission, vhost, kind
        return name not in self.forbidden


def revocable(credentials: Credentials, peer: Peer, reply: Reply[User]) -> None:
    del peer
    user = Revocable(credentials.name)
    if credentials.secret == b"weaker":
        user.forbidden = frozenset({"q", "amq.default"})
    reply(user)


def test_a_weaker_secret_cancels_consumers_and_forgets_permissions() -> None:
    world = World(check_credentials=revocable)
    client = world.open()
    client.declare("q")
    client.declare("r")
    consume(client, "q", "a")
    consume(client, "r", "b")
    consume(client, "amq.rabbitmq.reply-to", "c", no_ack=True)
    client.publish("q")
    client.names()
    client.send(ConnectionUpdateSecret(b"weaker", "why not"), 0)
    assert client.expect(BasicCancel).consumer_tag == "a"
    client.expect(ConnectionUpdateSecretOk, 0)
    client.publish("r")
    assert client.expect(ChannelClose).reply_code == 403


def test_a_vhost_may_be_closed_to_a_user() -> None:
    world = World(check_credentials=revocable)
    world.broker.add_vhost("private")
    client = world.connect()
    with pytest.raises(AssertionError):
        client.shake_hands(vhost="private")
    assert client.connection.handshake.state.value == "opening"
    assert client.raw.endswith(b"\xce")
    assert b"access to vhost 'private' refused for user 'guest'" in client.raw


def test_a_message_that_arrives_for_a_closed_channel_goes_back() -> None:
    world = World()
    lazy = LazyBroker(world.broker, Random(1))
    world.services = world.services._replace(backend=lazy)
    client = world.open(1, 2)
    client.send(QueueDeclare(queue="q"))
    lazy.work(everything=True)
    client.expect(QueueDeclareOk)
    client.publish("q", b"x")
    lazy.work(everything=True)
    client.send(BasicGet(queue="q"))
    client.connection.connection_lost()
    assert ready(world) == 1
    lazy.work(everything=True)
    assert ready(world) == 1
    assert world.broker.vhosts["/"].queues["q"].message_count == 1


def test_cancelling_the_reply_consumer_makes_room_for_another() -> None:
    client = World().open()
    consume(client, "amq.rabbitmq.reply-to", "a", no_ack=True)
    client.send(BasicCancel("a"))
    client.expect(BasicCancelOk)
    client.publish("q", reply_to="amq.rabbitmq.reply-to")
    assert client.expect(ChannelClose).reply_code == 406
    client.send(ChannelCloseOk())
    other = World().open()
    for tag in ("a", "b"):
        consume(other, "amq.rabbitmq.reply-to", tag, no_ack=True)
        other.send(BasicCancel(tag))
        other.expect(BasicCancelOk)


def test_reply_queues_can_be_looked_up() -> None:
    world = World()
    client = world.open()
    consume(client, "amq.rabbitmq.reply-to", "a", no_ack=True)
    (name,) = world.broker.vhosts["/"].replies
    client.send(QueueDeclare(queue=name))
    assert client.expect(QueueDeclareOk) == QueueDeclareOk(name, 0, 1)
    client.send(QueueDeclare(queue=name + "x"))
    assert client.expect(ChannelClose).reply_code == 404


def test_a_connection_can_be_shut_down_before_it_is_open() -> None:
    client = World().connect()
    client.connection.shut_down("maintenance")
    client.take()
    assert client.closed is not None
    assert client.raw == b""


def test_get_from_a_quorum_queue_with_a_single_active_consumer_is_locked() -> None:
    client = World().open()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    client.declare("q", arguments, durable=True)
    client.send(BasicGet(queue="q"))
    expect_channel_close(
        client,
        ReplyCode.RESOURCE_LOCKED,
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer",
        BasicGet,
    )


def test_queues_in_memory_are_limited() -> None:
    world = World()
    limits = MemoryLimits(max_queues=1, max_queue_bytes=1000)
    broker = MemoryBroker(lambda: world.now_ms, limits)
    world.services = world.services._replace(backend=broker)
    client = world.open()
    client.declare("q")
    client.send(ConfirmSelect(nowait=True))
    client.publish("q", bytes(600))
    client.expect(BasicAck)
    client.publish("q", bytes(600))
    client.expect(BasicNack)
    client.send(QueueDeclare(queue="r"))
    assert client.expect(ConnectionClose, 0).reply_code == 506


def test_a_message_for_too_many_queues_ends_the_connection_only_of_its_publisher() -> None:
    world = World()
    limits = MemoryLimits(topology=TopologyLimits(max_targets=1))
    broker = MemoryBroker(lambda: world.now_ms, limits)
    world.services = world.services._replace(backend=broker)
    client, other = world.open(), world.open()
    for queue in ("a", "b"):
        client.declare(queue)
        client.send(QueueBind(queue=queue, exchange="amq.fanout"))
        client.expect(QueueBindOk)
    client.declare("q", {"x-message-ttl": 10, "x-dead-letter-exchange": "amq.fanout"})
    client.publish("q")
    world.now_ms += 10
    broker.advance()  # the dead letter is dropped
    client.send(TxSelect())
    client.expect(TxSelectOk)
    client.publish("", exchange="amq.fanout")
    client.send(TxCommit())
    assert client.expect(ConnectionClose, 0).reply_code == 506
    other.publish("", exchange="amq.fanout")
    assert other.expect(ConnectionClose, 0).reply_code == 506


def test_a_publish_to_several_queues_is_nacked_if_one_rejects_it() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    client.send(ConfirmSelect(nowait=True))
    client.publish("q", b"x", headers={"CC": ["full"]})
    client.expect(BasicNack)
    assert ready(world) == 1


def test_exchanges_are_limited() -> None:
    topology = Topology(limits=TopologyLimits(max_exchanges=7))
    topology.declare_exchange("x", ExchangeProperties("fanout"))
    with pytest.raises(AmqpError, match=r"exchange limit \(7\) is reached"):
        topology.declare_exchange("y", ExchangeProperties("fanout"))


def test_bindings_are_limited() -> None:
    topology = Topology(limits=TopologyLimits(max_bindings=1))
    topology.bind(exchange_binding("amq.topic", "amq.fanout"))
    with pytest.raises(AmqpError, match=r"binding limit \(1\) is reached"):
        topology.bind(exchange_binding("amq.direct", "amq.fanout"))


def test_the_weights_of_a_ring_are_limited() -> None:
    topology = Topology()
    topology.declare_exchange("x", ExchangeProperties("x-consistent-hash"))
    topology.add_queue("q")
    topology.bind(queue_binding("q", "x", "1"))
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        "the weights of a consistent-hash exchange must not exceed 10000 in total",
    ):
        topology.bind(queue_binding("q", "x", "10000"))
    assert topology.route(RoutedMessage("x", "k", b"\0\0")) == ("q",)
    topology.unbind(queue_binding("q", "x", "1"))
    assert topology.route(RoutedMessage("x", "k", b"\0\0")) == ()


def test_a_full_cache_of_routes_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_CACHED_ROUTES", 3)
    topology = Topology()
    topology.add_queue("q")
    topology.bind(queue_binding("q", "amq.topic", "#"))
    for number in range(10):
        assert topology.route(RoutedMessage("amq.topic", str(number), b"\0\0")) == ("q",)
    assert topology._router._cached_routes <= 3


def test_deleted_exchanges_are_reported_in_order() -> None:
    gone: list[str] = []
    topology = Topology(on_deleted=lambda exchange: note(gone, exchange))
    for name in ("first", "second"):
        topology.declare_exchange(name, ExchangeProperties("fanout", auto_delete=True))
    topology.bind(exchange_binding("second", "first"))
    topology.delete_exchange("second")
    assert gone == ["second", "first"]


def note(gone: list[str], exchange: Exchange) -> None:
    gone.append(exchange.name)


def test_a_delayed_exchange_keeps_its_type() -> None:
    topology = Topology()

    def declare(kind: str) -> None:
        arguments = as_table({"x-delayed-type": kind})
        topology.declare_exchange("x", ExchangeProperties("x-delayed-message", arguments=arguments))

    declare("direct")
    declare("direct")
    with pytest.raises(AmqpError, match="inequivalent arg 'x-delayed-type'"):
        declare("topic")


def test_removing_bindings_of_choosing_exchanges() -> None:
    topology = Topology()
    for kind in ("x-random", "x-modulus-hash", "headers"):
        topology.declare_exchange(kind, ExchangeProperties(kind))
        for queue in ("a", "b"):
            topology.add_queue(queue)
            arguments: dict[str, Any] = {"t": ("F", {"n": ("I", 1)})} if kind == "headers" else {}
            topology.bind(queue_binding(queue, kind, "", arguments))
            if queue == "a":
                topology.unbind(queue_binding(queue, kind, "", arguments))
    for kind in ("x-random", "x-modulus-hash"):
        assert topology.route(RoutedMessage(kind, "k", b"\0\0")) == ("b",)


def test_a_consumer_waits_for_its_answer_before_others_are_handled() -> None:
    world = World()
    lazy = LazyBroker(world.broker, Random(1))
    world.broker.vhosts["/"].topology.add_queue("unused")
    world.services = world.services._replace(backend=lazy)
    client = world.open()
    client.send(QueueDeclare(queue="q"))
    client.send(BasicConsume(queue="q", consumer_tag="c"))
    client.publish("q", b"x")
    client.expect_nothing()
    lazy.work(everything=True)
    client.expect(QueueDeclareOk)
    client.expect(BasicConsumeOk)
    assert client.bodies() == [b"x"]
