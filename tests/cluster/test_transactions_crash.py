"""kill -9 at any point of the protocol: a transaction is wholly visible or not at all, and what was promised holds."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from tests.support.raw_transactions import NEW, OLD, RawTransactional, Refused
from tests.support.server import Server, until_data
from tests.support.transactions import COMMITTED, CONFLUENT, LIBRARIES, UNCOMMITTED
from tests.support.variants import first_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS = 3
TOO_LONG_MS = 10_000  # enough to look at what it holds back, also on a busy machine
ROUNDS = [pytest.param(12, id="few"), pytest.param(250, id="many", marks=pytest.mark.long)]
both_versions = pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, SETTINGS) as started:
        started.create_topic("t", partitions=PARTITIONS)
        yield started


def send_all(producer: RawTransactional, name: str) -> None:
    for number in range(PARTITIONS):
        producer.send("t", number, f"{name}-{number}".encode())


def seen(server: Server, isolation: str = COMMITTED) -> list[set[str]]:
    """The transactions that each partition shows; nothing is shown twice."""
    found = []
    for column in CONFLUENT.read_all(server.bootstrap, "t", PARTITIONS, isolation):
        names = [value.decode().rpartition("-")[0] for value in column]
        assert len(set(names)) == len(names), "a record is there twice"
        found.append(set(names))
    return found


Point = Callable[[RawTransactional, bool], None]


def began(producer: RawTransactional, _: bool) -> None:
    producer.send("t", 0, b"x-0")


def sent(producer: RawTransactional, _: bool) -> None:
    send_all(producer, "x")


def with_offsets(producer: RawTransactional, _: bool) -> None:
    send_all(producer, "x")
    producer.send_offsets("g", {TopicPartition("t", 0): 42})


def asked_to_end(producer: RawTransactional, committed: bool) -> None:
    with_offsets(producer, committed)
    producer.end_unheard(committed=committed)


@both_versions
@pytest.mark.parametrize("committed", first_of([True, False]), ids=["commit", "abort"])
@pytest.mark.parametrize("point", first_of([asked_to_end, with_offsets, sent, began]))
def test_a_producer_goes_on_with_its_transaction_after_the_broker_was_killed(
    server: Server, point: Point, committed: bool, version: int
) -> None:
    with RawTransactional(server.bootstrap, "tx", version=version).initialize() as producer:
        point(producer, committed)
        server.crash()
        if point is began:
            for number in range(1, PARTITIONS):
                producer.send("t", number, f"x-{number}".encode())
        producer.end(committed=committed)
        expected = [{"x"} if committed else set()] * PARTITIONS
        assert seen(server) == expected
        server.crash()
        assert seen(server) == expected
        send_all(producer, "y")
        producer.end(committed=True)
        assert all("y" in names for names in seen(server))
    with_reader = point in (with_offsets, asked_to_end)
    reader = CONFLUENT.reader(server.bootstrap, "t", "g")
    assert reader.committed("t", 0) == (42 if committed and with_reader else None)
    reader.close()


@both_versions
def test_what_was_decided_is_finished_without_its_producer(server: Server, version: int) -> None:
    """The producer dies with the broker, as soon as it was told: nobody asks for anything any more."""
    names = [f"tx{number}" for number in range(20)]
    producers = [RawTransactional(server.bootstrap, name, version=version) for name in names]
    for producer in producers:
        producer.initialize()
        send_all(producer, producer.id)
        producer.send_offsets(f"g-{producer.id}", {TopicPartition("t", 0): 7})
    for number, producer in enumerate(producers):
        producer.end(committed=number % 2 == 0)
        producer.disconnect()
    server.crash()
    expected = [{name for number, name in enumerate(names) if number % 2 == 0}] * PARTITIONS
    until_data(lambda: seen(server) == expected, "all that was decided is finished")


@pytest.mark.parametrize("version", first_of([NEW, OLD]), ids=["new", "old"])
def test_a_transaction_whose_producer_is_gone_is_aborted_in_time(
    server: Server, version: int
) -> None:
    producer = RawTransactional(server.bootstrap, "tx", version=version, timeout_ms=TOO_LONG_MS)
    with producer.initialize():
        send_all(producer, "gone")
    with RawTransactional(server.bootstrap, "other", version=version).initialize() as other:
        send_all(other, "other")
        other.end(committed=True)
    assert seen(server) == [set()] * PARTITIONS, "held back by the one before"
    server.crash()
    until_data(lambda: seen(server) == [{"other"}] * PARTITIONS, "the time goes on through a crash")


@pytest.mark.parametrize("version", first_of([NEW, OLD]), ids=["new", "old"])
def test_a_zombie_stays_out_after_the_broker_was_killed(server: Server, version: int) -> None:
    with RawTransactional(server.bootstrap, "tx", version=version).initialize() as zombie:
        send_all(zombie, "zombie")
        with RawTransactional(server.bootstrap, "tx", version=version).initialize() as successor:
            send_all(successor, "successor")
            server.crash()
            for step in (
                lambda: zombie.send("t", 0, b"zombie-more"),
                lambda: zombie.end(committed=True),
            ):
                with pytest.raises(Refused) as refused:
                    step()
                assert refused.value.code in (
                    ErrorCode.PRODUCER_FENCED,
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                )
            successor.end(committed=True)
    assert seen(server) == [{"successor"}] * PARTITIONS


@pytest.mark.parametrize("version", first_of([NEW, OLD]), ids=["new", "old"])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_at_any_moment_no_transaction_is_torn_lost_or_doubled(
    server: Server, rng: random.Random, rounds: int, version: int
) -> None:
    """The end of each transaction races with the kill; then the producer asks again."""
    committed: set[str] = set()
    aborted: set[str] = set()
    with RawTransactional(server.bootstrap, "tx", version=version).initialize() as producer:
        for number in range(rounds):
            name, commits = f"r{number}", rng.random() < 0.7
            for part in range(PARTITIONS):
                producer.send("t", part, f"{name}-{part}".encode())
                if rng.random() < 0.1:
                    server.crash()
            if rng.random() < 0.5:
                producer.end_unheard(committed=commits)
                if rng.random() < 0.5:
                    until_it_grows(server)
                server.crash()
            producer.end(committed=commits)
            (committed if commits else aborted).add(name)
    assert seen(server) == [committed] * PARTITIONS
    assert seen(server, UNCOMMITTED) == [committed | aborted] * PARTITIONS
    for library in LIBRARIES:
        found = library.read_all(server.bootstrap, "t", PARTITIONS, COMMITTED)
        assert [len(column) for column in found] == [len(committed)] * PARTITIONS, library.name


def until_it_grows(server: Server) -> None:
    """Until something was written: the prepare record, if it is that."""
    size_bytes = server.size_bytes("__transaction_state")
    for _ in range(1000):
        if server.size_bytes("__transaction_state") != size_bytes:
            return
