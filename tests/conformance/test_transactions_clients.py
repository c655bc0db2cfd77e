"""What transactional producers commit is seen, what they abort is not, and a producer that was replaced is out."""

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.testing import Broker
from tests.support.server import until
from tests.support.transactions import (
    COMMITTED,
    CONFLUENT,
    LIBRARIES,
    UNCOMMITTED,
    Library,
    Transactional,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS = 3
TOO_LONG_MS = 4000  # enough to send a few messages, also on a busy machine
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
        "transaction.state.log.num.partitions": 5,
    }
    with Broker(settings, subprocess=True) as started:
        yield started


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=PARTITIONS)
    return name


def begun(library: Library, broker: Broker, topic: str, timeout_ms: int = 60_000) -> Transactional:
    producer = library.producer(broker.bootstrap, f"tx-{topic}", timeout_ms)
    producer.initialize()
    producer.begin()
    return producer


def send_all(producer: Transactional, topic: str, name: str) -> list[bytes]:
    """One message to each partition."""
    values = [f"{name}-{number}".encode() for number in range(PARTITIONS)]
    for number, value in enumerate(values):
        producer.send(topic, number, value)
    return values


def send_and_commit(producer: Transactional, topic: str) -> None:
    send_all(producer, topic, "more")
    producer.commit()


def in_columns(rows: list[list[bytes]]) -> list[list[bytes]]:
    return [[row[number] for row in rows] for number in range(PARTITIONS)]


@each_library
def test_committed_records_are_seen_by_all_and_aborted_ones_only_by_who_asks_for_them(
    broker: Broker, topic: str, library: Library
) -> None:
    rng = random.Random(1)
    everything, committed = [], []
    with closing(begun(library, broker, topic)) as producer:
        for number in range(8):
            if number:
                producer.begin()
            rows = [send_all(producer, topic, f"{number}.{n}") for n in range(rng.randrange(1, 4))]
            everything += rows
            if rng.random() < 0.5:
                producer.commit()
                committed += rows
            else:
                producer.abort()

    for reader in LIBRARIES:
        seen = reader.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
        assert seen == in_columns(committed), reader.name
        seen = reader.read_all(broker.bootstrap, topic, PARTITIONS, UNCOMMITTED)
        assert seen == in_columns(everything), reader.name


@each_library
def test_a_producer_that_was_replaced_can_neither_send_nor_commit(
    broker: Broker, topic: str, library: Library
) -> None:
    zombie = begun(library, broker, topic)
    send_all(zombie, topic, "zombie")
    with closing(begun(library, broker, topic)) as successor:
        row = send_all(successor, topic, "successor")
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            send_and_commit(zombie, topic)
        successor.commit()
    zombie.close()

    seen = library.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
    assert seen == in_columns([row])


@each_library
def test_an_open_transaction_holds_back_whatever_comes_after_it(
    broker: Broker, topic: str, library: Library
) -> None:
    with closing(begun(library, broker, topic)) as slow:
        row = send_all(slow, topic, "slow")
        with closing(begun(CONFLUENT, broker, f"{topic}-2")) as quick:
            rows = [row, send_all(quick, topic, "quick")]
            quick.commit()
        for reader in LIBRARIES:
            seen = reader.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
            assert seen == [[]] * PARTITIONS, reader.name
        slow.commit()
    seen = library.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
    assert seen == in_columns(rows)


@each_library
def test_a_transaction_that_takes_too_long_is_aborted(
    broker: Broker, topic: str, library: Library
) -> None:
    with closing(begun(library, broker, topic, timeout_ms=TOO_LONG_MS)) as producer:
        send_all(producer, topic, "late")
        with closing(begun(CONFLUENT, broker, f"{topic}-2")) as other:
            row = send_all(other, topic, "other")
            other.commit()
        until(
            lambda: (
                CONFLUENT.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
                == in_columns([row])
            ),
            "the transaction is aborted, and what comes after it is seen",
        )
        with pytest.raises(Exception, match=r"(?i)fenced|epoch|timed out|time-out"):
            producer.commit()
    seen = library.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
    assert seen == in_columns([row])


@each_library
def test_a_timeout_beyond_the_brokers_limit_is_refused(
    broker: Broker, topic: str, library: Library
) -> None:
    with (
        closing(library.producer(broker.bootstrap, topic, timeout_ms=900_001)) as producer,
        pytest.raises(Exception, match=r"(?i)timeout"),
    ):
        producer.initialize()


def test_many_producers_at_once_each_see_their_own_transactions_whole(
    broker: Broker, topic: str
) -> None:
    count, rounds = 12, 15
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        library = LIBRARIES[number % len(LIBRARIES)]
        try:
            with closing(begun(library, broker, f"{topic}-{number}")) as producer:
                for turn in range(rounds):
                    if turn:
                        producer.begin()
                    commit = rng.random() < 0.6
                    for part in range(PARTITIONS):
                        value = f"{number}.{turn}.{'c' if commit else 'a'}"
                        producer.send(topic, part, value.encode())
                    (producer.commit if commit else producer.abort)()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]

    everything = CONFLUENT.read_all(broker.bootstrap, topic, PARTITIONS, UNCOMMITTED)
    for column in everything:
        assert len(column) == count * rounds
    for reader in LIBRARIES:
        seen = reader.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
        for column, all_of_it in zip(seen, everything, strict=True):
            assert column == [value for value in all_of_it if value.endswith(b".c")], reader.name


def test_a_transaction_of_many_batches_is_one(broker: Broker, topic: str) -> None:
    with closing(begun(CONFLUENT, broker, topic)) as producer:
        rows = [send_all(producer, topic, str(number)) for number in range(200)]
        assert CONFLUENT.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED) == [[], [], []]
        producer.commit()
    seen = CONFLUENT.read_all(broker.bootstrap, topic, PARTITIONS, COMMITTED)
    assert seen == in_columns(rows)
