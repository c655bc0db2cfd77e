"""Other people's clients and mirrors: they read one, also past its promotion, and are told why they may not write."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from penstock.client.admin import alter_topic_configs
from penstock.client.mirroring import append, mirror_state, promote
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.records.batch import stamp
from penstock.records.builder import build_batch
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record
from penstock.testing import Broker
from tests.conformance.test_other_clients import fetched, run
from tests.conformance.test_sdk_apache_kafka import POM
from tests.support.transactions import COMMITTED, LIBRARIES, UNCOMMITTED, Library

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SOURCE = "penstock.mirror.source"
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({}, subprocess=True) as started:
        yield started


@pytest.fixture
def copy(broker: Broker) -> str:
    name = f"copy-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, settings={SOURCE: "east"})
    return name


def source_batches() -> list[bytearray]:
    """Plain, committed, aborted and open ones, with gaps."""
    made = [
        (0, _data(b"plain")),
        (5, _data(b"committed", producer=7)),
        (6, _marker(7, ControlType.COMMIT)),
        (9, _data(b"aborted", producer=8)),
        (20, _marker(8, ControlType.ABORT)),
        (21, _data(b"open", producer=9)),
    ]
    for offset, batch in made:
        stamp(batch, offset, 3)
    return [batch for _, batch in made]


def _data(value: bytes, *, producer: int = -1) -> bytearray:
    known = producer >= 0
    return build_batch(
        [Record(0, 1_700_000_000_000, b"k", value)],
        producer_id=producer,
        producer_epoch=0 if known else -1,
        base_sequence=0 if known else -1,
        transactional=known,
    )


def _marker(producer: int, kind: ControlType) -> bytearray:
    return build_marker(
        EndMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1_700_000_000_000
    )


def mirror(broker: Broker, copy: str) -> None:
    async def run() -> None:
        async with Pool(broker.bootstrap) as pool:
            for batch in source_batches():
                await append(pool, TopicPartition(copy, 0), batch, continues_at=0)
            state = await mirror_state(pool, copy)
            assert (state.source, state.partitions[0].log_end_offset) == ("east", 22)

    asyncio.run(run())


def promoted(broker: Broker, copy: str) -> int:
    async def run() -> int:
        async with Pool(broker.bootstrap) as pool:
            state = await promote(pool, copy)
            again = await promote(pool, copy)
            assert state == again
            return state.partitions[0].log_end_offset

    return asyncio.run(run())


@each_library
def test_a_library_reads_a_mirror_and_what_comes_after_its_promotion(
    broker: Broker, copy: str, library: Library
) -> None:
    mirror(broker, copy)
    both = [b"plain", b"committed"]
    assert library.read_all(broker.bootstrap, copy, 1, COMMITTED) == [both]
    assert library.read_all(broker.bootstrap, copy, 1, UNCOMMITTED) == [
        [*both, b"aborted", b"open"]
    ]

    assert promoted(broker, copy) == 24

    producer = library.producer(broker.bootstrap, f"tx-{copy}")
    producer.initialize()
    producer.begin()
    producer.send(copy, 0, b"own")
    producer.commit()
    producer.close()
    assert library.read_all(broker.bootstrap, copy, 1, COMMITTED) == [[*both, b"own"]]
    assert library.read_all(broker.bootstrap, copy, 1, UNCOMMITTED) == [
        [*both, b"aborted", b"open", b"own"]
    ]


@pytest.mark.slow
def test_the_java_client_reads_it_too(broker: Broker, copy: str, tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(POM.replace("kafka_2.13", "kafka-tools"))
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=tmp_path)
    mirror(broker, copy)
    promoted(broker, copy)
    confluent = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    confluent.produce(copy, b"own")
    assert confluent.flush(60) == 0
    words = ["--bootstrap-server", broker.bootstrap, "--topic", copy, "--from-beginning"]
    for isolation, values in (
        (COMMITTED, ["plain", "committed", "own"]),
        (UNCOMMITTED, ["plain", "committed", "aborted", "open", "own"]),
    ):
        count = ["--isolation-level", isolation, "--max-messages", str(len(values))]
        text = run("java", "-cp", f"{tmp_path}/lib/*", CONSOLE_CONSUMER, *words, *count)
        assert text.split() == values


def test_a_producer_is_told_why_it_may_not_write(broker: Broker, copy: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    heard: list[confluent_kafka.KafkaError | None] = []
    producer.produce(copy, b"v", on_delivery=lambda error, _: heard.append(error))
    producer.flush(60)
    assert heard[0] is not None
    assert heard[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION


def test_a_transaction_that_was_open_when_its_topic_became_a_mirror_can_end(
    broker: Broker, copy: str
) -> None:
    """What it wrote there stays open until the mirror says otherwise; its coordinator does not wait for that."""
    other = f"other-{copy}"
    broker.create_topic(other)
    producer = LIBRARIES[0].producer(broker.bootstrap, f"tx-{other}")
    producer.initialize()
    producer.begin()
    producer.send(other, 0, b"before")

    async def become_a_mirror() -> None:
        async with Pool(broker.bootstrap) as pool:
            await alter_topic_configs(pool, other, set_to={SOURCE: "east"})

    asyncio.run(become_a_mirror())
    producer.commit()
    producer.begin()  # the coordinator is done with the one before
    producer.commit()
    producer.close()
    assert LIBRARIES[0].read_all(broker.bootstrap, other, 1, COMMITTED) == [[]]
    promoted(broker, other)
    assert LIBRARIES[0].read_all(broker.bootstrap, other, 1, COMMITTED) == [[]]
    assert LIBRARIES[0].read_all(broker.bootstrap, other, 1, UNCOMMITTED) == [[b"before"]]
