"""Connections: the handshake, heartbeats, limits, blocking and errors, as RabbitMQ does them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.amqp.backend import Reply, Unrestricted, User
from penstock.amqp.connection import ConnectionState
from penstock.amqp.credentials import Credentials, Peer
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import FRAME_BODY, encode_method
from penstock.wire.amqp.connection_methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_0_9,
    encode_frame,
)
from penstock.wire.amqp.methods import BasicAck, BasicNack, ConfirmSelect, ConfirmSelectOk
from penstock.wire.amqp.tables import as_plain, as_table, encode_table
from tests.support.amqp_client import LOOPBACK, Client, World

REMOTE = Peer("10.0.0.1", is_loopback=False)


def expect_close(client: Client, code: ReplyCode, text: str) -> ConnectionClose:
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (code, f"{code.name} - {text}")
    assert client.closed is None
    client.send(ConnectionCloseOk(), 0)
    assert client.closed is not None
    return close


# Handshake --------------------------------------------------------------------------------------------


def test_the_handshake_negotiates_and_opens() -> None:
    client = World(ConnectionSettings(version="1.0")).connect()
    client.send_bytes(PROTOCOL_HEADER)
    start = client.expect(ConnectionStart, 0)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    properties = {name: as_plain(value) for name, value in start.server_properties.items()}
    assert properties["product"] == "Penstock"
    assert properties["capabilities"]["connection.blocked"] is True
    client.send(ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"), 0)
    tune = client.expect(ConnectionTune, 0)
    assert tune == ConnectionTune(2047, 131_072, 60)
    client.send(ConnectionTuneOk(10, 8192, 30), 0)
    client.send(ConnectionOpen("/"), 0)
    client.expect(ConnectionOpenOk, 0)
    assert client.connection.state is ConnectionState.RUNNING
    assert client.connection.handshake.frame_max_bytes == 8192
    assert client.connection.handshake.heartbeat_ms == 30_000


def test_the_header_of_0_9_is_accepted_and_may_come_in_pieces() -> None:
    client = World().connect()
    for byte in PROTOCOL_HEADER_0_9:
        client.send_bytes(bytes([byte]))
    client.expect(ConnectionStart, 0)


@pytest.mark.parametrize(
    "header", [b"GET / HTTP/1.1\r\n", b"AMQP\x03\x01\x00\x00", b"AMQP\0\0\x08\0", b"\x16\x03\x01"]
)
def test_a_wrong_header_is_answered_with_the_right_one(header: bytes) -> None:
    client = World().connect()
    client.send_bytes(header)
    assert client.raw == PROTOCOL_HEADER
    assert client.closed is not None
    assert client.closed.delay_ms == 0


def test_everything_may_come_in_one_read() -> None:
    client = World().connect()
    client.send_bytes(
        PROTOCOL_HEADER
        + encode_method(0, ConnectionStartOk({}, "PLAIN", b"\0a\0b"))
        + encode_method(0, ConnectionTuneOk(0x7FF, 131_072, 0))
        + encode_method(0, ConnectionOpen("/"))
        + encode_method(1, ChannelOpen())
    )
    assert client.names() == [
        *("connection.start", "connection.tune", "connection.open-ok", "channel.open-ok")
    ]


def start_ok(client: Client, mechanism: str, response: bytes, *, tell: bool = True) -> None:
    client.send_bytes(PROTOCOL_HEADER)
    client.expect(ConnectionStart, 0)
    capabilities = as_table({"capabilities": {"authentication_failure_close": tell}})
    client.send(ConnectionStartOk(capabilities, mechanism, response), 0)


def test_amqplain_carries_a_table() -> None:
    client = World().connect()
    start_ok(client, "AMQPLAIN", encode_table(as_table({"LOGIN": "a", "PASSWORD": "b"}))[4:])
    client.expect(ConnectionTune, 0)
    user = client.connection.handshake.user
    assert user is not None
    assert user.name == "a"


def test_external_takes_the_name_from_the_certificate() -> None:
    client = World().connect(LOOPBACK._replace(certificate_name="O=client"))
    client.send_bytes(PROTOCOL_HEADER)
    assert client.expect(ConnectionStart, 0).mechanisms == b"PLAIN AMQPLAIN EXTERNAL"
    client.send(ConnectionStartOk({}, "EXTERNAL", b""), 0)
    client.expect(ConnectionTune, 0)
    user = client.connection.handshake.user
    assert user is not None
    assert user.name == "O=client"


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"guest"),
        ("PLAIN", b"\0a\0b\0c"),
        ("PLAIN", b"root\0guest\0guest"),
        ("AMQPLAIN", b"garbage"),
        ("AMQPLAIN", encode_table(as_table({"LOGIN": "a"}))[4:]),
        ("AMQPLAIN", encode_table(as_table({"LOGIN": 1, "PASSWORD": "b"}))[4:]),
        ("EXTERNAL", b""),  # without a certificate
        ("SCRAM-SHA-1", b""),
    ],
)
def test_a_malformed_login_is_closed_in_silence(mechanism: str, response: bytes) -> None:
    client = World().connect()
    start_ok(client, mechanism, response)
    client.expect_nothing()
    assert client.closed is not None
    assert client.closed.delay_ms == 1000


def test_strangers_are_refused_while_there_are_no_users() -> None:
    client = World().connect(REMOTE)
    start_ok(client, "PLAIN", b"\0guest\0guest")
    expect_close(
        client,
        ReplyCode.ACCESS_REFUSED,
        "Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile.",
    )


def test_a_refusal_is_silent_for_clients_that_do_not_understand_it() -> None:
    client = World().connect(REMOTE)
    start_ok(client, "PLAIN", b"\0guest\0guest", tell=False)
    client.expect_nothing()
    assert client.closed is not None
    assert client.closed.delay_ms == 1000
    assert "user 'guest' can only connect via localhost" in client.closed.reason


class SlowCheck:
    """Checks credentials when the test says so."""

    def __init__(self) -> None:
        self.replies: list[Reply[User]] = []
        self.seen: list[Credentials] = []

    def __call__(self, credentials: Credentials, peer: Peer, reply: Reply[User]) -> None:
        del peer
        self.seen.append(credentials)
        self.replies.append(reply)


def test_credentials_may_be_checked_later() -> None:
    check = SlowCheck()
    client = World(check_credentials=check).connect()
    start_ok(client, "PLAIN", b"\0a\0secret")
    client.expect_nothing()
    assert check.seen == [Credentials("PLAIN", "a", b"secret")]
    before = client.announced
    check.replies[0](Unrestricted("a"))
    assert client.announced == before + 1
    client.expect(ConnectionTune, 0)


def test_an_answer_after_the_connection_is_gone_is_ignored() -> None:
    check = SlowCheck()
    client = World(check_credentials=check).connect()
    start_ok(client, "PLAIN", b"\0a\0secret")
    client.connection.connection_lost()
    check.replies[0](Unrestricted("a"))
    client.expect_nothing()


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        (
            ConnectionTuneOk(0, 131_072, 0),
            "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
        ),
        (
            ConnectionTuneOk(2047, 131_073, 0),
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            ConnectionTuneOk(2047, 4095, 0),
            "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
        ),
    ],
)
def test_a_client_cannot_raise_the_limits(tuned: ConnectionTuneOk, text: str) -> None:
    client = World().connect()
    start_ok(client, "PLAIN", b"\0a\0b")
    client.expect(ConnectionTune, 0)
    client.send(tuned, 0)
    close = expect_close(client, ReplyCode.NOT_ALLOWED, text)
    assert (close.class_id, close.method_id) == (10, 31)


def test_an_unknown_vhost_is_not_allowed() -> None:
    client = World().connect()
    start_ok(client, "PLAIN", b"\0a\0b")
    client.expect(ConnectionTune, 0)
    client.send(ConnectionTuneOk(2047, 131_072, 0), 0)
    client.send(ConnectionOpen("absent"), 0)
    close = expect_close(client, ReplyCode.NOT_ALLOWED, "vhost absent not found")
    assert (close.class_id, close.method_id) == (10, 40)


def test_methods_out_of_turn_end_the_handshake_in_silence() -> None:
    client = World().connect()
    client.send_bytes(PROTOCOL_HEADER)
    client.expect(ConnectionStart, 0)
    client.send(ConnectionOpen("/"), 0)
    client.expect_nothing()
    assert client.closed is not None


def test_a_slow_handshake_times_out() -> None:
    world = World()
    client = world.connect()
    client.send_bytes(PROTOCOL_HEADER)
    assert client.connection.deadline_ms == world.now_ms + 10_000
    world.wait(9_999, client)
    assert client.closed is None
    world.wait(1, client)
    assert client.closed is not None


# Heartbeats -------------------------------------------------------------------------------------------


def test_heartbeats_go_both_ways_and_two_missed_ones_close() -> None:
    world = World()
    client = world.open(heartbeat=10)
    world.wait(4_999, client)
    assert client.heartbeats == 0
    world.wait(1, client)
    assert client.heartbeats == 1
    world.wait(5_000, client)
    assert client.heartbeats == 2
    client.send_bytes(HEARTBEAT)
    for _ in range(3):
        world.wait(5_000, client)
    assert client.closed is None
    assert client.connection.deadline_ms == world.now_ms + 5_000
    world.wait(5_000, client)
    assert client.closed is not None
    assert client.closed.reason == "missed heartbeats from client, timeout: 10s"


def test_any_bytes_are_a_sign_of_life() -> None:
    world = World()
    client = world.open(heartbeat=10)
    for _ in range(10):
        world.wait(10_000, client)
        client.send_bytes(b"\x08")  # a part of a frame
        client.send_bytes(HEARTBEAT[1:])
    assert client.closed is None


def test_an_interval_of_zero_turns_heartbeats_off() -> None:
    world = World()
    client = world.open(heartbeat=0)
    assert client.connection.deadline_ms is None
    world.wait(10_000_000, client)
    assert client.heartbeats == 0
    assert client.closed is None


# Closing ----------------------------------------------------------------------------------------------


def test_a_client_closes() -> None:
    client = World().open()
    client.send(ConnectionClose(200, "bye"), 0)
    client.expect(ConnectionCloseOk, 0)
    assert client.closed is not None
    assert client.connection.deadline_ms is None
    client.send_bytes(b"garbage after the end")
    client.expect_nothing()


def test_the_broker_closes_and_waits_for_the_answer() -> None:
    world = World()
    client = world.open()
    client.connection.shut_down("maintenance")
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - maintenance")
    client.publish("q", b"ignored")
    client.send(ChannelOpen(), 2)
    client.expect_nothing()
    world.wait(30_000, client)
    assert client.closed is not None


def test_both_sides_may_close_at_the_same_time() -> None:
    client = World().open()
    client.connection.shut_down("maintenance")
    client.send(ConnectionClose(200, "bye"), 0)
    assert client.names() == ["connection.close", "connection.close-ok"]
    assert client.closed is not None


# Errors -----------------------------------------------------------------------------------------------


def test_a_channel_that_is_not_open_is_a_channel_error() -> None:
    client = World().open()
    client.send(BasicAck(1), 2)
    close = expect_close(client, ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
    assert (close.class_id, close.method_id) == (60, 80)


def test_opening_a_channel_twice_is_a_channel_error() -> None:
    client = World().open()
    client.send(ChannelOpen())
    expect_close(client, ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def test_an_unknown_method_is_not_implemented() -> None:
    client = World().open()
    client.send_bytes(encode_frame(1, 1, b"\x00\x3c\x03\xe7"))
    close = client.expect(ConnectionClose, 0)
    assert close.reply_code == 540


def test_a_method_that_only_brokers_send_is_invalid() -> None:
    client = World().open()
    client.send(ConfirmSelectOk())
    expect_close(client, ReplyCode.COMMAND_INVALID, "unimplemented method")


def test_methods_of_class_connection_belong_to_channel_zero() -> None:
    client = World().open()
    client.send(ConnectionOpen("/"), 1)
    expect_close(client, ReplyCode.COMMAND_INVALID, "unimplemented method")


def test_other_methods_on_channel_zero_are_a_channel_error() -> None:
    client = World().open()
    client.send(BasicAck(1), 0)
    expect_close(client, ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")


def test_an_unknown_frame_type_is_a_frame_error() -> None:
    client = World().open()
    client.send_bytes(encode_frame(7, 1, b"ab"))
    expect_close(client, ReplyCode.FRAME_ERROR, "type 7, all octets = <<97,98>>: unknown_frame")


def test_a_heartbeat_on_a_channel_is_unexpected() -> None:
    client = World().open()
    client.send_bytes(encode_frame(8, 1, b""))
    expect_close(client, ReplyCode.UNEXPECTED_FRAME, "type 8, all octets = <<>>")


def test_a_body_on_channel_zero_is_unexpected() -> None:
    client = World().open()
    client.send_bytes(encode_frame(FRAME_BODY, 0, b"x"))
    expect_close(client, ReplyCode.UNEXPECTED_FRAME, "type 3, all octets = <<120>>")


@pytest.mark.parametrize("data", [b"\x01\0\x01\0\0\0\x01xx", b"\x01\0\x01\xff\0\0\0"])
def test_bytes_that_are_no_frames_end_the_connection_at_once(data: bytes) -> None:
    client = World().open()
    client.send_bytes(data)
    close = client.expect(ConnectionClose, 0)
    assert close.reply_code == 501
    assert client.closed is not None
    assert client.closed.delay_ms == 1000


def test_frames_may_not_be_larger_than_agreed() -> None:
    client = World().open(frame_max=4096)
    client.send_bytes(b"\x03\0\x01\0\0\x10\x01")
    assert client.expect(ConnectionClose, 0).reply_code == 501


def test_channels_are_limited() -> None:
    client = World().open(1, 2, channel_max=2)
    client.send(ChannelOpen(), 3)
    expect_close(
        client,
        ReplyCode.NOT_ALLOWED,
        "number of channels opened (2) has reached the negotiated channel_max (2)",
    )


def test_a_closed_channel_makes_room() -> None:
    client = World().open(1, 2, channel_max=2)
    client.send(ChannelClose(200), 1)
    client.expect(ChannelCloseOk)
    client.send(ChannelOpen(), 3)
    client.expect(ChannelOpenOk, 3)
    client.send(ChannelClose(200), 3)
    client.expect(ChannelCloseOk, 3)
    client.send(ChannelOpen(), 1)
    client.expect(ChannelOpenOk, 1)


def test_incomplete_messages_are_limited() -> None:
    client = World(ConnectionSettings(max_collected_bytes=5000)).open(1, 2)
    header = b"\x00\x3c\x00\x00" + (8000).to_bytes(8, "big") + b"\0\0"
    for channel in (1, 2):
        client.send_bytes(
            encode_frame(1, channel, b"\x00\x3c\x00\x28\0\0\0\0\0")
            + encode_frame(2, channel, header)
            + encode_frame(3, channel, bytes(3000))
        )
    assert client.expect(ConnectionClose, 0).reply_code == 506


# Blocking ---------------------------------------------------------------------------------------------


def test_a_client_that_publishes_with_confirms_is_told_and_nacked_while_blocked() -> None:
    client = World().open()
    client.send(ConfirmSelect())
    client.expect(ConfirmSelectOk)
    client.connection.block("disk full")
    client.expect_nothing()
    client.publish("q", b"a")
    assert client.expect(ConnectionBlocked, 0).reason == "disk full"
    assert client.expect(BasicNack).delivery_tag == 1
    client.publish("q", b"b")
    assert client.expect(BasicNack).delivery_tag == 2
    assert client.is_read
    client.connection.unblock()
    client.expect(ConnectionUnblocked, 0)
    client.publish("q", b"c")
    assert client.expect(BasicAck).delivery_tag == 3


def test_publishes_without_confirms_wait_while_blocked() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.connection.block("disk full")
    client.publish("q", b"a")
    client.expect(ConnectionBlocked, 0)
    assert not client.is_read
    assert not world.broker.vhosts["/"].queues["q"].ready_count
    client.connection.unblock()
    client.expect(ConnectionUnblocked, 0)
    assert client.is_read
    assert world.broker.vhosts["/"].queues["q"].ready_count == 1


def test_a_publish_that_waits_too_long_closes_the_connection() -> None:
    world = World()
    client = world.open(heartbeat=10)
    client.connection.block("disk full")
    client.publish("q", b"a")
    client.expect(ConnectionBlocked, 0)
    for _ in range(12):
        assert not client.received
        world.wait(5_000, client)
    assert client.expect(ConnectionClose, 0).reply_text == "CONNECTION_FORCED - disk full"


def test_clients_without_the_capability_are_not_told() -> None:
    client = World().open(capabilities={})
    client.connection.block("disk full")
    client.publish("q", b"a")
    client.connection.unblock()
    client.expect_nothing()


# Flow -------------------------------------------------------------------------------------------------


class HoldingBroker:
    """Passes everything to a real broker, but keeps publications to itself."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.held: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def publish(self, session: object, publication: Any) -> None:
        del session
        self.held.append(publication)


def test_a_connection_with_many_unconfirmed_bytes_is_not_read() -> None:
    holding = HoldingBroker(World().broker)
    client = World(ConnectionSettings(max_unconfirmed_bytes=3000), backend=holding).open()
    for _ in range(3):
        assert client.is_read
        client.publish("q", bytes(1000))
    assert not client.is_read
    for publication in holding.held[:2]:
        publication.publisher.confirmed(publication)
    client.take()
    assert client.is_read


def test_a_client_that_does_not_read_is_not_read() -> None:
    client = World().open()
    client.connection.set_writable(False)
    client.take()
    assert not client.is_read
    client.connection.set_writable(True)
    client.take()
    assert client.is_read


# Secrets ----------------------------------------------------------------------------------------------


def test_a_new_secret_is_checked_and_the_user_stays_the_same() -> None:
    check = SlowCheck()
    world = World(check_credentials=check)
    client = world.connect()
    start_ok(client, "PLAIN", b"\0a\0old")
    check.replies[0](Unrestricted("a"))
    client.expect(ConnectionTune, 0)
    client.send(ConnectionTuneOk(2047, 131_072, 0), 0)
    client.send(ConnectionOpen("/"), 0)
    client.expect(ConnectionOpenOk, 0)
    client.send(ConnectionUpdateSecret(b"new", "expired"), 0)
    assert check.seen[1] == Credentials("PLAIN", "a", b"new")
    check.replies[1](Unrestricted("a"))
    client.expect(ConnectionUpdateSecretOk, 0)
    client.send(ConnectionUpdateSecret(b"wrong", "expired"), 0)
    check.replies[2](AmqpError(ReplyCode.ACCESS_REFUSED, "wrong"))
    expect_close(client, ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends")
