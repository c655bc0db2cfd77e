"""librdkafka reads our batches, and we read its, through the broker mock that it carries."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from penstock.records.batch import split_batches
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from penstock.records.validation import check_client_batch

pytestmark = pytest.mark.slow

TIME_MS = 1_700_000_000_000
HEADERS = (("h", b"x" * 100), ("n", None))
# Each is smaller when it is compressed, also alone in a batch: librdkafka sends what grows as it is, and when its batches end is its own affair.
RECORDS = [
    Record(i, TIME_MS + i, key, *((b"value " * 40, ()) if i % 5 else (None, HEADERS)))
    for i in range(700)
    for key in [b"k%d" % i if i % 3 else None]
]


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """The address of a mock broker, which lives as long as the producer that carries it."""
    carrier = Producer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1})
    (broker,) = carrier.list_topics(timeout=20).brokers.values()
    yield f"{broker.host}:{broker.port}"
    carrier.flush(0)


def _call(address: str, api_key: int, version: int, body: bytes) -> memoryview:
    host, port = address.split(":")
    frame = struct.pack(">hhih4s", api_key, version, 1, 4, b"test") + body
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return memoryview(stream.read(size))[4:]


def _produce(address: str, topic: str, batch: bytearray) -> int:
    """Produce v3, one partition: its error code."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + name + struct.pack(">iii", 1, 0, len(batch))
    reply = _call(address, 0, 3, body + batch)
    (code,) = struct.unpack_from(">h", reply, 4 + len(name) + 4 + 4)
    assert isinstance(code, int)
    return code


def _fetch(address: str, topic: str, offset: int) -> memoryview:
    """Fetch v4, one partition: what the mock gives at once, which is one batch as it was sent."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">iiiibi", -1, 10_000, 1, 1 << 20, 0, 1) + name
    reply = _call(address, 1, 4, body + struct.pack(">iiqi", 1, 0, offset, 1 << 20))
    position = 4 + 4 + len(name) + 4  # throttle time, topic count, name, partition count
    _, code, _, _, aborted, size = struct.unpack_from(">ihqqii", reply, position)
    assert (code, max(aborted, 0)) == (0, 0)
    return reply[position + 30 : position + 30 + size]


def _consume(address: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "check.crcs": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    while len(messages) < count:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None, message.error()
        messages.append(message)
    consumer.close()
    return messages


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_reads_every_codec_that_we_write(mock: str, codec: Codec) -> None:
    topic = f"ours-{codec.name}"
    Producer({"bootstrap.servers": mock}).list_topics(topic, timeout=20)
    assert _produce(mock, topic, build_batch(RECORDS, codec=codec)) == 0
    messages = _consume(mock, topic, len(RECORDS))
    assert [_as_record(message) for message in messages] == RECORDS


def _as_record(message: Any) -> Record:
    headers = tuple(message.headers() or ())
    return Record(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)


@pytest.mark.parametrize("codec", Codec)
def test_we_read_every_codec_that_librdkafka_writes(mock: str, codec: Codec) -> None:
    topic = f"theirs-{codec.name}"
    producer = Producer(
        {"bootstrap.servers": mock, "compression.type": codec.name.lower(), "linger.ms": 500}
    )
    for record in RECORDS:
        producer.produce(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
    assert producer.flush(20) == 0
    decoded: list[Record] = []
    while len(decoded) < len(RECORDS):
        for header, batch in split_batches(_fetch(mock, topic, len(decoded))):
            assert header.codec == codec
            sent = bytearray(batch)
            sent[:8] = bytes(8)  # as it was sent, before the broker stamped it
            check_client_batch(memoryview(sent), max_batch_bytes=1 << 20, now_ms=TIME_MS)
            decoded += decode_records(batch)
    assert [record._replace(offset=i) for i, record in enumerate(decoded)] == RECORDS
