"""What the tests of jobs that write to topics have in common: the command, and a reader of what is committed."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka

from penstock.spark.steps import VARIABLE
from tests.support.command import command, environment
from tests.support.server import PATIENCE_S, Server

RUN_S = 4 * PATIENCE_S


class Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class Command:
    """The same command, again and again, with other steps to be killed at."""

    def __init__(self, broker: Server, *words: object) -> None:
        self.said = ""
        self._words = [
            *("pipeline", *words, "--bootstrap", broker.bootstrap, "--json"),
            *("--master", "local[2]", "--conf", "spark.driver.memory=512m"),
        ]

    def run(self, stop_at: str | None = None) -> int:
        """The exit code; `said` is what it wrote to stderr."""
        process = self.start(stop_at)
        try:
            _, said = process.communicate(timeout=RUN_S)
        finally:
            process.kill()
        self.said = said.decode()
        return process.returncode

    def start(self, stop_at: str | None = None, **variables: str) -> "subprocess.Popen[bytes]":
        variables |= {VARIABLE: stop_at} if stop_at else {}
        return subprocess.Popen(
            command(*self._words),
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


def read_committed(broker: Server, topic: str) -> list[Read]:
    """All that a reader of committed records finds, partition by partition in the order of offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[Read] = []
    try:
        for partition in range(broker.topics()[topic]):
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
            found += _until_end(consumer)
    finally:
        consumer.close()
    return found


def _until_end(consumer: Any) -> list[Read]:
    found: list[Read] = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "neither a message nor the end of the partition came"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            return found
        found.append(
            Read(
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.headers() or [],
                message.timestamp()[1],
            )
        )


def by_key(rows: list[Read]) -> dict[bytes | None, list[bytes | None]]:
    """Values of each key, in the order in which a reader gets them."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.value)
    return found


def assert_placed_as_java_does(rows: list[Read], partitions: int) -> None:
    from penstock.sdk.partitioners import partition_of

    for row in rows:
        assert row.key is not None
        assert row.partition == partition_of(row.key, partitions)


def write_file(home: Path, name: str, text: str) -> str:
    path = home / name
    path.write_text(text)
    return str(path)
