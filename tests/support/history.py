"""What producers were told and readers saw, to be held against what the broker has in the end."""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import confluent_kafka

from tests.support.server import PATIENCE_S, until, until_data


class Message(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def producer(bootstrap: str, logger: logging.Logger | None = None, **more: Any) -> Any:
    """Impatient with the network, patient with its messages. Underscores are dots.

    `logger` gets librdkafka's log of sequence numbers and epochs while the producer is polled.
    """
    config = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "acks": "all",
        "linger.ms": 1,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 100,
        "retries": 1_000_000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "message.timeout.ms": 240_000,
    }
    config |= {name.replace("_", "."): value for name, value in more.items()}
    if logger is None:
        return confluent_kafka.Producer(config)
    config |= {"debug": "eos", "log_level": 7}  # syslog's debug
    return confluent_kafka.Producer(config, logger=logger)


def consumer(bootstrap: str) -> Any:
    """A reader that would rather fail than skip something."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "fetch.wait.max.ms": 50,
        }
    )


def send(bootstrap: str, topic: str, values: Iterable[bytes | None], **more: Any) -> list[int]:
    """Produce to partition 0 and wait; the offsets, in order. All must be acknowledged."""
    ledger = Ledger()
    sender = producer(bootstrap, **more)
    for value in values:
        ledger.send(sender, topic, value)
    assert sender.flush(PATIENCE_S) == 0
    assert not ledger.failures, ledger.failures[0]
    return sorted(ledger.acked)


def read_all(bootstrap: str, topic: str, partition: int = 0) -> list[Message]:
    """Everything from the log's start to its end."""
    reader = consumer(bootstrap)
    try:
        start, end = watermarks(reader, topic, partition)
        reader.assign([confluent_kafka.TopicPartition(topic, partition, start)])
        found: list[Message] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while position(reader, topic, partition) < end and start < end:
            assert time.monotonic() < deadline_s, f"{len(found)} messages; the log ends at {end}"
            for message in reader.consume(10_000, timeout=0.1):
                assert message.error() is None, message.error()
                found.append(Message(message.offset(), message.key(), message.value()))
        return found
    finally:
        reader.close()


def watermarks(reader: Any, topic: str, partition: int = 0) -> tuple[int, int]:
    """Where the log starts and ends."""
    found = reader.get_watermark_offsets(
        confluent_kafka.TopicPartition(topic, partition), timeout=PATIENCE_S
    )
    assert found is not None
    return found[0], found[1]


def position(reader: Any, topic: str, partition: int) -> int:
    """The next offset to be read, also past offsets that compaction took out; -1: not known yet."""
    return int(reader.position([confluent_kafka.TopicPartition(topic, partition)])[0].offset)


class Ledger:
    """Every value that was sent, and the offset at which each was acknowledged."""

    def __init__(self) -> None:
        self.sent: list[bytes | None] = []
        self.acked: dict[int, bytes | None] = {}
        self.unplaced: list[bytes | None] = []  # acknowledged, but the client does not know where
        self.failures: list[Any] = []

    def send(self, sender: Any, topic: str, value: bytes | None, partition: int = 0) -> None:
        self.sent.append(value)

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(error)
            elif message.offset() is None:  # a repeated batch whose first answer was lost
                self.unplaced.append(value)
            else:
                assert self.acked.setdefault(message.offset(), value) == value, "an offset twice"

        while True:
            try:
                sender.produce(topic, value, partition=partition, on_delivery=delivered)
                break
            except BufferError:
                sender.poll(0.1)
        sender.poll(0)

    @property
    def _answered(self) -> int:
        return len(self.acked) + len(self.unplaced) + len(self.failures)

    @property
    def in_flight(self) -> int:
        """How many messages are neither acknowledged nor failed."""
        return len(self.sent) - self._answered

    def pace(self, sender: Any, most: int = 1000) -> None:
        """Wait until no more than that is on its way."""
        until(
            lambda: sender.poll(0.001) >= 0 and self.in_flight <= most,
            "acknowledgements come in",
        )

    def check_kept(self, log: list[Message]) -> None:
        """Every acknowledged message is at the offset that was told."""
        there = {message.offset: message.value for message in log}
        missing = [value for value in self.unplaced if value not in there.values()]
        assert not missing, f"{len(missing)} lost that were acknowledged without an offset"
        lost = {at: value for at, value in self.acked.items() if there.get(at) != value}
        assert not lost, (
            f"{len(lost)} of {len(self.acked)} lost, the first: {next(iter(lost.items()))}"
        )

    def check_exact(self, log: list[Message]) -> None:
        """The log holds what was sent, all of it, in order, once, and offsets without a gap."""
        self.check_kept(log)
        assert [message.offset for message in log] == list(range(len(log)))
        assert [message.value for message in log] == self.sent


class Reading:
    """A consumer in a thread, from the log's start until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> None:
        self.seen: list[Message] = []
        self.errors: list[Any] = []
        self._consumer = consumer(bootstrap)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    self.seen.append(Message(message.offset(), message.key(), message.value()))
                else:
                    self.errors.append(message.error())
        self._consumer.close()

    def await_offset(self, offset: int) -> None:
        """Until everything below it was seen."""
        until_data(
            lambda: self.errors or (self.seen and self.seen[-1].offset >= offset - 1),
            f"a reader comes to offset {offset}",
        )
        assert not self.errors, self.errors[0]

    def end(self) -> list[Message]:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.seen

    def check_agrees(self, log: list[Message]) -> None:
        """Nothing that was seen is gone or different now, and it came in order, once."""
        there = {message.offset: message for message in log}
        assert [message.offset for message in self.seen] == sorted(
            {message.offset for message in self.seen}
        )
        for message in self.seen:
            assert there.get(message.offset) == message, f"{message} was seen, and is gone"
