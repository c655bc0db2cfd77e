"""Publishing on a channel: routing, returns, confirms, transactions, limits and errors."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.amqp.backend import Permission, Reply, Unrestricted, User
from penstock.amqp.context import ChannelLimits
from penstock.amqp.credentials import Credentials, Peer
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.connection_methods import (
    AccessRequest,
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
)
from penstock.wire.amqp.errors import ReplyCode
from penstock.wire.amqp.frames import HEARTBEAT, content_frames, encode_frame
from penstock.wire.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReturn,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.wire.amqp.tables import as_table
from tests.support.amqp_client import Client, World
from tests.unit.amqp.test_connection import HoldingBroker


def expect_channel_close(client: Client, code: ReplyCode, text: str, method: type[Any]) -> None:
    close = client.expect(ChannelClose)
    assert (close.reply_code, close.reply_text) == (code, f"{code.name} - {text}")
    assert close.class_id << 16 | close.method_id == method.index
    client.send(ChannelCloseOk())
    client.send(ChannelOpen())
    client.expect(ChannelOpenOk)


def ready(world: World, queue: str = "q") -> int:
    return world.broker.vhosts["/"].queues[queue].ready_count


def get(client: Client, queue: str = "q") -> tuple[BasicGetOk, bytes]:
    client.send(BasicGet(queue=queue, no_ack=True))
    received = client.next()
    assert isinstance(received.method, BasicGetOk), received
    return received.method, received.body


def test_a_message_reaches_the_queue_with_all_its_properties() -> None:
    client = World().open()
    client.declare("q")
    client.publish("q", b"body", headers={"a": 1}, priority=3, message_id="m", timestamp=9)
    client.send(BasicGet(queue="q"))
    _, method, properties, body = client.next()
    assert method == BasicGetOk(1, redelivered=False, exchange="", routing_key="q", message_count=0)
    assert body == b"body"
    assert properties is not None
    assert (properties.priority, properties.message_id, properties.timestamp) == (3, "m", 9)
    assert properties.headers == as_table({"a": 1})


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000])
def test_bodies_of_any_size_pass(size: int) -> None:
    client = World().open(frame_max=4096)
    client.declare("q")
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    client.publish("q", body)
    assert get(client)[1] == body


def test_heartbeats_may_come_between_the_frames_of_a_message() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    frames = [encode_method(1, BasicPublish(routing_key="q"))]
    frames += [bytes(piece) for piece in content_frames(1, b"\0\0", b"body", 4096)]
    client.send_bytes(HEARTBEAT.join([frames[0], frames[1], b"".join(frames[2:])]))
    assert ready(world) == 1


def test_messages_of_several_channels_may_interleave() -> None:
    world = World()
    client = world.open(1, 2)
    client.declare("q")
    parts = []
    for channel in (1, 2):
        content = content_frames(channel, b"\0\0", b"x" * 10, 4096)
        parts.append(
            (
                encode_method(channel, BasicPublish(routing_key="q")),
                bytes(content[0]),
                b"".join(content[1:]),
            )
        )
    client.send_bytes(b"".join(piece for pair in zip(*parts, strict=True) for piece in pair))
    assert ready(world) == 2


def test_an_absent_exchange_closes_the_channel_and_nothing_more_is_done() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish("k", exchange="absent")
    client.publish("q", b"ignored")
    client.send(BasicGet(queue="q"))
    expect_channel_close(
        client, ReplyCode.NOT_FOUND, "no exchange 'absent' in vhost '/'", BasicPublish
    )
    assert ready(world) == 0
    client.expect_nothing()


def test_a_channel_that_both_sides_close_is_closed() -> None:
    client = World().open()
    client.publish("k", exchange="absent")
    client.send(ChannelClose(200))
    assert client.names() == ["channel.close", "channel.close-ok"]
    client.send(ChannelOpen())
    client.expect_nothing()  # ignored until the client has answered
    client.send(ChannelCloseOk())
    client.send(ChannelOpen())
    client.expect(ChannelOpenOk)


def test_internal_exchanges_take_no_messages_from_clients() -> None:
    client = World().open()
    client.send(ExchangeDeclare(exchange="x", internal=True))
    client.expect(ExchangeDeclareOk)
    client.publish("k", exchange="x")
    expect_channel_close(
        client,
        ReplyCode.ACCESS_REFUSED,
        "cannot publish to internal exchange 'x' in vhost '/'",
        BasicPublish,
    )


def test_immediate_is_not_implemented() -> None:
    client = World().open()
    method = BasicPublish(routing_key="q", immediate=True)
    client.send_bytes(encode_method(1, method) + b"".join(content_frames(1, b"\0\0", b"", 4096)))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


def test_mandatory_messages_without_a_queue_come_back_before_their_confirm() -> None:
    client = World().open()
    client.send(ConfirmSelect())
    client.expect(ConfirmSelectOk)
    client.publish("absent", b"body", mandatory=True, message_id="m")
    _, method, properties, body = client.next()
    assert method == BasicReturn(312, "NO_ROUTE", "", "absent")
    assert body == b"body"
    assert properties is not None
    assert properties.message_id == "m"
    assert client.expect(BasicAck).delivery_tag == 1


def test_other_messages_without_a_queue_are_dropped_and_confirmed() -> None:
    client = World().open()
    client.send(ConfirmSelect())
    client.expect(ConfirmSelectOk)
    client.publish("absent")
    client.expect(BasicAck)


def test_too_large_a_message_closes_the_channel_before_it_is_collected() -> None:
    limits = ChannelLimits(max_message_bytes=1000)
    client = World(ConnectionSettings(channel_limits=limits, max_collected_bytes=2000)).open()
    client.publish("q", bytes(5000))
    expect_channel_close(
        client,
        ReplyCode.PRECONDITION_FAILED,
        "message size 5000 is larger than configured max size 1000",
        BasicPublish,
    )
    client.publish("q", bytes(1000))
    client.expect_nothing()


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("x", "no_integer"),
        ("", "no_integer"),
        ("5s", '{leftover_string,"s"}'),
        ("-1", "{value_negative,-1}"),
        ("999999999999", "{value_too_large,999999999999}"),
    ],
)
def test_expirations_are_checked(expiration: str, reason: str) -> None:
    client = World().open()
    client.publish("q", expiration=expiration)
    expect_channel_close(
        client,
        ReplyCode.PRECONDITION_FAILED,
        f"invalid expiration '{expiration}': {reason}",
        BasicPublish,
    )


def test_the_user_id_must_be_that_of_the_connection() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish("q", user_id="guest")
    assert ready(world) == 1
    client.publish("q", user_id="root")
    expect_channel_close(
        client,
        ReplyCode.PRECONDITION_FAILED,
        "user_id property set to 'root' but authenticated user was 'guest'",
        BasicPublish,
    )


def test_cc_must_be_an_array() -> None:
    client = World().open()
    client.publish("q", headers={"CC": "x"})
    expect_channel_close(
        client,
        ReplyCode.PRECONDITION_FAILED,
        'invalid message: {unacceptable_type_in_header,"CC",longstr}',
        BasicPublish,
    )


def test_bcc_is_taken_out_and_cc_is_not() -> None:
    client = World().open()
    for queue in ("a", "b", "c"):
        client.declare(queue)
    client.publish("a", b"x", headers={"CC": ["b"], "BCC": ["c"]})
    for queue in ("a", "b", "c"):
        client.send(BasicGet(queue=queue))
        received = client.next()
        assert received.properties is not None
        assert received.properties.headers == as_table({"CC": ["b"]})


# Unexpected frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "code", "text"),
    [
        (encode_frame(2, 1, b"\0\x3c\0\0" + bytes(10)), 505, "expected method frame, got non method frame instead"),
        (encode_method(1, BasicPublish()) + encode_method(1, BasicAck()), 505, "expected content header for class 60, got non content header frame instead"),
        (encode_method(1, BasicPublish()) + encode_frame(2, 1, b"\0\x0a\0\0" + bytes(10)), 505, "expected content header for class 60, got one for class 10 instead"),
        (encode_method(1, BasicPublish()) + encode_frame(2, 1, b"\0\x3c\0\0" + (2).to_bytes(8, "big") + b"\0\0") + encode_frame(3, 1, b"xxx"), 501, "content body frame exceeds remaining content size"),
        (encode_method(1, BasicPublish()) + encode_frame(2, 1, b"\0\x3c\0\0" + (2).to_bytes(8, "big") + b"\0\0") + encode_method(1, BasicAck()), 505, "expected content body, got non content body frame instead"),
        (encode_method(1, BasicPublish()) + encode_frame(2, 1, b"\0\x3c\0\0" + (1 << 40).to_bytes(8, "big") + b"\0\0"), 501, "content body size 1099511627776 exceeds maximum allowed size 536870912"),
    ],
)  # fmt: skip
def test_frames_out_of_turn(stream: bytes, code: int, text: str) -> None:
    client = World().open()
    client.send_bytes(stream)
    close = client.expect(ConnectionClose, 0)
    assert close.reply_code == code
    assert close.reply_text.endswith(f" - {text}")


# Confirms ---------------------------------------------------------------------------------------------


def confirming(holding: Any = None) -> Client:
    client = World(backend=holding).open()
    client.send(ConfirmSelect())
    client.expect(ConfirmSelectOk)
    return client


def test_confirms_count_from_one_and_those_of_a_turn_are_one_ack() -> None:
    client = confirming()
    client.publish("q")
    assert client.expect(BasicAck) == BasicAck(1, multiple=False)
    message = encode_method(1, BasicPublish(routing_key="q")) + b"".join(
        content_frames(1, b"\0\0", b"x", 4096)
    )
    client.send_bytes(message * 5)
    assert client.expect(BasicAck) == BasicAck(6, multiple=True)
    client.expect_nothing()


def test_confirms_out_of_order_are_single_until_the_gap_closes() -> None:
    holding = HoldingBroker(World().broker)
    client = confirming(holding)
    for _ in range(5):
        client.publish("q")
    first, second, third, fourth, fifth = holding.held
    for publication in (second, fourth):
        publication.publisher.confirmed(publication)
    assert [client.expect(BasicAck).delivery_tag for _ in range(2)] == [2, 4]
    third.publisher.rejected(third)
    first.publisher.confirmed(first)
    assert client.expect(BasicNack).delivery_tag == 3
    assert client.expect(BasicAck) == BasicAck(1)
    fifth.publisher.confirmed(fifth)
    assert client.expect(BasicAck) == BasicAck(5)


def test_a_confirm_after_the_channel_is_closed_is_not_sent() -> None:
    holding = HoldingBroker(World().broker)
    client = confirming(holding)
    client.publish("q", bytes(10))
    client.send(ChannelClose(200))
    client.expect(ChannelCloseOk)
    holding.held[0].publisher.returned(holding.held[0])
    holding.held[0].publisher.confirmed(holding.held[0])
    client.expect_nothing()


def test_messages_before_confirm_select_are_not_counted() -> None:
    client = World().open()
    client.publish("q")
    client.send(ConfirmSelect(nowait=True))
    client.expect_nothing()
    client.publish("q")
    assert client.expect(BasicAck).delivery_tag == 1
    client.send(ConfirmSelect())  # again: nothing changes
    client.expect(ConfirmSelectOk)
    client.publish("q")
    assert client.expect(BasicAck).delivery_tag == 2


# Transactions -----------------------------------------------------------------------------------------


def transactional(world: World) -> Client:
    client = world.open()
    client.declare("q")
    client.send(TxSelect())
    client.expect(TxSelectOk)
    return client


def test_messages_appear_with_the_commit() -> None:
    world = World()
    client = transactional(world)
    client.publish("q")
    client.publish("q")
    assert ready(world) == 0
    client.send(TxCommit())
    client.expect(TxCommitOk)
    assert ready(world) == 2
    client.publish("q")
    client.send(TxRollback())
    client.expect(TxRollbackOk)
    client.send(TxCommit())
    client.expect(TxCommitOk)
    assert ready(world) == 2


def test_acknowledgements_count_with_the_commit() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    for body in (b"a", b"b"):
        client.publish("q", body)
    client.send(TxSelect())
    client.expect(TxSelectOk)
    for _ in range(2):
        client.send(BasicGet(queue="q"))
        client.next()
    client.send(BasicAck(2, multiple=True))
    client.send(TxRollback())
    client.expect(TxRollbackOk)
    client.send(BasicAck(1))  # unacknowledged again
    client.send(BasicNack(2, requeue=True))
    client.send(TxCommit())
    client.expect(TxCommitOk)
    assert ready(world) == 1
    assert world.broker.vhosts["/"].queues["q"].message_count == 1


def test_what_a_transaction_settled_is_requeued_when_the_channel_closes() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish("q")
    client.send(TxSelect())
    client.send(BasicGet(queue="q"))
    client.send(BasicAck(1))
    client.send(ChannelClose(200))
    assert ready(world) == 1


def test_unroutable_mandatory_messages_return_at_the_commit() -> None:
    client = transactional(World())
    client.publish("absent", b"x", mandatory=True)
    client.expect_nothing()
    client.send(TxCommit())
    assert client.names() == ["basic.return", "tx.commit-ok"]


def test_transactions_have_a_limit() -> None:
    limits = ChannelLimits(max_transaction_messages=2)
    client = transactional(World(ConnectionSettings(channel_limits=limits)))
    for _ in range(3):
        client.publish("q")
    close = client.expect(ConnectionClose, 0)
    assert close.reply_code == 506


@pytest.mark.parametrize(
    ("selected", "method", "text"),
    [
        (TxSelect(), ConfirmSelect(), "cannot switch from tx to confirm mode"),
        (ConfirmSelect(nowait=True), TxSelect(), "cannot switch from confirm to tx mode"),
        (None, TxCommit(), "channel is not transactional"),
        (None, TxRollback(), "channel is not transactional"),
    ],
)
def test_confirms_and_transactions_exclude_each_other(
    selected: Any, method: Any, text: str
) -> None:
    client = World().open()
    if selected is not None:
        client.send(selected)
        client.names()
    client.send(method)
    expect_channel_close(client, ReplyCode.PRECONDITION_FAILED, text, type(method))


# Permissions ------------------------------------------------------------------------------------------


class Limited(Unrestricted):
    def may(self, permission: Permission, vhost: str, kind: str, name: str) -> bool:
        del vhost
        return not name.startswith(f"no-{permission}") and (kind, name) != (
            "exchange",
            "amq.default",
        )


def limited(credentials: Credentials, peer: Peer, reply: Reply[User]) -> None:
    del peer
    reply(Limited(credentials.name))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (BasicPublish(routing_key="q"), "write access to exchange 'amq.default' in vhost '/' refused for user 'guest'"),
        (BasicPublish(exchange="no-write"), "write access to exchange 'no-write' in vhost '/' refused for user 'guest'"),
        (BasicGet(queue="no-read"), "read access to queue 'no-read' in vhost '/' refused for user 'guest'"),
        (BasicConsume(queue="no-read"), "read access to queue 'no-read' in vhost '/' refused for user 'guest'"),
        (ExchangeDeclare(exchange="no-configure"), "configure access to exchange 'no-configure' in vhost '/' refused for user 'guest'"),
        (ExchangeDeclare(exchange="x", arguments=as_table({"alternate-exchange": "no-write"})), "write access to exchange 'no-write' in vhost '/' refused for user 'guest'"),
    ],
)  # fmt: skip
def test_permissions_are_checked(method: Any, text: str) -> None:
    client = World(check_credentials=limited).open()
    content = b"".join(content_frames(1, b"\0\0", b"", 4096))
    client.send_bytes(encode_method(1, method) + (content if method.has_content else b""))
    expect_channel_close(client, ReplyCode.ACCESS_REFUSED, text, type(method))


# The rest ---------------------------------------------------------------------------------------------


def test_flow_and_access_requests() -> None:
    client = World().open()
    client.send(ChannelFlow(active=True))
    assert client.expect(ChannelFlowOk).active
    client.send(AccessRequest())
    assert client.expect(AccessRequestOk).ticket == 1
    client.send(ChannelFlow(active=False))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - active=false")


class SlowBroker(HoldingBroker):
    """Answers when the test says so."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.waiting: list[Any] = []

    def administer(self, session: object, method: object, reply: Any) -> None:
        self.waiting.append(lambda: self._broker.administer(session, method, reply))

    def publish(self, session: object, publication: Any) -> None:
        self._broker.publish(session, publication)

    def answer(self) -> None:
        self.waiting.pop(0)()


def test_methods_wait_in_order_for_a_slow_answer() -> None:
    world = World()
    slow = SlowBroker(world.broker)
    client = World(ConnectionSettings(max_unconfirmed_bytes=1000), backend=slow).open()
    client.send(ExchangeDeclare(exchange="x", type="fanout"))
    client.publish("k", bytes(600), exchange="x")
    client.send(BasicConsume(queue="absent"))
    client.expect_nothing()
    client.publish("k", bytes(600), exchange="x")
    assert not client.is_read
    slow.answer()
    assert client.names() == ["exchange.declare-ok", "channel.close"]
    assert client.is_read


def test_an_answer_after_the_channel_is_closed_is_dropped() -> None:
    world = World()
    slow = SlowBroker(world.broker)
    client = World(backend=slow).open()
    client.send(ExchangeDeclare(exchange="x"))
    client.connection.shut_down("maintenance")
    slow.answer()
    assert client.names() == ["connection.close"]


def test_consume_ok_carries_a_generated_tag() -> None:
    client = World().open()
    client.declare("q")
    client.send(BasicConsume(queue="q"))
    assert client.expect(BasicConsumeOk).consumer_tag.startswith("amq.ctag-")
