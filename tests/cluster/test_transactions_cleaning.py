"""Compaction and retention at work over open transactions, and kill -9: readers of committed records miss and see nothing.

SEED=… replays the choices.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.raw_transactions import NEW, OLD, RawTransactional
from tests.support.server import Server, until, until_data
from tests.support.transactions import COMMITTED, LIBRARIES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = [pytest.param(800, id="few"), pytest.param(8000, id="many", marks=pytest.mark.long)]
COMPACTED, SHORT = "compacted", "short"
KEYS = 40
LONG_MS = 900_000  # no transaction ends but by its producer
PATIENT = "patient"  # it leaves its transactions open for long
SETTINGS = {
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.segment.bytes": 65_536,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 50,
}
TOPICS: dict[str, dict[str, Any]] = {
    COMPACTED: {
        "cleanup_policy": "compact",
        "segment_bytes": "16384",
        "min_cleanable_dirty_ratio": "0.01",
        "delete_retention_ms": "500",
    },
    SHORT: {"segment_bytes": "16384", "retention_bytes": "60000"},
}


class Keyed(RawTransactional):
    """What it sends has a key: `key=value`; a value of nothing deletes it."""

    def produce_request(self, name: TopicPartition, *values: bytes) -> ProduceRequest:
        request = super().produce_request(name, *values)
        pairs = [value.split(b"=") for value in values]
        records = [Record(n, 1, key, value or None) for n, (key, value) in enumerate(pairs)]
        batch = build_batch(
            records,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self._sequences.get(name, 0),
            transactional=True,
        )
        part = PartitionProduceData(index=name.partition, records=memoryview(batch))
        request.topic_data = [TopicProduceData(name=name.topic, partition_data=[part])]
        return request


class Sent(NamedTuple):
    offset: int
    key: bytes
    value: bytes
    transaction: int


class Story:
    """What was sent, and how it ended."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.committed: set[int] = set()
        self.open: dict[str, int] = {}  # by transactional id
        self.begun = 0

    def expected(self) -> tuple[dict[bytes, bytes], int]:
        """The last committed value of each key, below where the oldest open transaction begins."""
        stable = min(
            (sent.offset for sent in self.sent if sent.transaction in self.open.values()),
            default=1 << 62,
        )
        found = {
            sent.key: sent.value
            for sent in self.sent
            if sent.offset < stable and sent.transaction in self.committed
        }
        return {key: value for key, value in found.items() if value}, stable


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, SETTINGS) as started:
        for name, config in TOPICS.items():
            started.create_topic(name, **config)
        yield started


@pytest.mark.parametrize("steps", STEPS)
def test_readers_of_committed_records_see_what_was_committed_and_no_more(
    server: Server, rng: random.Random, steps: int
) -> None:
    story = Story()
    producers = [
        Keyed(server.bootstrap, name, version=version, timeout_ms=LONG_MS).initialize()
        for name, version in (("old", OLD), ("new", NEW), ("new-2", NEW), (PATIENT, NEW))
    ]
    for _ in range(steps):
        act(rng.choice(producers), story, rng)
        if rng.random() < 0.004:
            server.crash()
        if rng.random() < 0.01:
            check(server, story, rng)
    for producer in producers:
        end(producer, story, committed=True)
        producer.disconnect()
    check(server, story, rng)
    until(lambda: server.size_bytes(COMPACTED) < size_of_all(story), "it is compacted")
    check(server, story, rng)
    until_data(lambda: len(counts(server)) == 1, "all clients see the same, once cleaning rests")


def counts(server: Server) -> set[int]:
    """How many records each library reads."""
    return {
        len(library.read_all(server.bootstrap, COMPACTED, 1, COMMITTED)[0]) for library in LIBRARIES
    }


def act(producer: Keyed, story: Story, rng: random.Random) -> None:
    ends = rng.random() < (0.01 if producer.id == PATIENT else 0.2)
    if ends:
        end(producer, story, committed=rng.random() < 0.6)
        return
    if producer.id not in story.open:
        story.begun += 1
        story.open[producer.id] = story.begun
    transaction = story.open[producer.id]
    key = b"k%d" % rng.randrange(KEYS)
    value = b"" if rng.random() < 0.15 else b"%d-" % transaction + b"x" * rng.randrange(10, 400)
    offset = producer.send(COMPACTED, 0, key + b"=" + value)
    story.sent.append(Sent(offset, key, value, transaction))
    producer.send(SHORT, 0, b"k=%d-" % transaction + b"y" * 200)


def end(producer: Keyed, story: Story, *, committed: bool) -> None:
    transaction = story.open.pop(producer.id, None)
    if transaction is not None:
        producer.end(committed=committed)
        if committed:
            story.committed.add(transaction)


def check(server: Server, story: Story, rng: random.Random) -> None:
    expected, stable = story.expected()
    rows = read(server, COMPACTED, rng)
    offsets = [offset for offset, _, _ in rows]
    assert offsets == sorted(set(offsets)), "in order, and once"
    assert not offsets or offsets[-1] < stable, "nothing past the oldest open transaction"
    found = {key: value for _, key, value in rows}
    assert {key: value for key, value in found.items() if value is not None} == expected
    for _, _, value in read(server, SHORT, rng):
        assert value is not None
        assert int(value.partition(b"-")[0]) in story.committed, "it was aborted, or is open"


def read(server: Server, topic: str, rng: random.Random) -> list[tuple[int, bytes, bytes | None]]:
    """To the end, from wherever the log begins by then."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "log_level": 0,
            "group.id": "unused",
            "isolation.level": COMMITTED,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": rng.choice([2000, 1 << 20]),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes, bytes | None]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "it comes to no end"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value()))


def size_of_all(story: Story) -> int:
    return sum(len(sent.value) for sent in story.sent)
