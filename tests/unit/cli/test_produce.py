import io
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.output import Output
from penstock.cli.produce import Line, Sender, _lines, split_key
from penstock.client.errors import ClientError


def arguments(**given: Any) -> Namespace:
    defaults: dict[str, Any] = {
        "topic": "orders",
        "key": None,
        "key_separator": None,
        "null_value": False,
        "partition": None,
        "header": [],
        "acks": "all",
        "compression": "none",
        "properties": [],
        "bootstrap": "127.0.0.1:1",
    }
    return Namespace(**{**defaults, **given})


def lines(data: bytes, **given: Any) -> list[Line]:
    return list(_lines(io.BytesIO(data), arguments(**given)))


def test_every_line_is_a_message_also_the_last_without_an_end() -> None:
    assert lines(b"a\n\nb\r\nc") == [
        Line(None, b"a"),
        Line(None, b""),
        Line(None, b"b\r"),
        Line(None, b"c"),
    ]


def test_an_empty_value_is_a_tombstone_only_when_asked() -> None:
    assert lines(b"k:\n", key_separator=":", null_value=True) == [Line(b"k", None)]
    assert lines(b"k:\n", key_separator=":") == [Line(b"k", b"")]
    assert lines(b"x\n\n", key="k", null_value=True) == [Line(b"k", b"x"), Line(b"k", None)]


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(min_size=1, max_size=3))
def test_key_and_value_are_what_the_first_separator_parts(
    key: bytes, value: bytes, separator: bytes
) -> None:
    text = key + separator + value
    found_key, found_value = split_key(text, separator)
    assert found_key is not None
    assert found_key + separator + found_value == text
    assert separator not in found_key


def test_a_line_without_the_separator_has_no_key() -> None:
    assert split_key(b"just a value", b":") == (None, b"just a value")


class Refusal:
    def str(self) -> str:
        return "Broker: Message size too large"


class FakeProducer:
    """Answers every message in the next poll; refuses those that say so; has room for two."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.waiting: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self.sent: list[tuple[Any, ...]] = []

    def produce(self, topic: str, value: bytes, key: bytes | None, **more: Any) -> None:
        if len(self.waiting) == 2:
            raise BufferError
        self.waiting.append((value, more.pop("on_delivery")))
        self.sent.append((topic, value, key, more))

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self.flush(timeout_s)

    def flush(self, timeout_s: float) -> int:
        assert timeout_s > 0
        waiting, self.waiting = self.waiting, []
        for value, on_delivery in waiting:
            on_delivery(Refusal() if value == b"refuse me" else None, value)
        return 0

    def purge(self) -> None:
        self.waiting.clear()


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setattr(confluent_kafka, "Producer", FakeProducer)
    return Sender(arguments(partition=2, header=[("a", "1")]))


def test_a_full_queue_is_waited_for_and_all_is_counted(
    sender: Sender, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        sender.send(Line(b"k", b"%d" % number))
    sender.finish()
    sender.report(Output())
    assert capsys.readouterr().err == "sent 5 messages to orders\n"
    producer = sender._producer
    assert isinstance(producer, FakeProducer)
    sent = producer.sent
    assert sent[4] == ("orders", b"4", b"k", {"partition": 2, "headers": [("a", b"1")]})


def test_the_first_refusal_ends_it_with_the_brokers_words(sender: Sender) -> None:
    sender.send(Line(None, b"fine"))
    sender.send(Line(None, b"refuse me"))
    with pytest.raises(ClientError, match=r"message 2 .* Message size too large; 1 were accepted"):
        sender.finish()
