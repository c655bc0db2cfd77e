"""Random methods and mutated bytes never crash a connection, and it always ends in a defined state.

`AMQP_SEQUENCES=10000` runs that many sequences instead of 300.
"""

from __future__ import annotations

import dataclasses
import os
from random import Random
from typing import Any, Final

import pytest

from penstock.amqp.channel import ChannelState
from penstock.amqp.connection import ConnectionState
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.connection_methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
)
from penstock.wire.amqp.frames import content_frames
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import BasicPublish
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.tables import as_table
from tests.support.amqp_client import Client, World
from tests.support.amqp_lazy_broker import LazyBroker
from tests.support.amqp_values import ALL_METHODS
from tests.support.mutations import mutate
from tests.support.seed import chosen_seed

SEQUENCES: Final = int(os.environ.get("AMQP_SEQUENCES", "300"))
STEPS: Final = 60
SETTINGS: Final = ConnectionSettings(max_unconfirmed_bytes=20_000)
_NAMES: Final = ["", "q", "r", "x", "amq.fanout", "amq.topic", "amq.rabbitmq.reply-to", "absent"]
_TABLES: Final[list[dict[str, Any]]] = [
    {},
    {},
    {},
    {"x-message-ttl": 5, "x-dead-letter-exchange": "amq.fanout"},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": 1, "x-dead-letter-exchange": "x"},
    {"x-max-priority": 3},
    {"x-priority": 5},
    {"x-single-active-consumer": True},
    {"alternate-exchange": "amq.topic"},
    {"x-match": "any", "a": 1},
    {"x-queue-type": "quorum"},
    {"x-delayed-type": "fanout"},
]
_TEXTS: Final = {
    "type": ["direct", "fanout", "topic", "headers", "x-delayed-message", "x-consistent-hash", "?"],
    "routing_key": ["", "q", "r", "a.b", "#", "1"],
    "consumer_tag": ["", "c", "d"],
}
_BYTES: Final = {"Octet": 0xFF, "Short": 5, "Long": 1, "LongLong": 20}
_FROM_BROKERS: Final = {"basic.deliver", "basic.return", "basic.get-empty", "connection.secure"}
_METHODS: Final = [
    method
    for method in ALL_METHODS
    if not method.name.startswith(("connection", "channel"))
    and not method.name.endswith("-ok")
    and method.name not in _FROM_BROKERS
]
_ENDS_MUCH: Final = 0.02  # how often something is drawn that ends the connection


def random_method(random: Random) -> Method:
    methods = ALL_METHODS if random.random() < _ENDS_MUCH else _METHODS
    method = random.choice(methods)
    values: dict[str, Any] = {}
    for described in dataclasses.fields(method):  # type: ignore[arg-type]  # the decorator makes each a dataclass
        kind, name = str(described.type), described.name
        if kind == "ShortStr":
            values[name] = random.choice(_TEXTS.get(name, _NAMES))
        elif kind == "Bit":
            values[name] = random.random() < _chance(method.name, name)
        elif kind == "Table":
            values[name] = as_table(random.choice(_TABLES))
        elif kind == "LongStr":
            values[name] = random.randbytes(3)
        else:
            values[name] = random.randint(0, _BYTES[kind])
    if method.name == "basic.qos":
        values["prefetch_size"] = 0
    if method.name == "basic.consume" and values["consumer_tag"]:
        values["consumer_tag"] += str(random.randrange(1000))
    return method(**values)


def _chance(method: str, bit: str) -> float:
    if bit == "immediate":
        return _ENDS_MUCH
    if method.startswith("basic.recover"):
        return 1 - _ENDS_MUCH
    return 0.05 if bit == "passive" else 0.3


def random_bytes(random: Random, channel: int) -> bytes:
    method = random_method(random)
    data = encode_method(channel, method)
    if isinstance(method, BasicPublish):
        properties = Properties(
            headers=as_table(random.choice([{}, {"a": 1}, {"CC": ["r"]}, {"x-delay": 50}])),
            expiration=random.choice([None, None, "10"]),
            priority=random.choice([None, 1]),
        )
        body = bytes(random.choice([0, 1, 5000]))
        data += b"".join(content_frames(channel, encode_properties(properties), body, 4096))
    return data


def open_again(client: Client, number: int) -> None:
    """Open a channel, or answer that it is closed."""
    channels = client.connection.channels
    if channels is None:
        return
    channel = channels.get(number)
    if channel is None:
        client.send(ChannelOpen(), number)
    elif channel.state is ChannelState.CLOSING:
        client.send(ChannelCloseOk(), number)
        client.send(ChannelOpen(), number)


def check(client: Client) -> None:
    """Check what must hold between any two steps."""
    connection = client.connection
    if connection.state is ConnectionState.CLOSED:
        assert client.closed is not None
        assert connection.channels is None
    elif connection.state is ConnectionState.CLOSING:
        assert connection.channels is None
        assert connection.deadline_ms is not None
    else:
        assert connection.channels is not None


def check_empty(world: World) -> None:
    """Check that nothing of a connection is left in the broker."""
    for queue in world.broker.vhosts["/"].queues.values():
        assert queue.owner is None
        assert not len(queue.dispatcher)
        assert queue.ready_count == queue.message_count
    assert not world.broker.vhosts["/"].replies


@pytest.mark.parametrize("share", range(4))
def test_random_methods_end_in_a_defined_state(share: int) -> None:
    random = Random(f"{chosen_seed()} methods {share}")
    running = 0
    for _ in range(SEQUENCES // 4):
        world = World(SETTINGS)
        client = world.open(1, 2)
        for _ in range(STEPS):
            random_step(client, random)
        running += client.connection.state is ConnectionState.RUNNING
        end(client)
        check_empty(world)
    assert running, "most sequences must get somewhere"


@pytest.mark.parametrize("share", range(4))
def test_a_backend_may_answer_at_any_time(share: int) -> None:
    random = Random(f"{chosen_seed()} lazy {share}")
    running = 0
    for _ in range(SEQUENCES // 4):
        world = World(SETTINGS)
        lazy = LazyBroker(world.broker, random)
        world.services = world.services._replace(backend=lazy)
        client = world.open(1, 2)
        for _ in range(STEPS):
            random_step(client, random)
            lazy.work()
        running += client.connection.state is ConnectionState.RUNNING
        if random.random() < 0.5:
            lazy.work(everything=True)
        end(client)
        lazy.work(everything=True)
        check_empty(world)
        assert client.connection._link._used_bytes == 0
    assert running, "most sequences must get somewhere"


def random_step(client: Client, random: Random) -> None:
    world = client.world
    channel = random.choice([1, 1, 1, 2, 3])
    open_again(client, channel)
    step = random.random()
    if step < 0.05:
        client.send(ChannelClose(200), channel)
    elif step < 0.15:
        world.wait(random.choice([1, 10, 100]), client)
    elif step < 0.18:
        client.connection.set_writable(random.random() < 0.7)
        client.take()
    elif step < 0.2:
        client.connection.block("why not")
        client.connection.unblock()
        client.take()
    else:
        client.send_bytes(random_bytes(random, channel))
    client.received.clear()
    check(client)


def end(client: Client) -> None:
    client.send(ConnectionClose(200), 0)
    assert client.closed is not None


@pytest.mark.parametrize("share", range(4))
def test_mutated_bytes_end_in_a_defined_state(share: int) -> None:
    random = Random(f"{chosen_seed()} bytes {share}")
    for _ in range(SEQUENCES // 4):
        world = World(SETTINGS)
        client = world.open(1, 2)
        for _ in range(10):
            data = b"".join(random_bytes(random, random.choice([1, 2])) for _ in range(3))
            if random.random() < 0.4:
                spoiled = bytearray(data)
                mutate(spoiled, random)
                data = bytes(spoiled)
            cut = random.randint(0, len(data))
            client.send_bytes(data[:cut])
            client.send_bytes(data[cut:])
            client.received.clear()
            check(client)
        client.connection.connection_lost()
        check_empty(world)


def test_random_bytes_before_the_handshake_end_in_a_defined_state() -> None:
    random = Random(chosen_seed())
    world = World()
    for _ in range(SEQUENCES):
        client = world.connect()
        client.send_bytes(random.choice([b"", b"AMQP", b"AMQP\0\0\x09\x01"]) + random.randbytes(20))
        world.wait(10_000, client)
        assert client.connection.state is ConnectionState.CLOSED
