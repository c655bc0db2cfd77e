"""kill -9 at any moment: what was acknowledged is there, in order, once, and clients just go on."""

import random
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.history import Ledger, Reading, producer, read_all, send
from tests.support.server import PATIENCE_S, Server, rd

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROUNDS = [pytest.param(6, id="few"), pytest.param(40, id="many", marks=pytest.mark.long)]


class Writer:
    """A producer that sends without pause to one partition, through crash after crash."""

    def __init__(self, bootstrap: str, topic: str, name: bytes, rng: random.Random, **more: Any):
        self.ledger = Ledger()
        self._topic = topic
        self._name = name
        self._rng = rng
        self.producer = producer(bootstrap, **more)

    def send_some(self, count: int) -> None:
        for _ in range(count):
            number = len(self.ledger.sent)
            value = b"%s-%06d" % (self._name, number) + bytes(self._rng.randrange(400))
            self.ledger.send(self.producer, self._topic, value)

    def settle(self) -> None:
        """Until every message has had its answer."""
        assert self.producer.flush(4 * PATIENCE_S) == 0
        assert not self.ledger.failures, self.ledger.failures[0]


def crash_amid(server: Server, writers: list[Writer], rng: random.Random) -> None:
    """Kill it while acknowledgements are coming in and more is under way."""
    target = sum(len(writer.ledger.acked) for writer in writers) + rng.randrange(100, 1000)
    while sum(len(writer.ledger.acked) for writer in writers) < target:
        for writer in writers:
            writer.send_some(rng.randrange(1, 100))
        for writer in writers:
            writer.ledger.pace(writer.producer)
    server.kill()
    for writer in writers:
        writer.send_some(50)
    server.start()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_idempotent_producers_and_readers_never_notice_that_the_broker_was_killed(
    tmp_path: Path, rng: random.Random, rounds: int
) -> None:
    with Server(tmp_path) as server:
        topics = [
            server.create_topic("plain"),
            server.create_topic("rolling", segment_bytes=64 << 10),  # crashes amid rolls as well
            server.create_topic("synced", flush_messages=1),
        ]
        writers = [
            Writer(server.bootstrap, topic, topic.encode(), rng, enable_idempotence=True)
            for topic in topics
        ]
        readers = [Reading(server.bootstrap, topic) for topic in topics]
        for _ in range(rounds):
            crash_amid(server, writers, rng)
        for writer in writers:
            writer.settle()

        for topic, writer, reader in zip(topics, writers, readers, strict=True):
            log = read_all(server.bootstrap, topic)
            writer.ledger.check_exact(log)
            reader.await_offset(len(log))
            reader.end()
            reader.check_agrees(log)
        server.crash()
        for topic, writer in zip(topics, writers, strict=True):
            writer.ledger.check_exact(read_all(server.bootstrap, topic))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_what_a_plain_producer_was_told_with_acks_all_holds_after_the_broker_was_killed(
    tmp_path: Path, rng: random.Random, rounds: int
) -> None:
    """Without idempotence a retry may double a batch: what counts is that nothing is lost or moved."""
    with Server(tmp_path) as server:
        topic = server.create_topic("plain", segment_bytes=256 << 10)
        writer = Writer(server.bootstrap, topic, b"plain", rng)
        reader = Reading(server.bootstrap, topic)
        for _ in range(rounds):
            crash_amid(server, [writer], rng)
            writer.ledger.check_kept(read_all(server.bootstrap, topic))
        writer.settle()
        log = read_all(server.bootstrap, topic)
        writer.ledger.check_kept(log)
        assert set(writer.ledger.sent) == {message.value for message in log}
        reader.end()
        reader.check_agrees(log)


class Decrees:
    """Topics as the broker last confirmed them."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self._server = server
        self._rng = rng
        self.topics: dict[str, tuple[int, str]] = {}  # partitions, retention.ms
        self.deleted: set[str] = set()

    def change_something(self) -> None:
        kinds = [self._create, self._create]
        if len(self.topics) > 3:
            kinds += [self._delete, self._alter, self._grow]
        self._rng.choice(kinds)()

    def _some(self) -> str:
        return self._rng.choice(sorted(self.topics))

    def _create(self) -> None:
        name = f"topic-{len(self.topics) + len(self.deleted)}"
        if self.deleted and self._rng.random() < 0.3:
            name = self.deleted.pop()
        partitions, retention = self._rng.randrange(1, 5), str(self._rng.randrange(10**6, 10**9))
        self._server.create_topic(name, partitions=partitions, retention_ms=retention)
        self.topics[name] = (partitions, retention)

    def _delete(self) -> None:
        name = self._some()
        self._server.delete_topic(name)
        del self.topics[name]
        self.deleted.add(name)

    def _alter(self) -> None:
        name, retention = self._some(), str(self._rng.randrange(10**6, 10**9))
        entry = rd.ConfigEntry(
            "retention.ms", retention, incremental_operation=rd.AlterConfigOpType.SET
        )
        resource = rd.ConfigResource("topic", name, incremental_configs=[entry])
        self._server.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        self.topics[name] = (self.topics[name][0], retention)

    def _grow(self) -> None:
        name = self._some()
        count = self.topics[name][0] + 1
        more = rd.NewPartitions(name, count)
        self._server.admin.create_partitions([more])[name].result(PATIENCE_S)
        self.topics[name] = (count, self.topics[name][1])

    def check(self) -> None:
        client = self._server.admin
        assert self._server.topics() == {
            name: partitions for name, (partitions, _) in self.topics.items()
        }
        resources = [rd.ConfigResource("topic", name) for name in self.topics]
        configs: dict[Any, Any] = client.describe_configs(resources) if resources else {}
        for resource, future in configs.items():
            assert future.result(PATIENCE_S)["retention.ms"].value == self.topics[resource.name][1]
        present = {path.name for path in self._server.data_dir.iterdir() if path.is_dir()}
        assert not present & self.deleted, "what was deleted is out of the way"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_topics_settings_and_deletions_that_were_confirmed_outlive_the_broker(
    tmp_path: Path, rng: random.Random, rounds: int
) -> None:
    with Server(tmp_path) as server:
        decrees = Decrees(server, rng)
        for _ in range(rounds):
            for _ in range(rng.randrange(3, 12)):
                decrees.change_something()
            for name in rng.sample(sorted(decrees.topics), min(2, len(decrees.topics))):
                send(server.bootstrap, name, [b"so that it has files"])
            server.crash()
            decrees.check()


def test_a_topic_made_again_under_the_name_of_a_deleted_one_is_empty_after_a_crash(
    tmp_path: Path,
) -> None:
    with Server(tmp_path) as server:
        first = topic_id(server, server.create_topic("again"))
        send(server.bootstrap, "again", [b"of the first"])
        server.delete_topic("again")
        second = topic_id(server, server.create_topic("again"))
        server.crash()

        assert second != first
        assert topic_id(server, "again") == second
        assert read_all(server.bootstrap, "again") == []


def topic_id(server: Server, name: str) -> str:
    wanted = confluent_kafka.TopicCollection([name])
    return str(server.admin.describe_topics(wanted)[name].result(PATIENCE_S).topic_id)


def test_what_a_group_has_committed_is_where_it_goes_on_after_the_broker_was_killed(
    tmp_path: Path,
) -> None:
    with Server(tmp_path) as server:
        topic = server.create_topic("t")
        send(server.bootstrap, topic, [b"%04d" % number for number in range(1000)])
        seen: list[bytes | None] = []
        for _ in range(3):
            member = group_member(server, topic)
            goal = len(seen) + 150
            while len(seen) < goal:
                for message in member.consume(50, timeout=0.2):
                    assert message.error() is None, message.error()
                    seen.append(message.value())
            member.commit(asynchronous=False)
            server.crash()
            told = member.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE_S)
            assert told[0].offset == len(seen)
            member.close()
        assert seen == [b"%04d" % number for number in range(len(seen))], (
            "none twice, none left out"
        )


def group_member(server: Server, topic: str) -> Any:
    member: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "log_level": 0,
            "group.id": "group",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
        }
    )
    member.subscribe([topic])
    return member
