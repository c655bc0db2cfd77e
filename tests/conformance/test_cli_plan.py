"""`penstock plan --from` against a broker that runs as users run it, under a load that is known."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import confluent_kafka
import pytest

from penstock.testing import Broker
from tests.support.command import penstock_command

pytestmark = pytest.mark.cluster

MESSAGE_BYTES = 1000
PAUSE_S = 0.02
SECONDS = 4


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=3)


@pytest.fixture
def sent(broker: Broker, topic: str) -> Iterator[list[int]]:
    """How many messages were sent so far, in batches of 10, while the test runs."""
    counted, stop = [0], threading.Event()

    def load() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
        while not stop.wait(PAUSE_S):
            for number in range(10):
                producer.produce(topic, bytes(MESSAGE_BYTES), partition=number % 3)
            producer.poll(0)
            counted[0] += 10
        producer.flush(30)

    thread = threading.Thread(target=load)
    thread.start()
    yield counted
    stop.set()
    thread.join()


@pytest.fixture
def group(broker: Broker, topic: str) -> str:
    name = f"group-{uuid4().hex[:8]}"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": name, "log_level": 0}
    )
    places = [confluent_kafka.TopicPartition(topic, 0, 1)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    return name


@pytest.mark.usefixtures("group")
def test_a_cluster_under_load_is_measured(broker: Broker, topic: str, sent: list[int]) -> None:
    words = ("--from", broker.bootstrap, "--seconds", SECONDS, "--json")
    before = sent[0]
    done = penstock_command("plan", *words)
    assert done.status == 0, done
    [found] = [row for row in done.json()["topics"] if row["name"] == topic]
    assert sent[0] > before
    most = 10 / PAUSE_S
    assert 0.1 * most < found["messages_s"] <= 1.2 * most
    assert MESSAGE_BYTES < found["message_in_log_bytes"] < MESSAGE_BYTES + 100
    assert (found["partitions"], found["replication_factor"], found["groups"]) == (3, 1, 1)
    assert found["kept_one_copy_bytes"] == pytest.approx(
        found["messages_s"] * found["message_in_log_bytes"] * 7 * 86_400
    )


def test_nobody_there_is_one_line() -> None:
    done = penstock_command("plan", "--from", "127.0.0.1:1", "--seconds", 1)
    assert done.status == 1
    assert done.err.startswith("penstock: cannot reach 127.0.0.1:1")
