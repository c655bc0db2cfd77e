"""`penstock txn` against a broker that runs as users run it: what is open is found, shown and ended."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from penstock.testing import Broker
from tests.support.command import Done, penstock_command
from tests.support.raw_transactions import OLD, RawTransactional, Refused
from tests.support.transactions import COMMITTED, CONFLUENT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Command = Callable[..., Done]


@pytest.fixture
def run(broker: Broker) -> Command:
    def call(*words: object) -> Done:
        return penstock_command("txn", *words, PENSTOCK_BOOTSTRAP=broker.bootstrap)

    return call


@pytest.fixture
def name(broker: Broker) -> str:
    made = f"t-{uuid.uuid4().hex[:8]}"
    broker.create_topic(made, partitions=2)
    return made


@pytest.fixture
def producer(broker: Broker, name: str) -> Iterator[RawTransactional]:
    """With a transaction open in both partitions of its topic."""
    with RawTransactional(broker.bootstrap, f"tx-{name}", version=OLD).initialize() as made:
        made.send(name, 0, b"a")
        made.send(name, 1, b"b")
        yield made


def succeed(done: Done) -> Done:
    assert done.status == 0, done
    return done


def refused(done: Done, status: int = 1) -> str:
    assert done.status == status, done
    assert done.out == ""
    return done.err


def test_transactions_are_listed_by_state_and_age(run: Command, producer: RawTransactional) -> None:
    row = {
        "id": producer.id,
        "state": "Ongoing",
        "producer_id": producer.producer.id,
        "coordinator": 1,
    }
    assert row in succeed(run("list", "--json")).json()
    assert row in succeed(run("list", "--json", "--state", "Ongoing")).json()
    assert row not in succeed(run("list", "--json", "--state", "Empty")).json()
    assert row not in succeed(run("list", "--json", "--longer-than", "1h")).json()
    assert producer.id in succeed(run("list")).out
    assert row in succeed(run("list", "--json", "--state", "ongoing")).json()


def test_a_transaction_is_described(run: Command, name: str, producer: RawTransactional) -> None:
    shown = succeed(run("describe", producer.id, "--json")).json()
    assert shown.pop("lasts_ms") >= 0
    assert shown.pop("started").endswith("Z")
    assert shown == {
        "id": producer.id,
        "state": "Ongoing",
        "producer_id": producer.producer.id,
        "epoch": 0,
        "coordinator": 1,
        "timeout_ms": 60_000,
        "partitions": [f"{name}-0", f"{name}-1"],
    }
    text = succeed(run("describe", producer.id)).out
    assert "state        Ongoing" in text
    producer.end(committed=True)
    shown = succeed(run("describe", producer.id, "--json")).json()
    assert (shown["state"], shown["lasts_ms"], shown["partitions"]) == ("CompleteCommit", None, [])
    assert "does not exist; see: penstock txn list" in refused(run("describe", "nobody"))


def test_an_open_transaction_is_aborted_and_its_producer_shut_out(
    run: Command, broker: Broker, name: str, producer: RawTransactional
) -> None:
    done = succeed(run("abort", producer.id))
    assert done.out == f"aborted the transaction of '{producer.id}' in 2 partitions\n"
    with pytest.raises(Refused, match="FENCED"):
        producer.end(committed=True)
    assert CONFLUENT.read_all(broker.bootstrap, name, 2, COMMITTED) == [[], []]
    assert "has no open transaction: it is in state Empty" in refused(run("abort", producer.id))


def test_a_part_of_a_transaction_is_not_aborted_alone(
    run: Command, broker: Broker, name: str, producer: RawTransactional
) -> None:
    wrong = refused(run("abort", "--partition", f"{name}-0", "--start-offset", 0))
    assert f"it does not hang: {name}-0 is in the transaction of '{producer.id}'" in wrong
    far = refused(run("abort", "--partition", f"{name}-0", "--start-offset", 1 << 40))
    assert "no transaction in" in far
    producer.end(committed=True)
    assert CONFLUENT.read_all(broker.bootstrap, name, 2, COMMITTED) == [[b"a"], [b"b"]]


def test_a_hanging_transaction_is_found_and_aborted() -> None:
    """Nobody knows of it any more but the partition: here because the coordinator's memory was deleted."""
    with Broker(subprocess=True) as broker:
        broker.create_topic("t", partitions=1)
        with RawTransactional(broker.bootstrap, "tx", version=OLD).initialize() as producer:
            producer.send("t", 0, b"hangs")

            def call(*words: object) -> Done:
                return penstock_command(*words, PENSTOCK_BOOTSTRAP=broker.bootstrap)

            assert succeed(call("txn", "list", "--hanging", "--json")).json() == []
            succeed(call("topic", "delete", "__transaction_state"))
            (found,) = succeed(call("txn", "list", "--hanging", "--json")).json()
            assert (found["partition"], found["start_offset"]) == ("t-0", 0)
            listed = succeed(call("txn", "list", "--hanging", "--topic", "t"))
            assert "penstock txn abort --partition t-0 --start-offset 0" in listed.err
            assert CONFLUENT.read_all(broker.bootstrap, "t", 1, COMMITTED) == [[]]
            wrong = refused(call("txn", "abort", "--partition", "t-0", "--start-offset", 5))
            assert "no transaction in t-0 starts at offset 5" in wrong
            done = succeed(call("txn", "abort", "--partition", "t-0", "--start-offset", 0))
            producer_id = producer.producer.id
            assert done.out == f"aborted the transaction of producer {producer_id} in t-0\n"
            assert succeed(call("txn", "list", "--hanging", "--json")).json() == []
            with RawTransactional(broker.bootstrap, "other").initialize() as other:
                other.send("t", 0, b"after")
                other.end(committed=True)
            assert CONFLUENT.read_all(broker.bootstrap, "t", 1, COMMITTED) == [[b"after"]]


def test_arguments_that_do_not_go_together_are_wrong_usage(run: Command) -> None:
    assert "either an ID, or --partition" in refused(run("abort"), 2)
    assert "either an ID, or --partition" in refused(run("abort", "x", "--start-offset", 1), 2)
    assert "go together" in refused(run("abort", "--partition", "t-0"), 2)
    assert "such as orders-3" in refused(run("abort", "--partition", "t"), 2)
    assert "expected Empty, Ongoing," in refused(run("list", "--state", "Never"), 2)
    assert "--topic goes with" in refused(run("list", "--topic", "t"), 2)
    assert "--hanging goes with" in refused(run("list", "--hanging", "--state", "Empty"), 2)
