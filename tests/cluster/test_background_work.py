"""What a broker does by itself: forgets what is old, compacts, cleans up behind deleted topics."""

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from penstock.wire.messages.fetch import FetchResponse
from tests.support.history import (
    Ledger,
    Message,
    Reading,
    consumer,
    producer,
    read_all,
    send,
    watermarks,
)
from tests.support.raw_client import RawClient
from tests.support.requests import FETCH_VERSION, fetch, fetch_request
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 50,
    "log.cleaner.backoff.ms": 50,
    "log.segment.delete.delay.ms": 0,
}
SEGMENT_BYTES = 50_000
HOUR_MS = 3_600_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, SETTINGS) as started:
        yield started


def bounds(server: Server, topic: str) -> tuple[int, int]:
    """Where the log starts and ends."""
    reader = consumer(server.bootstrap)
    try:
        return watermarks(reader, topic)
    finally:
        reader.close()


# Retention ---------------------------------------------------------------------------------------


def test_retention_by_size_keeps_the_newest_and_every_offset_stays_what_it_was(
    server: Server,
) -> None:
    topic = server.create_topic(
        "t", segment_bytes=SEGMENT_BYTES, retention_bytes=200_000, file_delete_delay_ms=0
    )
    expected = [b"%04d" % number + bytes(5000) for number in range(200)]
    send(server.bootstrap, topic, expected, batch_size=6000)
    until(
        lambda: server.metric("kafka_log_log_size", topic=topic) < 200_000 + SEGMENT_BYTES,
        "all segments have gone that may",
    )
    start, end = bounds(server, topic)
    assert end == 200
    kept = read_all(server.bootstrap, topic)
    assert [message.offset for message in kept] == list(range(start, end))
    assert [message.value for message in kept] == expected[start:]
    assert server.metric("kafka_log_log_size", topic=topic) >= 200_000, "and no more than that"
    with RawClient(server.bootstrap) as client:
        gone = fetch(client, topic, start - 1)
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    until(lambda: server.size_bytes(topic) < 300_000, "their files have gone")
    until(lambda: not list(server.partition_dir(topic).glob("*.deleted")), "without remains")
    server.crash()
    assert bounds(server, topic) == (start, 200)
    assert send(server.bootstrap, topic, [b"next"]) == [200]


def test_retention_by_time_goes_by_the_time_of_records_and_takes_the_active_segment_too(
    server: Server,
) -> None:
    topic = server.create_topic("t", segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS)
    old_ms = time.time_ns() // 1_000_000 - 2 * HOUR_MS
    sender = producer(server.bootstrap, batch_size=6000)
    for number in range(50):
        sender.produce(topic, b"old %d" % number + bytes(5000), partition=0, timestamp=old_ms)
    assert sender.flush(PATIENCE_S) == 0
    until(lambda: bounds(server, topic) == (50, 50), "all of it is too old")
    send(server.bootstrap, topic, [b"new"])
    server.crash()
    assert bounds(server, topic) == (50, 51)
    assert read_all(server.bootstrap, topic) == [Message(50, None, b"new")]


def test_a_reader_whose_place_has_been_forgotten_goes_on_where_the_log_starts(
    server: Server,
) -> None:
    topic = server.create_topic("t", segment_bytes=SEGMENT_BYTES, retention_bytes=100_000)
    values = [b"%04d" % number + bytes(5000) for number in range(100)]
    send(server.bootstrap, topic, values, batch_size=6000)
    until(
        lambda: server.metric("kafka_log_log_size", topic=topic) < 100_000 + SEGMENT_BYTES,
        "all segments have gone that may",
    )
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 3)])
    try:
        first = next(iter(reader.consume(1, PATIENCE_S)))
        assert first.error() is None
        assert first.offset() == bounds(server, topic)[0]
    finally:
        reader.close()


# Compaction --------------------------------------------------------------------------------------


class Keyed:
    """A producer of keyed messages that knows the latest of each key."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.acked: dict[int, Message] = {}
        self.latest: dict[bytes, Message] = {}
        self._producer = producer(bootstrap, enable_idempotence=True, batch_size=5000)
        self._topic = topic
        self._rng = random.Random(seed)

    def write(self, count: int, keys: int = 20, tombstones: float = 0.1) -> None:
        for _ in range(count):
            key = b"key-%d" % self._rng.randrange(keys)
            value = None if self._rng.random() < tombstones else bytes(self._rng.randrange(1000))
            self.put(key, value)
        self.settle()

    def put(self, key: bytes, value: bytes | None) -> None:
        def delivered(error: object, sent: "confluent_kafka.Message") -> None:
            assert error is None, error
            offset = sent.offset()
            assert offset is not None
            message = Message(offset, key, value)
            self.acked[offset] = message
            if key not in self.latest or self.latest[key].offset < offset:
                self.latest[key] = message

        self._producer.produce(self._topic, value, key=key, partition=0, on_delivery=delivered)
        self._producer.poll(0)

    def settle(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def roll(self, server: Server, topic: str) -> None:
        """Until what was written so far is in closed segments, which alone are compacted."""
        last = server.segments(topic)[-1]
        while server.segments(topic)[-1] == last:
            self.put(b"filler", bytes(4000))
            self.settle()

    def check(self, log: list[Message]) -> None:
        """Survivors are what and where they were, in order, and each key's latest is among them."""
        assert [message.offset for message in log] == sorted({message.offset for message in log})
        for message in log:
            assert self.acked[message.offset] == message
        there = set(log)
        lost = [it for it in self.latest.values() if it.value is not None and it not in there]
        assert not lost, f"the latest of {len(lost)} keys is gone, such as {lost[0]}"


def is_clean(log: list[Message], active_base: int) -> bool:
    """No key is twice in the closed segments."""
    keys = [message.key for message in log if message.offset < active_base]
    return len(keys) == len(set(keys))


def active_base(server: Server, topic: str) -> int:
    return int(server.segments(topic)[-1].stem)


def compacted(server: Server, topic: str, **more: Any) -> str:
    settings: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_bytes": SEGMENT_BYTES,
        "min_cleanable_dirty_ratio": 0.01,
        "delete_retention_ms": 0,
        **more,
    }
    return server.create_topic(topic, **settings)


def test_compaction_leaves_the_latest_of_each_key_where_it_was(server: Server) -> None:
    topic = compacted(server, "t", delete_retention_ms=HOUR_MS)
    keyed = Keyed(server.bootstrap, topic, seed=1)
    reader = Reading(server.bootstrap, topic)
    for _ in range(5):
        keyed.write(300)
        keyed.check(read_all(server.bootstrap, topic))
    keyed.roll(server, topic)

    def is_done() -> bool:
        return is_clean(read_all(server.bootstrap, topic), active_base(server, topic))

    until(is_done, "the closed segments are clean")
    log = read_all(server.bootstrap, topic)
    keyed.check(log)
    assert set(keyed.latest.values()) <= set(log), "tombstones too: it is not their time"
    assert len(log) < len(keyed.acked) / 3
    end = bounds(server, topic)[1]
    assert end == max(keyed.acked) + 1, "the end has not moved"
    with RawClient(server.bootstrap) as client:
        for offset in range(0, end, 37):  # also where there is nothing any more
            assert fetch(client, topic, offset).error_code == ErrorCode.NONE
    reader.await_offset(end)
    for message in reader.end():
        assert keyed.acked[message.offset] == message
    server.crash()
    assert read_all(server.bootstrap, topic) == log
    server.restart()
    assert read_all(server.bootstrap, topic) == log
    assert "Traceback" not in server.log


def test_tombstones_go_after_their_time_and_the_key_with_them(server: Server) -> None:
    topic = compacted(server, "t", delete_retention_ms=100)
    keyed = Keyed(server.bootstrap, topic, seed=2)
    for number in range(50):
        keyed.put(b"doomed-%d" % number, bytes(1000))
    keyed.settle()
    for number in range(50):
        keyed.put(b"doomed-%d" % number, None)
    keyed.roll(server, topic)

    def is_gone() -> bool:
        keyed.roll(server, topic)  # a reason to compact again, once the time has passed
        log = read_all(server.bootstrap, topic)
        return not any((message.key or b"").startswith(b"doomed") for message in log)

    until(is_gone, "nothing is left of the deleted keys")
    keyed.check(read_all(server.bootstrap, topic))


def read_kept(server: Server, topic: str) -> list[Message]:
    """As `read_all`; anew if the oldest went in between."""
    start, _ = bounds(server, topic)
    while True:
        try:
            return read_all(server.bootstrap, topic)
        except AssertionError:
            was, (start, _) = start, bounds(server, topic)
            if start == was:
                raise


def test_a_topic_can_be_compacted_and_forget_what_is_old(server: Server) -> None:
    topic = compacted(
        server,
        "t",
        cleanup_policy="compact,delete",
        retention_bytes=300_000,
        file_delete_delay_ms=0,
    )
    keyed = Keyed(server.bootstrap, topic, seed=3)
    for number in range(400):  # as many keys as messages: compaction alone frees nothing
        keyed.put(b"once-%d" % number, bytes(3000))
    keyed.settle()
    until(lambda: bounds(server, topic)[0] > 200, "the oldest have gone")
    keyed.write(500, keys=5, tombstones=0)
    keyed.roll(server, topic)
    until(
        lambda: is_clean(read_kept(server, topic), active_base(server, topic)),
        "the closed segments are clean",
    )
    for message in read_kept(server, topic):
        assert keyed.acked[message.offset] == message


@pytest.mark.parametrize(
    "rounds", [pytest.param(6, id="few"), pytest.param(40, id="many", marks=pytest.mark.long)]
)
def test_a_broker_killed_amid_compactions_has_lost_no_key_and_moved_none(
    server: Server, rounds: int
) -> None:
    topic = compacted(server, "t", segment_bytes=20_000, delete_retention_ms=50)
    keyed = Keyed(server.bootstrap, topic, seed=4)
    rng = random.Random(5)
    for _ in range(rounds):
        runs = server.metric("penstock_compaction_runs_total")
        keyed.write(rng.randrange(100, 400))
        until(
            lambda: server.metric("penstock_compaction_runs_total") > runs,  # noqa: B023
            "a compaction ends, and the next may be under way",
        )
        time.sleep(rng.random() * 0.1)
        server.crash()
        keyed.check(read_all(server.bootstrap, topic))
    assert "Traceback" not in server.log


# Deletion ----------------------------------------------------------------------------------------


def tombstones(server: Server) -> int:
    path = server.data_dir / "metadata.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM kv WHERE key LIKE 'dead/%'").fetchone()[0])


def leftovers(server: Server, topic: str) -> list[str]:
    return [path.name for path in server.data_dir.iterdir() if topic in path.name]


def topic_id(server: Server, name: str) -> str:
    wanted = confluent_kafka.TopicCollection([name])
    return str(server.admin.describe_topics(wanted)[name].result(PATIENCE_S).topic_id)


def test_a_deleted_topic_leaves_nothing_behind_and_its_name_can_be_used_again(
    server: Server,
) -> None:
    first = topic_id(server, server.create_topic("gone", partitions=3))
    send(server.bootstrap, "gone", [b"x"])
    server.delete_topic("gone")
    assert not (server.data_dir / "gone").exists()
    second = topic_id(server, server.create_topic("gone"))
    assert second != first
    assert read_all(server.bootstrap, "gone") == []
    assert send(server.bootstrap, "gone", [b"new"]) == [0]
    until(lambda: leftovers(server, "gone") == ["gone"], "the files of the first are gone")
    until(lambda: tombstones(server) == 0, "so is what was remembered of it")
    server.crash()
    assert topic_id(server, "gone") == second
    assert read_all(server.bootstrap, "gone") == [Message(0, None, b"new")]


def test_files_of_a_deleted_topic_are_kept_for_the_delay(tmp_path: Path) -> None:
    with Server(tmp_path, {**SETTINGS, "log.segment.delete.delay.ms": 10 * HOUR_MS}) as server:
        send(server.bootstrap, server.create_topic("gone"), [b"x"])
        server.delete_topic("gone")
        (aside,) = leftovers(server, "gone")
        assert aside.endswith("-delete")
        until(lambda: tombstones(server) == 0, "the cluster is done with it")
        server.crash()
        assert leftovers(server, "gone") == [aside]
        server.settings["log.segment.delete.delay.ms"] = "0"
        server.restart()
        until(lambda: not leftovers(server, "gone"), "now it may go")


def test_a_topic_that_is_deleted_under_its_clients_is_gone_for_them_and_nothing_else_breaks(
    server: Server,
) -> None:
    topic = server.create_topic("doomed", partitions=2, segment_bytes=SEGMENT_BYTES)
    other = server.create_topic("other")
    doomed, others = Ledger(), Ledger()
    sender = producer(
        server.bootstrap, message_timeout_ms=20_000, topic_metadata_propagation_max_ms=500
    )
    ended = threading.Event()

    def keep_sending() -> None:
        while not ended.is_set():
            others.send(sender, other, b"%06d" % len(others.sent))
            try:
                doomed.send(sender, topic, bytes(2000))
            except confluent_kafka.KafkaException as error:  # it has heard
                doomed.failures.append(error.args[0])

    writing = threading.Thread(target=keep_sending, daemon=True)
    writing.start()
    reader, other_reader = Reading(server.bootstrap, topic), Reading(server.bootstrap, other)
    with RawClient(server.bootstrap) as waiting:
        until(lambda: len(doomed.acked) > 1000 and len(reader.seen) > 500, "both are under way")
        waiting.send(fetch_request(topic, partition=1, wait_ms=60_000), FETCH_VERSION)
        server.delete_topic(topic)
        _, answer = waiting.receive_as(FetchResponse, FETCH_VERSION)
        code = answer.responses[0].partitions[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "who waits is told at once"
    until(lambda: doomed.failures, "the producer is told")
    seen = len(other_reader.seen)
    until(lambda: len(other_reader.seen) > seen + 100, "the other topic goes on")
    ended.set()
    writing.join(PATIENCE_S)
    assert not writing.is_alive()
    sender.flush(PATIENCE_S)
    reader.end()
    other_reader.end()
    assert {error.name() for error in doomed.failures} <= UNKNOWN
    assert not others.failures
    others.check_kept(read_all(server.bootstrap, other))
    assert "Traceback" not in server.log

    server.create_topic(topic)
    assert send(server.bootstrap, topic, [b"new"]) == [0]
    assert read_all(server.bootstrap, topic) == [Message(0, None, b"new")]


UNKNOWN = {  # librdkafka has many words for it
    "UNKNOWN_TOPIC_OR_PART",
    "UNKNOWN_TOPIC_ID",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "_MSG_TIMED_OUT",
    "_DESTROY",
}
