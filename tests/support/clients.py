"""The same few things done with clients that we did not write, so that one test asks all of them."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

PATIENCE_S = 60.0  # ten times and more of what anything here needs


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


class Received(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Client:
    """One client library: it writes to and reads from partition 0 of a topic."""

    name: str
    produce: Callable[[str, str, list[Sent], str], None]  # bootstrap, topic, messages, codec
    consume: Callable[[str, str, int], list[Received]]  # bootstrap, topic, count

    def __str__(self) -> str:
        return self.name


# confluent-kafka (librdkafka) --------------------------------------------------------------------


def _confluent_produce(bootstrap: str, topic: str, messages: list[Sent], codec: str) -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            "message.max.bytes": 20_000_000,
        }
    )
    for sent in messages:
        producer.produce(
            topic,
            value=sent.value,
            key=sent.key,
            headers=list(sent.headers),
            timestamp=sent.timestamp_ms,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failures, failures[0]


def _confluent_consume(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 20_000_000,
            "receive.message.max.bytes": 60_000_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    received: list[Received] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(received) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(received), timeout=0.5):
                assert message.error() is None, message.error()
                received.append(_received(message))
    finally:
        consumer.close()
    return received


def _received(message: Any) -> Received:
    """What librdkafka's message has; its types allow for one that carries an error instead."""
    return Received(
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


# kafka-python ------------------------------------------------------------------------------------


def _python_produce(bootstrap: str, topic: str, messages: list[Sent], codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        max_request_size=20_000_000,
        linger_ms=5,
    )
    futures = [
        producer.send(
            topic,
            value=sent.value,
            key=sent.key,
            headers=list(sent.headers),
            timestamp_ms=sent.timestamp_ms,
            partition=0,
        )
        for sent in messages
    ]
    producer.flush(PATIENCE_S)
    for future in futures:
        future.get(PATIENCE_S)
    producer.close()


def _python_consume(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=20_000_000,
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    received: list[Received] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(received) < count and time.monotonic() < deadline:
        received += [
            Received(
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                tuple((key, bytes(value)) for key, value in record.headers),
            )
            for record in consumer.poll(500).get(partition, [])
        ]
    consumer.close()
    return received


# aiokafka ----------------------------------------------------------------------------------------


def _aio_produce(bootstrap: str, topic: str, messages: list[Sent], codec: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=20_000_000,
            linger_ms=5,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=sent.value,
                    key=sent.key,
                    headers=list(sent.headers),
                    timestamp_ms=sent.timestamp_ms,
                    partition=0,
                )
                for sent in messages
            ]
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def _aio_consume(bootstrap: str, topic: str, count: int) -> list[Received]:
    async def run() -> list[Received]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, max_partition_fetch_bytes=20_000_000
        )
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            received: list[Received] = []
            while len(received) < count:
                record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                received.append(
                    Received(
                        record.offset,
                        record.timestamp,
                        record.key,
                        record.value,
                        tuple((key, bytes(value)) for key, value in record.headers),
                    )
                )
            return received
        finally:
            await consumer.stop()

    return asyncio.run(run())


CONFLUENT = Client("confluent-kafka", _confluent_produce, _confluent_consume)
KAFKA_PYTHON = Client("kafka-python", _python_produce, _python_consume)
AIOKAFKA = Client("aiokafka", _aio_produce, _aio_consume)
CLIENTS = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)


# kcat --------------------------------------------------------------------------------------------


def kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run kcat and give back what it printed."""
    program = shutil.which("kcat") or shutil.which("kafkacat")
    assert program, "kcat is not installed"
    done = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
