"""`penstock.testing`, used as its users do: with a client that is not ours."""

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.testing import Broker
from tests.support.command import SOURCE
from tests.support.ports import kept_addresses

pytestmark = pytest.mark.cluster
pytest_plugins = ("pytester",)

PATIENCE_S = 30.0


@pytest.fixture(params=["in-process", "subprocess"])
def started(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(subprocess=request.param == "subprocess") as broker:
        yield broker


def send(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def receive(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, PATIENCE_S)
    consumer.close()
    return [message.value() for message in messages]


def test_a_message_goes_through(started: Broker) -> None:
    topic = started.create_topic()
    send(started, topic, b"hello")
    assert receive(started, topic, 1) == [b"hello"]


def test_data_and_address_survive_a_restart(started: Broker) -> None:
    topic = started.create_topic("orders")
    send(started, topic, b"before")
    address = started.bootstrap
    started.restart()
    assert started.bootstrap == address
    send(started, topic, b"after")
    assert receive(started, topic, 2) == [b"before", b"after"]


def test_health_is_served_over_http(started: Broker) -> None:
    with urlopen(f"http://{started.http}/readyz") as answer:
        assert answer.status == 200


def test_settings_have_kafkas_names_in_either_form() -> None:
    with Broker(
        {"num.partitions": 3}, auto_create_topics_enable=False, penstock_http="off"
    ) as broker:
        assert broker.http is None
        assert broker.pid == os.getpid()


def test_a_killed_broker_starts_again_with_what_it_acknowledged() -> None:
    with Broker(kept_addresses(), subprocess=True) as broker:
        topic = broker.create_topic()
        send(broker, topic, b"acknowledged")
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert receive(broker, topic, 1) == [b"acknowledged"]


def test_data_of_its_own_is_removed_and_given_data_is_kept(tmp_path: Path) -> None:
    with Broker() as temporary, Broker(data_dir=tmp_path / "kept") as lasting:
        assert temporary.data_dir.exists()
        assert lasting.data_dir == tmp_path / "kept"
    assert not temporary.data_dir.exists()
    assert lasting.data_dir.exists()


@pytest.mark.parametrize("subprocess", [False, True])
def test_a_start_that_fails_says_why(subprocess: bool) -> None:
    broker = Broker({"no.such.setting": 1}, subprocess=subprocess)
    with pytest.raises(Exception, match=r"no\.such\.setting"):
        broker.start()
    broker.close()


def test_several_brokers_run_side_by_side() -> None:
    with Broker() as first, Broker() as second:
        assert first.bootstrap != second.bootstrap
        send(first, first.create_topic("t"), b"1")
        send(second, second.create_topic("t"), b"2")
        assert receive(first, "t", 1) == [b"1"]


def test_the_fixtures_give_a_broker_and_a_fresh_topic(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def penstock_settings():
            return {"num.partitions": 2}
        """
    )
    pytester.makepyfile(
        """
        seen = []

        def test_one(penstock_broker, penstock_topic):
            assert penstock_broker.bootstrap.startswith("127.0.0.1:")
            seen.append((penstock_broker.bootstrap, penstock_topic))

        def test_two(penstock_broker, penstock_topic):
            seen.append((penstock_broker.bootstrap, penstock_topic))
            assert seen[0][0] == seen[1][0]
            assert seen[0][1] != seen[1][1]
        """
    )
    installed = entry_points(group="pytest11", name="penstock")
    plugin = () if installed else ("-p", "penstock.testing.plugin")
    pytester.runpytest_subprocess(*plugin).assert_outcomes(passed=2)
