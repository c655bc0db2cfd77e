"""`penstock doctor` against a broker that runs as users run it: every stage gets its answers."""

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from penstock.testing import Broker
from tests.support.command import Done, penstock_command

pytestmark = pytest.mark.cluster

Command = Callable[..., Done]
HOUR_MS = 3_600_000


@pytest.fixture
def run(broker: Broker) -> Command:
    def call(*words: object) -> Done:
        return penstock_command(*words, PENSTOCK_BOOTSTRAP=broker.bootstrap)

    return call


def findings(done: Done) -> dict[str, Any]:
    return {finding["id"]: finding for finding in done.json()["findings"]}


def test_a_broker_answers_every_question(run: Command, broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    run("topic", "alter", topic, "-c", "unclean.leader.election.enable=true")
    done = run("doctor", "--cluster", "--json", "--seconds", "0.1")
    assert done.json()["unknown"] == []
    found = findings(done)
    assert "single-broker" in found
    assert topic in found["unclean-elections"]["subjects"]
    assert "one-replica" not in found


def test_unread_messages_that_retention_will_delete(run: Command, broker: Broker) -> None:
    topic = broker.create_topic()
    run("topic", "alter", topic, "-c", "retention.ms=1h")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    written_ms = time.time_ns() // 1_000_000 - HOUR_MS * 55 // 60
    for _ in range(10):
        producer.produce(topic, b"x", timestamp=written_ms)
    assert producer.flush(30) == 0
    assert run("consume", topic, "-g", f"group-of-{topic}", "--from", "start", "-n", 1).status == 0
    done = run("doctor", "--cluster", "--json", "--seconds", "0")
    assert done.status == 1
    assert f"group-of-{topic}" in findings(done)["retention-deletes-unread"]["subjects"]
    assert f"group-of-{topic}" in findings(done)["group-empty"]["subjects"]


def test_a_hot_partition_and_its_key(run: Command, broker: Broker) -> None:
    topic = broker.create_topic(partitions=4)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    command = ("doctor", "--cluster", "--json", "--seconds", "2")
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.02):
            for _ in range(20):
                producer.produce(topic, b"x", key=b"customer-7")
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        found = findings(run(*command))
    finally:
        stop.set()
        thread.join()
        producer.flush(30)
    assert any(topic in name for name in found["hot-partition"]["subjects"])
    assert "'customer-7' is 100 %" in found["hot-key"]["fact"]
