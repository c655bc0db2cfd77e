"""The client against Apache Kafka: fetched from Maven Central, skipped where that is out of reach."""

import asyncio
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import AsyncConsumer, AsyncProducer, Consumer, Producer
from penstock.sdk import Message
from penstock.sdk.errors import Fenced, PenstockError
from tests.conformance.test_other_clients import fetched, fresh, run
from tests.support.command import penstock_command
from tests.support.ports import kept_ports

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 60.0
START_MS = 240_000
VERSION = "4.1.0"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=3
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("kafka")
    (folder / "pom.xml").write_text(POM)
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    broker, controller = kept_ports(2)
    settings = folder / "server.properties"
    settings.write_text(PROPERTIES.format(broker=broker, controller=controller, folder=folder))
    java = ("java", "-Xmx512m", "-cp", f"{folder}/lib/*")
    run(*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        with Producer(
            f"127.0.0.1:{broker}", delivery_timeout_ms=START_MS, librdkafka={"log_level": 0}
        ) as producer:
            producer.send(fresh("ready"), b"").result(START_MS / 1000)  # waits until it answers
        yield f"127.0.0.1:{broker}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def topic(bootstrap: str) -> str:
    """Thirty messages in three partitions."""
    name = fresh("sdk")
    with Producer(bootstrap) as producer:
        for n in range(30):
            producer.send(name, str(n), f"key-{n}", {"own": b"h"})
    return name


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    with Consumer(bootstrap, topic, group_id=fresh("read")) as consumer:
        messages = [consumer.poll(PATIENCE_S) for _ in range(count)]
        assert consumer.poll(0.5) is None
    return sorted(message.value for message in messages if message is not None)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_commits_and_goes_on(bootstrap: str, topic: str, protocol: str) -> None:
    group = fresh("group")
    with Consumer(bootstrap, topic, group_id=group, group_protocol=protocol) as consumer:
        values = {message.value for _, message in zip(range(20), consumer, strict=False)}
        assert consumer.metrics.lag == 30 - consumer.metrics.received
    with Consumer(bootstrap, topic, group_id=group, group_protocol=protocol) as consumer:
        while len(values) < 30:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            values.add(message.value)
        consumer.seek_to_time(0)
        assert consumer.poll(PATIENCE_S) is not None
    assert values == {str(n).encode() for n in range(30)}


def test_transactions_are_whole_and_older_instances_are_fenced(bootstrap: str) -> None:
    topic = fresh("txn")
    older = Producer(bootstrap, transactional_id=topic, librdkafka={"log_level": 0})
    with older.transaction():
        older.send(topic, b"seen")
    with suppress(KeyError), older.transaction():
        older.send(topic, b"unseen")
        raise KeyError
    with Producer(bootstrap, transactional_id=topic) as newer:
        with newer.transaction():
            newer.send(topic, b"seen too")
        with pytest.raises(Fenced):
            _send_in_transaction(older, topic)
    with suppress(PenstockError):
        older.close(0.0)
    assert read(bootstrap, topic, 2) == [b"seen", b"seen too"]


def _send_in_transaction(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"late")


def test_a_transform_is_exact(bootstrap: str, topic: str) -> None:
    done: list[bytes] = []
    settings = {"group_id": topic, "enable_auto_commit": False}
    with Consumer(bootstrap, topic, **settings) as consumer:  # type: ignore[arg-type]  # of two types

        def double(message: Message) -> bytes:
            done.append(message.value)
            if len(done) == 30:
                consumer.stop()
            return bytes(message.value * 2)

        assert consumer.transform(double, to=f"{topic}.twice", batch=7) == 30
    expected = sorted(str(n).encode() * 2 for n in range(30))
    assert read(bootstrap, f"{topic}.twice", 30) == expected


def test_poison_goes_through_retry_topics_aside_and_back(bootstrap: str, topic: str) -> None:
    dead, poisoned = f"{topic}.dlq", [0]
    with Consumer(bootstrap, topic, group_id=topic) as consumer:

        def handle(message: Message) -> None:
            if message.value == b"13":
                poisoned[0] += 1
                if message.topic == f"{topic}.retry.1":
                    consumer.stop()
                raise ValueError("unlucky")

        summary = consumer.run(handle, workers=4, retries=0, dead_letter=dead, retry_topics=[0.2])
    assert (poisoned, summary.put_off, summary.dead_letters) == ([2], 1, 1)
    (letter,) = penstock_command("dlq", "list", dead, "--json", PENSTOCK_BOOTSTRAP=bootstrap).json()
    assert (letter["origin_topic"], letter["error"], letter["attempts"]) == (topic, "unlucky", 2)
    back = penstock_command("dlq", "redrive", dead, PENSTOCK_BOOTSTRAP=bootstrap)
    assert back.out == f"sent 1 letter of {dead}: 1 to {topic}\n"
    assert read(bootstrap, topic, 31).count(b"13") == 2


def test_the_twins_work_too(bootstrap: str, topic: str) -> None:
    async def main() -> int:
        async with AsyncProducer(bootstrap) as producer:
            await (await producer.send(topic, b"30"))
        async with AsyncConsumer(bootstrap, topic, group_id=topic) as consumer:
            done: list[Message] = []

            async def handle(message: Message) -> None:
                done.append(message)
                if len(done) == 31:
                    consumer.stop()

            return (await consumer.run(handle, workers=10)).handled

    assert asyncio.run(main()) == 31


def test_large_messages_and_a_database(bootstrap: str, topic: str, tmp_path: Path) -> None:
    films = fresh("films")
    with Producer(bootstrap, split_large=True) as producer:
        producer.send(films, bytes(2_500_000), "a").result(PATIENCE_S)
    (film,) = read(bootstrap, films, 1)
    assert len(film) == 2_500_000
    connection = sqlite3.connect(tmp_path / "results")
    connection.execute("CREATE TABLE results (value BLOB)")
    settings = {"group_id": topic, "enable_auto_commit": False}
    with Consumer(bootstrap, topic, **settings) as consumer:  # type: ignore[arg-type]  # of two types
        inserted = [0]

        def insert(cursor: sqlite3.Cursor, message: Message) -> None:
            cursor.execute("INSERT INTO results VALUES (?)", (message.value,))
            inserted[0] += 1
            if inserted[0] == 30:
                consumer.stop()

        assert consumer.run_in_database(connection, insert) == 30
    (count,) = connection.execute("SELECT count(DISTINCT value) FROM results").fetchone()
    connection.close()
    assert count == 30
