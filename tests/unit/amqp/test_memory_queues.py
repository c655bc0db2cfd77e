"""Queues in memory: declarations, limits, time to live, dead letters, priorities, policies."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.amqp.policies import ApplyTo, Policy, PolicySet
from penstock.amqp.redelivery import with_delivery_counts
from penstock.wire.amqp.connection_methods import ChannelClose
from penstock.wire.amqp.errors import ReplyCode
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicReject,
    ConfirmSelect,
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
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.tables import as_plain, as_table
from tests.support.amqp_client import Client, World
from tests.unit.amqp.test_channel_consuming import consume, deliveries
from tests.unit.amqp.test_channel_publishing import expect_channel_close, ready

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)


def bodies(client: Client, queue: str) -> list[bytes]:
    """Take all messages of a queue."""
    found: list[bytes] = []
    while True:
        client.send(BasicGet(queue=queue, no_ack=True))
        received = client.next()
        if not isinstance(received.method, BasicGetOk):
            return found
        found.append(received.body)


def bind(client: Client, queue: str, exchange: str, key: str = "") -> None:
    client.send(QueueBind(queue=queue, exchange=exchange, routing_key=key))
    client.expect(QueueBindOk)


# Declaring --------------------------------------------------------------------------------------------


def test_declaring_counts_messages_and_consumers() -> None:
    client = World().open()
    client.send(QueueDeclare(queue="q"))
    assert client.expect(QueueDeclareOk) == QueueDeclareOk("q", 0, 0)
    client.publish("q")
    client.send(QueueDeclare(queue="q", passive=True))
    assert client.expect(QueueDeclareOk) == QueueDeclareOk("q", 1, 0)
    client.send(BasicConsume(queue="q"))
    client.names()
    client.send(QueueDeclare(queue="q"))
    assert client.expect(QueueDeclareOk) == QueueDeclareOk("q", 0, 1)


def test_a_queue_without_a_name_gets_one_and_it_stands_in_for_empty_names() -> None:
    client = World().open()
    client.send(QueueDeclare())
    name = client.expect(QueueDeclareOk).queue
    assert name.startswith("amq.gen-")
    client.send(QueueBind(exchange="amq.direct"))
    client.expect(QueueBindOk)
    client.publish(name, b"by its name", exchange="amq.direct")
    assert bodies(client, "") == [b"by its name"]
    client.send(QueueDelete())
    client.expect(QueueDeleteOk)


@pytest.mark.parametrize(
    "method", [BasicGet(), QueuePurge(), QueueDelete(), QueueBind(exchange="x")]
)
def test_there_must_be_a_queue_that_was_declared_last(method: Any) -> None:
    client = World().open()
    client.send(method)
    expect_channel_close(client, ReplyCode.NOT_FOUND, "no previously declared queue", type(method))


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"durable": True}, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        ({}, {"auto_delete": True}, "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        ({"arguments": {"x-message-ttl": 1}}, {}, "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received none but current is the value '1' of type 'signedint'"),
        ({}, {"arguments": {"x-max-length": 5}}, "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'signedint' but current is none"),
        ({"arguments": {"x-max-length": 4}}, {"arguments": {"x-max-length": 5}}, "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'signedint' but current is the value '4' of type 'signedint'"),
    ],
)  # fmt: skip
def test_declaring_again_must_agree(
    first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    client = World().open()
    client.declare("q", **first)
    arguments = as_table(second.pop("arguments", {}))
    client.send(QueueDeclare(queue="q", arguments=arguments, **second))
    expect_channel_close(client, ReplyCode.PRECONDITION_FAILED, text, QueueDeclare)


def test_widths_of_integers_and_the_classic_type_do_not_count() -> None:
    client = World().open()
    client.declare("q", {"x-message-ttl": 1000})
    arguments = {"x-message-ttl": ("l", 1000), "x-queue-type": ("S", "classic")}
    client.send(QueueDeclare(queue="q", arguments=arguments))
    client.expect(QueueDeclareOk)


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (QueueDeclare(queue="absent", passive=True), ReplyCode.NOT_FOUND, "no queue 'absent' in vhost '/'"),
        (QueueDeclare(queue="amq.q"), ReplyCode.ACCESS_REFUSED, "queue name 'amq.q' contains reserved prefix 'amq.*'"),
        (QueueDeclare(queue="q", arguments=as_table({"x-dead-letter-exchange": 1})), ReplyCode.PRECONDITION_FAILED, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"),
        (QueueDeclare(arguments=as_table({"x-queue-type": "stream"})), ReplyCode.PRECONDITION_FAILED, "Cannot declare a server-named queue for type stream"),
        (ExchangeDeclare(exchange="absent", passive=True), ReplyCode.NOT_FOUND, "no exchange 'absent' in vhost '/'"),
        (ExchangeDeclare(exchange="", passive=True), ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange"),
        (ExchangeDelete(exchange="amq.topic"), ReplyCode.ACCESS_REFUSED, "deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
        (QueuePurge(queue="absent"), ReplyCode.NOT_FOUND, "no queue 'absent' in vhost '/'"),
        (QueueBind(queue="absent", exchange="amq.topic"), ReplyCode.NOT_FOUND, "no queue 'absent' in vhost '/'"),
        (QueueBind(queue="amq.rabbitmq.reply-to.1", exchange="amq.topic"), ReplyCode.ACCESS_REFUSED, "cannot bind or unbind to a volatile (direct reply-to) queue"),
    ],
)  # fmt: skip
def test_refused_declarations(method: Any, code: ReplyCode, text: str) -> None:
    client = World().open()
    client.send(method)
    expect_channel_close(client, code, text, type(method))


def test_line_ends_are_removed_from_names() -> None:
    client = World().open()
    client.send(QueueDeclare(queue="q\r\n"))
    assert client.expect(QueueDeclareOk).queue == "q"


def test_exclusive_queues_belong_to_their_connection() -> None:
    world = World()
    client, other = world.open(), world.open()
    client.declare("q", exclusive=True)
    client.declare("q", exclusive=True)
    for method in (
        QueueDeclare(queue="q"),
        QueueDeclare(queue="q", exclusive=True),
        QueueDeclare(queue="q", passive=True),
        BasicGet(queue="q"),
        BasicConsume(queue="q"),
        QueueDelete(queue="q"),
        QueuePurge(queue="q"),
        QueueBind(queue="q", exchange="amq.topic"),
    ):
        other.send(method)
        expect_channel_close(other, ReplyCode.RESOURCE_LOCKED, LOCKED, type(method))
    client.connection.connection_lost()
    assert not world.broker.vhosts["/"].queues


def test_a_shared_queue_cannot_become_exclusive() -> None:
    client = World().open()
    client.declare("q")
    client.send(QueueDeclare(queue="q", exclusive=True))
    expect_channel_close(client, ReplyCode.RESOURCE_LOCKED, LOCKED, QueueDeclare)


def test_deleting_and_purging() -> None:
    client = World().open()
    client.declare("q")
    client.publish("q")
    client.send(BasicGet(queue="q"))
    client.next()
    client.publish("q")
    client.send(QueuePurge(queue="q"))
    assert client.expect(QueuePurgeOk).message_count == 1
    client.send(QueueDelete(queue="q", if_empty=True))
    expect_channel_close(
        client, ReplyCode.PRECONDITION_FAILED, "queue 'q' in vhost '/' not empty", QueueDelete
    )
    consume(client)
    client.names()
    client.send(QueueDelete(queue="q", if_unused=True))
    expect_channel_close(
        client, ReplyCode.PRECONDITION_FAILED, "queue 'q' in vhost '/' in use", QueueDelete
    )
    client.send(QueueDelete(queue="q"))
    assert client.expect(QueueDeleteOk).message_count == 1
    client.send(QueueDelete(queue="q"))  # it is gone already: no error
    assert client.expect(QueueDeleteOk).message_count == 0


def test_exchanges_and_bindings_between_them() -> None:
    client = World().open()
    client.declare("q")
    client.send(ExchangeDeclare(exchange="x", type="fanout"))
    client.expect(ExchangeDeclareOk)
    client.send(ExchangeBind(destination="x", source="amq.direct", routing_key="k"))
    client.expect(ExchangeBindOk)
    bind(client, "q", "x")
    client.publish("k", b"through both", exchange="amq.direct")
    assert bodies(client, "q") == [b"through both"]
    client.send(ExchangeUnbind(destination="x", source="amq.direct", routing_key="k"))
    client.expect(ExchangeUnbindOk)
    client.send(QueueUnbind(queue="q", exchange="x"))
    client.expect(QueueUnbindOk)
    client.send(ExchangeDelete(exchange="x", if_unused=True))
    client.expect(ExchangeDeleteOk)


def test_auto_delete_queues_go_with_their_last_consumer() -> None:
    world = World()
    client = world.open()
    client.declare("q", auto_delete=True)
    world.wait(1000, client)
    consume(client, tag="a")
    consume(client, tag="b")
    client.send(BasicCancel("a", nowait=True))
    assert "q" in world.broker.vhosts["/"].queues
    client.send(BasicCancel("b", nowait=True))
    assert "q" not in world.broker.vhosts["/"].queues


def test_nowait_gets_no_answer() -> None:
    client = World().open()
    client.send(QueueDeclare(queue="q", nowait=True))
    client.send(QueueBind(queue="q", exchange="amq.topic", nowait=True))
    client.send(QueuePurge(queue="q", nowait=True))
    client.send(BasicConsume(queue="q", nowait=True))
    client.send(QueueDelete(queue="q", nowait=True))
    assert client.names() == ["basic.cancel"]


# Time -------------------------------------------------------------------------------------------------


def test_messages_expire_by_queue_and_by_message() -> None:
    world = World()
    client = world.open()
    client.declare("q", {"x-message-ttl": 100})
    client.publish("q", b"short", expiration="50")
    client.publish("q", b"long", expiration="1000")
    world.wait(50, client)
    assert ready(world) == 1
    world.wait(50, client)
    assert ready(world) == 0


def test_an_expired_message_behind_a_live_one_waits() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish("q", b"live")
    client.publish("q", b"dead", expiration="1")
    world.wait(10, client)
    assert ready(world) == 2
    assert bodies(client, "q") == [b"live"]


def test_a_time_to_live_of_zero_needs_a_waiting_consumer() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish("q", b"nobody", expiration="0")
    assert ready(world) == 0
    consume(client)
    client.publish("q", b"somebody", expiration="0")
    assert client.bodies() == [b"somebody"]


def test_unused_queues_expire() -> None:
    world = World()
    client = world.open()
    client.declare("q", {"x-expires": 100})
    world.wait(99, client)
    client.send(BasicGet(queue="q"))
    client.next()
    world.wait(99, client)
    assert "q" in world.broker.vhosts["/"].queues
    consume(client)
    world.wait(1000, client)
    client.send(BasicCancel("c", nowait=True))
    world.wait(99, client)
    assert "q" in world.broker.vhosts["/"].queues
    world.wait(1, client)
    assert "q" not in world.broker.vhosts["/"].queues


def test_delayed_messages_are_routed_when_they_are_due() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    arguments = as_table({"x-delayed-type": "direct"})
    client.send(ExchangeDeclare(exchange="x", type="x-delayed-message", arguments=arguments))
    client.expect(ExchangeDeclareOk)
    bind(client, "q", "x", "k")
    client.publish("k", b"later", exchange="x", headers={"x-delay": 100})
    client.publish("k", b"sooner", exchange="x", headers={"x-delay": 50})
    client.publish("k", b"now", exchange="x")
    assert bodies(client, "q") == [b"now"]
    world.wait(99, client)
    assert bodies(client, "q") == [b"sooner"]
    world.wait(1, client)
    assert bodies(client, "q") == [b"later"]


# Limits and dead letters ------------------------------------------------------------------------------


def with_dead_letters(**arguments: Any) -> tuple[World, Client]:
    """Return a broker whose queue `q` sends its dead letters to `dead`."""
    world = World()
    client = world.open()
    client.declare("dead")
    bind(client, "dead", "amq.fanout")
    settings = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    client.declare("q", {"x-dead-letter-exchange": "amq.fanout", **settings})
    return world, client


def death(client: Client) -> dict[str, Any]:
    client.send(BasicGet(queue="dead", no_ack=True))
    properties = client.next().properties
    assert properties is not None
    assert properties.headers is not None
    found: dict[str, Any] = as_plain(properties.headers["x-death"])[0]
    return found


def test_drop_head() -> None:
    _, client = with_dead_letters(max_length=2)
    for number in range(4):
        client.publish("q", b"%d" % number)
    assert bodies(client, "dead") == [b"0", b"1"]
    assert bodies(client, "q") == [b"2", b"3"]


def test_a_maximum_of_bytes() -> None:
    _, client = with_dead_letters(max_length_bytes=10)
    for size in (4, 4, 4, 11):
        client.publish("q", bytes(size))
    assert [len(body) for body in bodies(client, "dead")] == [4, 4, 4, 11]
    assert bodies(client, "q") == []


@pytest.mark.parametrize(
    ("overflow", "dead"), [("reject-publish", []), ("reject-publish-dlx", [b"2"])]
)
def test_reject_publish(overflow: str, dead: list[bytes]) -> None:
    world, client = with_dead_letters(max_length=2, overflow=overflow)
    client.send(ConfirmSelect(nowait=True))
    for number in range(3):
        client.publish("q", b"%d" % number)
    assert client.names() == ["basic.ack", "basic.ack", "basic.nack"]
    assert ready(world) == 2
    assert bodies(client, "dead") == dead


def test_unacknowledged_messages_do_not_count_for_the_length() -> None:
    world, client = with_dead_letters(max_length=1)
    client.publish("q", b"0")
    consume(client)
    client.bodies()
    client.send(BasicCancel("c", nowait=True))
    client.publish("q", b"1")
    assert ready(world) == 1
    client.send(BasicNack(1, requeue=True))  # returns to the head, which is dropped
    assert bodies(client, "dead") == [b"0"]


def test_a_message_that_returns_counts_for_the_bytes_again() -> None:
    _, client = with_dead_letters(max_length_bytes=10)
    client.publish("q", b"0" * 6)
    client.send(BasicGet(queue="q"))
    client.next()
    client.publish("q", b"1" * 6)
    assert bodies(client, "dead") == []
    client.send(BasicReject(1, requeue=True))
    assert bodies(client, "dead") == [b"0" * 6]
    assert bodies(client, "q") == [b"1" * 6]


def test_reasons_of_death() -> None:
    world, client = with_dead_letters()
    client.publish("q", expiration="10")
    world.wait(10, client)
    assert death(client)["reason"] == "expired"
    for kind in (BasicReject, BasicNack):
        client.publish("q")
        client.send(BasicGet(queue="q"))
        client.send(kind(client.expect(BasicGetOk).delivery_tag, requeue=False))
        found = death(client)
        assert (found["reason"], found["queue"], found["exchange"]) == ("rejected", "q", "")


def test_the_delivery_limit() -> None:
    world, client = with_dead_letters(queue_type="classic")
    client.declare("dead2")
    client.declare(
        "limited",
        {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "amq.fanout"},
        durable=True,
    )
    client.publish("limited", b"poison")
    for _ in range(3):
        client.send(BasicGet(queue="limited"))
        received = client.next().method
        assert isinstance(received, BasicGetOk)
        client.send(BasicReject(received.delivery_tag, requeue=True))
    assert ready(world, "limited") == 0
    assert death(client)["reason"] == "delivery_limit"


def test_quorum_queues_tell_how_often_a_message_was_delivered() -> None:
    client = World().open()
    client.declare("q", {"x-queue-type": "quorum"}, durable=True)
    client.publish("q", headers={"a": 1})
    seen = []
    for method in (BasicReject, BasicNack, BasicNack):
        client.send(BasicGet(queue="q"))
        received = client.next()
        assert isinstance(received.method, BasicGetOk)
        assert received.properties is not None
        assert received.properties.headers is not None
        headers = {name: as_plain(value) for name, value in received.properties.headers.items()}
        assert headers.pop("a") == 1
        seen.append(headers)
        client.send(method(received.method.delivery_tag, requeue=True))
    assert seen == [
        {},
        {"x-delivery-count": 1, "x-acquired-count": 1},
        {"x-delivery-count": 1, "x-acquired-count": 2},
    ]


def test_counts_are_left_out_where_the_headers_have_no_room() -> None:
    properties = encode_properties(Properties(headers=as_table({str(n): n for n in range(10_000)})))
    assert with_delivery_counts(properties, failed=1, acquired=2) == properties


def test_nacks_do_not_count_for_the_delivery_limit() -> None:
    client = World().open()
    client.declare("q", {"x-queue-type": "quorum", "x-delivery-limit": 1}, durable=True)
    client.publish("q", b"patient")
    for _ in range(5):
        client.send(BasicGet(queue="q"))
        received = client.next().method
        assert isinstance(received, BasicGetOk)
        client.send(BasicNack(received.delivery_tag, requeue=True))
    assert bodies(client, "q") == [b"patient"]


def test_a_cycle_of_expiring_queues_ends() -> None:
    world = World()
    client = world.open()
    client.declare(
        "a", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}
    )
    client.declare(
        "b", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}
    )
    client.publish("a")
    for _ in range(5):
        world.wait(10, client)
    assert ready(world, "a") == ready(world, "b") == 0


def test_a_retry_queue_is_no_cycle_while_a_consumer_rejects() -> None:
    world = World()
    client = world.open()
    client.declare("work", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
    client.declare(
        "retry",
        {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"},
    )
    client.publish("work", b"job")
    for count in range(1, 5):
        client.send(BasicGet(queue="work"))
        received = client.next()
        assert isinstance(received.method, BasicGetOk)
        client.send(BasicReject(received.method.delivery_tag, requeue=False))
        world.wait(10, client)
        client.send(BasicGet(queue="work"))
        again = client.next()
        assert again.properties is not None
        assert again.properties.headers is not None
        deaths = as_plain(again.properties.headers["x-death"])
        rejected = [each for each in deaths if each["reason"] == "rejected"]
        assert rejected[0]["count"] == count
        assert isinstance(again.method, BasicGetOk)
        client.send(BasicNack(again.method.delivery_tag, requeue=True))


@pytest.mark.parametrize(("length", "arrived"), [(100, 1), (200, 0)])
def test_a_chain_of_dead_letters_has_an_end(length: int, arrived: int) -> None:
    world = World()
    client = world.open()
    for number in range(length):
        target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"}
        client.declare(f"q{number}", {"x-max-length": 0, **target})
    client.declare(f"q{length}")
    client.publish("q0")
    assert ready(world, f"q{length}") == arrived
    client.expect_nothing()


# Priorities and policies ------------------------------------------------------------------------------


def test_messages_come_by_priority() -> None:
    client = World().open()
    client.declare("q", {"x-max-priority": 5})
    for body, priority in ((b"a", None), (b"b", 1), (b"c", 9), (b"d", 5), (b"e", 0)):
        client.publish("q", body, priority=priority)
    assert bodies(client, "q") == [b"c", b"d", b"b", b"a", b"e"]


def test_policies_change_living_queues_and_exchanges() -> None:
    world = World()
    client = world.open()
    vhost = world.broker.vhosts["/"]
    client.declare("q", {"x-max-length": 5})
    client.declare("rest")
    client.send(ExchangeDeclare(exchange="x"))
    client.expect(ExchangeDeclareOk)
    bind(client, "rest", "amq.fanout")
    limit = Policy("limit", "^q$", {"max-length": 2}, apply_to=ApplyTo.QUEUES)
    rest = Policy("rest", "^x$", {"alternate-exchange": "amq.fanout"}, apply_to=ApplyTo.EXCHANGES)
    vhost.apply_policies(PolicySet([limit, rest]), world.now_ms)
    for number in range(4):
        client.publish("q", b"%d" % number)
    assert bodies(client, "q") == [b"2", b"3"]
    client.publish("unbound", b"to the rest", exchange="x")
    assert bodies(client, "rest") == [b"to the rest"]
    vhost.apply_policies(PolicySet(), world.now_ms)
    client.publish("unbound", exchange="x")
    assert bodies(client, "rest") == []


def test_a_policy_applies_to_exchanges_that_are_declared_later() -> None:
    world = World()
    client = world.open()
    policies = PolicySet([Policy("p", "x", {"alternate-exchange": "amq.fanout"})])
    world.broker.vhosts["/"].apply_policies(policies, world.now_ms)
    client.declare("rest")
    bind(client, "rest", "amq.fanout")
    client.send(ExchangeDeclare(exchange="x"))
    client.expect(ExchangeDeclareOk)
    client.publish("k", b"m", exchange="x")
    assert bodies(client, "rest") == [b"m"]


def test_streams_are_not_kept_in_memory() -> None:
    client = World().open()
    client.send(
        QueueDeclare(queue="s", durable=True, arguments=as_table({"x-queue-type": "stream"}))
    )
    assert client.names() == ["connection.close"]


def test_every_message_is_delivered_once_with_many_consumers() -> None:
    world = World()
    clients = [world.open() for _ in range(3)]
    clients[0].declare("q")
    for number, client in enumerate(clients):
        consume(client, tag=f"c{number}")
    for number in range(30):
        clients[0].publish("q", b"%d" % number)
    found = []
    for client in clients:
        for _, tag, body, redelivered in deliveries(client):
            assert not redelivered
            found.append(int(body))
            client.send(BasicAck(tag))
    assert sorted(found) == list(range(30))
    assert world.broker.vhosts["/"].queues["q"].message_count == 0
    assert ChannelClose.name not in clients[0].names()
