import io
import signal
from argparse import Namespace
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from penstock.cli.consume import Printer
from penstock.cli.formats import compile_format
from penstock.client.errors import ClientError
from penstock.model.ids import TopicPartition


class FakeError(NamedTuple):
    number: int
    is_retriable: bool = False

    def code(self) -> int:
        return self.number

    def retriable(self) -> bool:
        return self.is_retriable

    def str(self) -> str:
        return "the broker's words"


class FakeMessage(NamedTuple):
    number: int
    place: int = 0
    failure: FakeError | None = None

    def error(self) -> FakeError | None:
        return self.failure

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self.place

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self.number

    def headers(self) -> None:
        return None


class FakeConsumer:
    """Hands out its script; afterwards it has nothing more, and calls whoever asked to be told."""

    script: list[FakeMessage]
    instances: list["FakeConsumer"]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.queue = list(self.script)
        self.assigned: list[Any] = []
        self.stored: list[int] = []
        self.is_closed = False
        self.instances.append(self)

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = partitions

    def assignment(self) -> list[Any]:
        return self.assigned

    def subscribe(self, topics: list[str]) -> None:
        self.assigned = [confluent_kafka.TopicPartition(topic, 0) for topic in topics]

    def poll(self, timeout_s: float) -> FakeMessage | None:
        assert timeout_s > 0
        return self.queue.pop(0) if self.queue else None

    def consume(self, count: int, timeout_s: float) -> list[FakeMessage]:
        assert timeout_s == 0
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def store_offsets(self, message: FakeMessage) -> None:
        self.stored.append(message.number)

    def close(self) -> None:
        self.is_closed = True


END = FakeError(confluent_kafka.KafkaError._PARTITION_EOF)


@pytest.fixture(autouse=True)
def _fake_client(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeConsumer.instances = []
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)


def consume(script: list[FakeMessage], **given: Any) -> tuple[str, FakeConsumer]:
    FakeConsumer.script = script
    defaults: dict[str, Any] = {
        "topic": "orders",
        "group": None,
        "start": "start",
        "count": None,
        "exit_at_end": False,
        "json": False,
        "format": compile_format(r"%s\n"),
        "properties": [],
        "bootstrap": "127.0.0.1:1",
    }
    out = io.BytesIO()
    printer = Printer(Namespace(**{**defaults, **given}), out)
    printer.consume({TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 7})
    [consumer] = FakeConsumer.instances
    return out.getvalue().decode(), consumer


def test_no_more_than_asked_for_is_taken() -> None:
    printed, consumer = consume([FakeMessage(number) for number in range(10)], count=3)
    assert printed == "0\n1\n2\n"
    assert len(consumer.queue) == 7
    assert consumer.is_closed


def test_a_message_is_printed_and_stored_before_the_next_call_may_revoke_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored_at_consume: list[list[int]] = []

    def consume_and_revoke(consumer: FakeConsumer, *_: object) -> list[FakeMessage]:
        stored_at_consume.append(list(consumer.stored))
        return []

    monkeypatch.setattr(FakeConsumer, "consume", consume_and_revoke)
    consume([FakeMessage(0), FakeMessage(1)], group="billing", count=2)
    assert stored_at_consume == [[0]]


def test_it_begins_where_each_partition_was_said_to() -> None:
    _, consumer = consume([FakeMessage(0)], count=1)
    assert [(place.partition, place.offset) for place in consumer.assigned] == [(0, 0), (1, 7)]


def test_the_end_is_reached_when_every_partition_has_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [
        FakeMessage(0, 0),
        FakeMessage(0, 0, END),
        FakeMessage(1, 0),  # news after the end: not at the end any more
        FakeMessage(7, 1, END),
        FakeMessage(2, 0),
        FakeMessage(3, 0, END),
    ]
    monkeypatch.setattr(FakeConsumer, "consume", lambda *_: [])  # one by one
    printed, consumer = consume(script, exit_at_end=True)
    assert printed == "0\n1\n2\n"
    assert consumer.settings["enable.partition.eof"] is True


def test_a_member_of_a_group_commits_what_it_has_printed_and_no_more() -> None:
    _, consumer = consume([FakeMessage(number) for number in range(5)], group="g", count=2)
    assert consumer.stored == [0, 1]
    assert consumer.settings["enable.auto.commit"] is True
    assert consumer.settings["enable.auto.offset.store"] is False


def test_without_a_group_nothing_is_committed() -> None:
    _, consumer = consume([FakeMessage(0)], count=1)
    assert consumer.stored == []
    assert consumer.settings["enable.auto.commit"] is False


def test_an_error_that_will_not_pass_ends_it() -> None:
    with pytest.raises(ClientError, match="the broker's words"):
        consume([FakeMessage(0, failure=FakeError(29))])


def test_an_error_that_may_pass_is_waited_out() -> None:
    printed, _ = consume([FakeMessage(0, failure=FakeError(6, True)), FakeMessage(1)], count=1)
    assert printed == "1\n"


def test_a_signal_ends_it_between_two_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = []
    monkeypatch.setattr(
        signal, "signal", lambda number, handler: handlers.append((number, handler))
    )

    class Interrupting(FakeConsumer):
        def poll(self, timeout_s: float) -> FakeMessage | None:
            message = super().poll(timeout_s)
            if message is None:
                printer.stop(signal.SIGINT, None)
            return message

    monkeypatch.setattr(confluent_kafka, "Consumer", Interrupting)
    Interrupting.script = [FakeMessage(0), FakeMessage(1)]
    printer = Printer(
        Namespace(
            topic="orders",
            group=None,
            start="end",
            count=None,
            exit_at_end=False,
            json=True,
            properties=[],
            bootstrap="b",
        ),
        io.BytesIO(),
    )
    printer.consume({TopicPartition("orders", 0): 0})
    assert printer.printed == 2
    assert handlers == [(signal.SIGINT, signal.SIG_DFL)], "a second Ctrl-C ends the process"
