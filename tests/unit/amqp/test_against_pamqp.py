"""A whole session in frames that pamqp writes and reads."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pamqp", reason="an oracle of the dev extra")

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header

from penstock.amqp.connection import Connection
from penstock.amqp.effects import Send
from penstock.wire.amqp.frames import PROTOCOL_HEADER
from tests.support.amqp_client import LOOPBACK, World

commands = pamqp.commands


class Session:
    """A client that knows nothing but pamqp."""

    def __init__(self) -> None:
        self.connection = Connection(World().services, LOOPBACK, lambda: None, 0)

    def talk(self, *frames: Any, channel: int = 1) -> list[Any]:
        """Send frames. Return what comes back."""
        data = b"".join(
            frame if isinstance(frame, bytes) else pamqp.frame.marshal(frame, channel)
            for frame in frames
        )
        self.connection.receive(data, 0)
        answer = b"".join(
            effect.data for effect in self.connection.drain(0) if isinstance(effect, Send)
        )
        found = []
        while answer:
            used, _, frame = pamqp.frame.unmarshal(answer)
            found.append(frame)
            answer = answer[used:]
        return found


def opened() -> Session:
    session = Session()
    (start,) = session.talk(PROTOCOL_HEADER)
    assert start.server_properties["product"] == "Penstock"
    assert start.server_properties["capabilities"]["basic.nack"] is True
    (tune,) = session.talk(
        commands.Connection.StartOk({"capabilities": {}}, "PLAIN", "\0guest\0guest", "en_US"),
        channel=0,
    )
    session.talk(
        commands.Connection.TuneOk(tune.channel_max, tune.frame_max, tune.heartbeat), channel=0
    )
    (opened_,) = session.talk(commands.Connection.Open("/"), channel=0)
    assert isinstance(opened_, commands.Connection.OpenOk)
    (channel,) = session.talk(commands.Channel.Open())
    assert isinstance(channel, commands.Channel.OpenOk)
    return session


def publish(key: str, body: bytes, **properties: Any) -> list[Any]:
    header = pamqp.header.ContentHeader(0, len(body), commands.Basic.Properties(**properties))
    return [
        commands.Basic.Publish(routing_key=key, mandatory=True),
        header,
        pamqp.body.ContentBody(body),
    ]


def test_a_session_of_pamqp() -> None:
    session = opened()
    (declared,) = session.talk(commands.Queue.Declare(queue="q", arguments={"x-max-length": 10}))
    assert (declared.queue, declared.message_count) == ("q", 0)
    assert isinstance(session.talk(commands.Confirm.Select())[0], commands.Confirm.SelectOk)
    headers = {"a": 1, "t": {"n": [1, "x", True, None]}}
    (ack,) = session.talk(*publish("q", b"body", headers=headers, message_id="m", priority=1))
    assert (ack.delivery_tag, ack.multiple) == (1, False)
    ok, deliver, header, body = session.talk(commands.Basic.Consume(queue="q", consumer_tag="c"))
    assert ok.consumer_tag == "c"
    assert (deliver.delivery_tag, deliver.routing_key, deliver.redelivered) == (1, "q", False)
    assert header.properties.headers == headers
    assert (header.properties.message_id, header.properties.priority) == ("m", 1)
    assert body.value == b"body"
    assert session.talk(commands.Basic.Ack(1)) == []
    returned, _, body, ack = session.talk(*publish("absent", b"lost"))
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert body.value == b"lost"
    assert ack.delivery_tag == 2
    (closed,) = session.talk(commands.Basic.Ack(9))
    assert (closed.reply_code, closed.reply_text) == (
        406,
        "PRECONDITION_FAILED - unknown delivery tag 9",
    )
    (bye,) = session.talk(commands.Connection.Close(200, "bye", 0, 0), channel=0)
    assert isinstance(bye, commands.Connection.CloseOk)
