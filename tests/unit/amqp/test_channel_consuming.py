"""Consuming on a channel: deliveries, acknowledgements, prefetch, cancellation and basic.get."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.amqp.context import ChannelLimits
from penstock.amqp.effects import Send
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.connection_methods import ChannelClose, ConnectionClose
from penstock.wire.amqp.errors import ReplyCode
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    QueueDelete,
    QueueDeleteOk,
)
from penstock.wire.amqp.tables import as_table
from tests.support.amqp_client import Client, Received, World
from tests.unit.amqp.test_channel_publishing import expect_channel_close, ready


def consume(
    client: Client, queue: str = "q", tag: str = "c", channel: int = 1, **bits: Any
) -> None:
    client.send(BasicConsume(queue=queue, consumer_tag=tag, **bits), channel)
    assert client.expect(BasicConsumeOk, channel).consumer_tag == tag


def set_prefetch(client: Client, count: int, *, shared: bool = False, channel: int = 1) -> None:
    client.send(BasicQos(prefetch_count=count, global_=shared), channel)
    client.expect(BasicQosOk, channel)


def filled(world: World, count: int, queue: str = "q", **arguments: Any) -> Client:
    client = world.open(1, 2)
    client.declare(queue, arguments)
    for number in range(count):
        client.publish(queue, b"%d" % number)
    return client


def deliveries(client: Client) -> list[tuple[str, int, bytes, bool]]:
    client.take()
    taken: list[Received] = client.received.copy()
    client.received.clear()
    found = []
    for received in taken:
        method = received.method
        assert isinstance(method, BasicDeliver), method
        found.append((method.consumer_tag, method.delivery_tag, received.body, method.redelivered))
    return found


def test_tags_count_over_all_consumers_of_a_channel() -> None:
    client = filled(World(), 2)
    consume(client)
    assert deliveries(client) == [("c", 1, b"0", False), ("c", 2, b"1", False)]
    client.declare("r")
    consume(client, "r", "d")
    client.publish("r", b"x")
    assert deliveries(client) == [("d", 3, b"x", False)]


def test_messages_without_acknowledgement_are_gone_when_delivered() -> None:
    world = World()
    client = filled(world, 2)
    consume(client, no_ack=True)
    assert client.bodies() == [b"0", b"1"]
    assert world.broker.vhosts["/"].queues["q"].message_count == 0
    client.send(BasicAck(1))
    expect_channel_close(client, ReplyCode.PRECONDITION_FAILED, "unknown delivery tag 1", BasicAck)


def test_acks_single_and_multiple() -> None:
    world = World()
    client = filled(world, 6)
    queue = world.broker.vhosts["/"].queues["q"]
    consume(client)
    client.bodies()
    client.send(BasicAck(2))
    assert queue.message_count == 5
    client.send(BasicAck(4, multiple=True))
    assert queue.message_count == 2
    client.send(BasicAck(0, multiple=True))
    assert queue.message_count == 0


@pytest.mark.parametrize(
    "method",
    [
        BasicAck(1),
        BasicAck(9),
        BasicAck(0),
        BasicAck(9, multiple=True),
        BasicNack(9),
        BasicReject(9),
    ],
)
def test_unknown_tags_close_the_channel(method: Any) -> None:
    world = World()
    client = filled(world, 3)
    consume(client)
    client.bodies()
    client.send(BasicAck(1))
    client.send(method)
    tag = method.delivery_tag
    expect_channel_close(
        client, ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", type(method)
    )
    assert ready(world) == 2


def test_acks_before_an_unknown_one_in_the_same_read_count() -> None:
    world = World()
    client = filled(world, 3)
    consume(client)
    client.bodies()
    client.send(BasicAck(2))
    client.send_bytes(b"".join(encode_method(1, BasicAck(tag)) for tag in (1, 2, 3)))
    assert client.expect(ChannelClose).reply_text == "PRECONDITION_FAILED - unknown delivery tag 2"
    assert ready(world) == 1


def test_a_nacked_message_returns_to_its_place() -> None:
    client = filled(World(), 3)
    set_prefetch(client, 3)
    consume(client)
    client.bodies()
    client.send(BasicNack(2, requeue=True))
    assert deliveries(client) == [("c", 4, b"1", True)]
    client.send(BasicNack(0, multiple=True, requeue=True))
    assert [body for _, _, body, _ in deliveries(client)] == [b"0", b"1", b"2"]


def test_a_rejected_message_is_dropped() -> None:
    world = World()
    client = filled(world, 2)
    consume(client)
    client.bodies()
    client.send(BasicReject(1, requeue=False))
    client.send(BasicNack(2, requeue=False))
    assert world.broker.vhosts["/"].queues["q"].message_count == 0


def test_recover_returns_everything() -> None:
    client = filled(World(), 2)
    consume(client)
    client.bodies()
    client.send(BasicRecover(requeue=True))
    client.expect(BasicRecoverOk)
    assert [body for _, _, body, _ in deliveries(client)] == [b"0", b"1"]
    client.send(BasicRecoverAsync(requeue=True))
    assert [redelivered for _, _, _, redelivered in deliveries(client)] == [True, True]
    client.send(BasicRecover(requeue=False))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - requeue=false")


# Prefetch ---------------------------------------------------------------------------------------------


def test_prefetch_limits_each_consumer() -> None:
    client = filled(World(), 10)
    set_prefetch(client, 2)
    consume(client, tag="a")
    assert client.bodies() == [b"0", b"1"]
    consume(client, tag="b")
    assert client.bodies() == [b"2", b"3"]
    client.send(BasicAck(1))
    assert deliveries(client) == [("a", 5, b"4", False)]


def test_an_ack_of_many_frees_the_prefetch_of_all() -> None:
    client = filled(World(), 12)
    set_prefetch(client, 4)
    consume(client)
    assert len(client.bodies()) == 4
    client.send(BasicAck(3, multiple=True))
    assert len(client.bodies()) == 3
    client.send(BasicNack(0, multiple=True, requeue=False))
    assert len(client.bodies()) == 4


def test_prefetch_applies_to_consumers_to_come() -> None:
    client = filled(World(), 10)
    set_prefetch(client, 1)
    consume(client, tag="a")
    assert len(client.bodies()) == 1
    set_prefetch(client, 3)
    consume(client, tag="b")
    assert len(client.bodies()) == 3


def test_a_shared_prefetch_limits_all_consumers_of_the_channel() -> None:
    client = World().open(1, 2)
    client.declare("q")
    set_prefetch(client, 3, shared=True)
    for tag, channel in (("a", 1), ("b", 1), ("other", 2)):
        consume(client, tag=tag, channel=channel)
    for _ in range(10):
        client.publish("q")
    found = deliveries(client)
    assert sum(tag in ("a", "b") for tag, *_ in found) == 3
    assert sum(tag == "other" for tag, *_ in found) == 7
    client.publish("q")
    assert [tag for tag, *_ in deliveries(client)] == ["other"]
    client.send(BasicAck(0, multiple=True))
    client.send(BasicCancel("other"), 2)
    client.expect(BasicCancelOk, 2)
    for _ in range(5):
        client.publish("q")
    assert len(deliveries(client)) == 3


def test_consumers_without_acknowledgement_have_no_prefetch() -> None:
    client = filled(World(), 10)
    set_prefetch(client, 1)
    set_prefetch(client, 1, shared=True)
    consume(client, no_ack=True)
    assert len(client.bodies()) == 10


def test_a_prefetch_in_bytes_is_not_implemented() -> None:
    client = World().open()
    client.send(BasicQos(prefetch_size=5))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (5)")


def test_quorum_queues_refuse_a_shared_prefetch() -> None:
    client = World().open()
    client.declare("q", {"x-queue-type": "quorum"}, durable=True)
    set_prefetch(client, 1, shared=True)
    client.send(BasicConsume(queue="q"))
    close = client.expect(ConnectionClose, 0)
    assert close.reply_text == (
        "NOT_IMPLEMENTED - queue 'q' in vhost '/' does not support global qos"
    )


def test_nothing_is_delivered_to_a_client_that_does_not_read() -> None:
    client = filled(World(), 3)
    client.connection.set_writable(False)
    client.take()
    consume(client)
    client.expect_nothing()
    client.connection.set_writable(True)
    assert len(client.bodies()) == 3


def test_a_backlog_is_delivered_in_slices() -> None:
    world = World(ConnectionSettings(max_output_bytes=10_000))
    client = world.open()
    client.declare("q")
    for _ in range(100):
        client.publish("q", bytes(1000))
    client.connection.receive(encode_method(1, BasicConsume(queue="q")), world.now_ms)
    sizes = []
    while effects := client.connection.drain(world.now_ms):
        sizes.append(sum(len(effect.data) for effect in effects if isinstance(effect, Send)))
    assert sum(sizes) > 100_000
    assert max(sizes) < 80_000
    assert ready(world) == 0


def test_gets_wait_until_the_output_is_taken() -> None:
    world = World(ConnectionSettings(max_output_bytes=10_000))
    client = world.open()
    client.declare("q")
    for _ in range(100):
        client.publish("q", bytes(1000))
    gets = encode_method(1, BasicGet(queue="q", no_ack=True)) * 100
    client.connection.receive(gets, world.now_ms)
    sizes = []
    while effects := client.connection.drain(world.now_ms):
        sizes.append(sum(len(effect.data) for effect in effects if isinstance(effect, Send)))
    assert len(sizes) == 10
    assert max(sizes) < 12_000


# Consumers --------------------------------------------------------------------------------------------


def test_messages_go_to_consumers_in_turn() -> None:
    client = World().open()
    client.declare("q")
    consume(client, tag="a")
    consume(client, tag="b")
    for number in range(4):
        client.publish("q", b"%d" % number)
    assert sorted(tag for tag, *_ in deliveries(client)) == ["a", "a", "b", "b"]


def test_consumers_with_a_higher_priority_come_first() -> None:
    client = World().open()
    client.declare("q")
    set_prefetch(client, 2)
    consume(client, tag="low")
    consume(client, tag="high", arguments=as_table({"x-priority": 10}))
    for number in range(3):
        client.publish("q", b"%d" % number)
    assert [tag for tag, *_ in deliveries(client)] == ["high", "high", "low"]


def test_an_exclusive_consumer_is_alone() -> None:
    client = World().open(1, 2)
    client.declare("q")
    consume(client, exclusive=True)
    client.send(BasicConsume(queue="q"), 2)
    close = client.expect(ChannelClose, 2)
    assert close.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    client.send(BasicCancel("c"))
    client.expect(BasicCancelOk)
    consume(client)
    client.send(BasicConsume(queue="q", exclusive=True))
    expect_channel_close(
        client, ReplyCode.ACCESS_REFUSED, "queue 'q' in vhost '/' in exclusive use", BasicConsume
    )


def test_single_active_consumer() -> None:
    client = World().open(1, 2)
    client.declare("q", {"x-single-active-consumer": True})
    consume(client, tag="a")
    consume(client, tag="b", channel=2)
    for _ in range(3):
        client.publish("q", b"x")
    assert {tag for tag, *_ in deliveries(client)} == {"a"}
    client.send(BasicCancel("a"))
    client.expect(BasicCancelOk)
    client.publish("q", b"y")
    assert [tag for tag, *_ in deliveries(client)] == ["b"]


def test_a_tag_is_used_once_on_a_channel() -> None:
    client = World().open(1, 2)
    client.declare("q")
    consume(client)
    consume(client, channel=2)
    client.send(BasicConsume(queue="q", consumer_tag="c"))
    close = client.expect(ConnectionClose, 0)
    assert close.reply_text == "NOT_ALLOWED - attempt to reuse consumer tag 'c'"


def test_consumers_of_a_channel_are_limited() -> None:
    client = World(ConnectionSettings(channel_limits=ChannelLimits(max_consumers=1))).open()
    client.declare("q")
    consume(client)
    client.send(BasicConsume(queue="q"))
    close = client.expect(ConnectionClose, 0)
    assert close.reply_text == "NOT_ALLOWED - reached maximum (1) of consumers per channel"


def test_cancel_ends_deliveries_but_not_what_was_delivered() -> None:
    world = World()
    client = filled(world, 1)
    consume(client)
    assert client.bodies() == [b"0"]
    client.send(BasicCancel("c"))
    client.expect(BasicCancelOk)
    client.publish("q", b"1")
    client.expect_nothing()
    client.send(BasicAck(1))
    assert world.broker.vhosts["/"].queues["q"].message_count == 1
    client.send(BasicCancel("unknown"))
    assert client.expect(BasicCancelOk).consumer_tag == "unknown"


def test_clients_learn_that_their_queue_is_gone() -> None:
    client = filled(World(), 1)
    consume(client)
    client.bodies()
    client.send(QueueDelete(queue="q"), 2)
    assert sorted(client.names()) == ["basic.cancel", "queue.delete-ok"]
    client.send(BasicAck(1))
    client.expect_nothing()
    old = World().open(capabilities={})
    old.declare("q")
    consume(old)
    old.send(QueueDelete(queue="q"))
    old.expect(QueueDeleteOk)
    old.expect_nothing()


def test_a_lost_connection_requeues_and_flags() -> None:
    world = World()
    client = filled(world, 2)
    consume(client)
    client.bodies()
    client.connection.connection_lost()
    other = world.open()
    consume(other)
    assert [redelivered for _, _, _, redelivered in deliveries(other)] == [True, True]


def test_an_absent_queue() -> None:
    client = World().open()
    for method in (BasicConsume(queue="absent"), BasicGet(queue="absent")):
        client.send(method)
        expect_channel_close(
            client, ReplyCode.NOT_FOUND, "no queue 'absent' in vhost '/'", type(method)
        )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-priority": "high"}, "invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\""),
        ({"x-stream-offset": "first"}, "invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type classic"),
    ],
)  # fmt: skip
def test_consumer_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    client = World().open()
    client.declare("q")
    client.send(BasicConsume(queue="q", arguments=as_table(arguments)))
    expect_channel_close(client, ReplyCode.PRECONDITION_FAILED, text, BasicConsume)


# Get --------------------------------------------------------------------------------------------------


def test_get_counts_what_is_left() -> None:
    world = World()
    client = filled(world, 2)
    client.send(BasicGet(queue=""))  # the queue that was declared last
    received = client.next()
    assert isinstance(received.method, BasicGetOk)
    assert (received.method.delivery_tag, received.method.message_count) == (1, 1)
    client.send(BasicGet(queue="q", no_ack=True))
    assert client.expect(BasicGetOk).delivery_tag == 2
    client.send(BasicGet(queue="q"))
    client.expect(BasicGetEmpty)
    client.send(BasicReject(1, requeue=True))
    client.send(BasicGet(queue="q"))
    assert client.expect(BasicGetOk).redelivered


# Direct reply-to --------------------------------------------------------------------------------------


def test_replies_go_straight_to_the_channel() -> None:
    world = World()
    client = world.open()
    consume(client, "amq.rabbitmq.reply-to", "r", no_ack=True)
    server = world.open()
    server.declare("rpc")
    client.publish("rpc", b"ask", reply_to="amq.rabbitmq.reply-to")
    server.send(BasicGet(queue="rpc", no_ack=True))
    request = server.next()
    assert request.properties is not None
    address = request.properties.reply_to
    assert address is not None
    assert address.startswith("amq.rabbitmq.reply-to.")
    server.publish(address, b"answer")
    assert deliveries(client) == [("r", 1, b"answer", False)]
    client.connection.connection_lost()
    server.publish(address, b"late", mandatory=True)
    assert server.names() == ["basic.return"]


@pytest.mark.parametrize(
    ("no_ack", "text"),
    [(False, "reply consumer cannot acknowledge"), (True, "reply consumer already set")],
)
def test_reply_consumers_are_checked(no_ack: bool, text: str) -> None:
    client = World().open()
    consume(client, "amq.rabbitmq.reply-to", "r", no_ack=True)
    client.send(BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=no_ack))
    expect_channel_close(client, ReplyCode.PRECONDITION_FAILED, text, BasicConsume)


def test_a_request_needs_a_reply_consumer() -> None:
    client = World().open()
    client.publish("q", reply_to="amq.rabbitmq.reply-to")
    assert client.expect(ChannelClose).reply_text == (
        "PRECONDITION_FAILED - fast reply consumer does not exist"
    )
