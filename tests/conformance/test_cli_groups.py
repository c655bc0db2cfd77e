"""`penstock group` against a broker that runs as users run it."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest

from penstock.testing import Broker
from tests.support.command import Done, penstock_command

pytestmark = pytest.mark.cluster

Command = Callable[..., Done]
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@pytest.fixture
def run(broker: Broker) -> Command:
    def call(*words: object) -> Done:
        return penstock_command(*words, PENSTOCK_BOOTSTRAP=broker.bootstrap)

    return call


@pytest.fixture
def topic(broker: Broker) -> str:
    """Two partitions of ten messages, an hour apart."""
    name = broker.create_topic(partitions=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce(
            name, b"x", partition=number % 2, timestamp=START_MS + number // 2 * HOUR_MS
        )
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def group(broker: Broker, topic: str) -> str:
    """It has read four messages of the first partition, and everything of the second."""
    name = f"group-{uuid4().hex[:8]}"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": name, "log_level": 0}
    )
    places = [
        confluent_kafka.TopicPartition(topic, 0, 4),
        confluent_kafka.TopicPartition(topic, 1, 10),
    ]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    return name


@pytest.fixture(params=["classic", "consumer"])
def member(broker: Broker, topic: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An active group, with one member."""
    name = f"active-{uuid4().hex[:8]}"
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "group.protocol": request.param,
            "client.id": "worker",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    assert consumer.consume(1, timeout=30)
    yield name
    consumer.close()


def succeed(done: Done) -> Done:
    assert done.status == 0, done
    return done


def refused(done: Done) -> str:
    assert done.status == 1, done
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    return done.err


def lags(run: Command, group: str) -> dict[int, Any]:
    described = succeed(run("group", "describe", group, "--json")).json()
    return {row["partition"]: row["lag"] for row in described["partitions"]}


def test_groups_are_listed_with_their_type_and_state(run: Command, group: str, member: str) -> None:
    rows = {row["name"]: row for row in succeed(run("group", "list", "--json")).json()}
    assert (rows[group]["type"], rows[group]["state"]) == ("classic", "Empty")
    assert rows[member]["state"] == "Stable"
    assert rows[member]["protocol"] == "consumer"
    stable = succeed(run("group", "list", "--state", "stable")).out
    assert member in stable
    assert group not in stable
    kind = rows[member]["type"]
    assert member in succeed(run("group", "list", "--type", kind)).out


def test_a_group_is_described_with_lag_per_partition_and_in_total(run: Command, group: str) -> None:
    described = succeed(run("group", "describe", group, "--json")).json()
    assert (described["state"], described["lag"], described["members"]) == ("Empty", 6, [])
    assert [(row["committed"], row["end"], row["lag"]) for row in described["partitions"]] == [
        (4, 10, 6),
        (10, 10, 0),
    ]
    text = succeed(run("group", "describe", group)).out
    assert "COMMITTED" in text
    assert "lag" in text


def test_members_are_described_with_what_they_work_on(
    run: Command, topic: str, member: str
) -> None:
    described = succeed(run("group", "describe", member, "--json")).json()
    (found,) = described["members"]
    assert found["client_id"] == "worker"
    assert found["host"] == "127.0.0.1"
    assert found["partitions"] == {topic: [0, 1]}
    assert {row["member"] for row in described["partitions"]} == {found["id"]}
    assert f"{topic}:0,1" in succeed(run("group", "describe", member)).out


@pytest.mark.parametrize(
    ("to", "lag"),
    [
        ("start", {0: 10, 1: 10}),
        ("end", {0: 0, 1: 0}),
        ("7", {0: 3, 1: 3}),
        ("99", {0: 0, 1: 0}),
        (f"@{START_MS + 2 * HOUR_MS}", {0: 8, 1: 8}),
        ("2023-11-15T04:13:20Z", {0: 4, 1: 4}),
        ("-1s", {0: 0, 1: 0}),
        ("-9999d", {0: 10, 1: 10}),
    ],
)
def test_a_group_is_moved_and_a_dry_run_only_shows_it(
    run: Command, group: str, to: str, lag: dict[int, int]
) -> None:
    shown = succeed(run("group", "reset", group, "--to", to, "--dry-run", "--json")).json()
    assert {row["partition"]: row["lag"] for row in shown} == lag
    assert lags(run, group) == {0: 6, 1: 0}
    moved = succeed(run("group", "reset", group, "--to", to, "--json")).json()

    assert moved == shown
    assert lags(run, group) == lag


def test_only_the_named_partitions_are_moved(run: Command, group: str, topic: str) -> None:
    done = succeed(run("group", "reset", group, "--to", "start", "--topic", f"{topic}:1"))
    assert "moved group" in done.out
    assert lags(run, group) == {0: 6, 1: 10}


def test_a_group_that_never_was_can_be_given_a_place_to_begin(run: Command, topic: str) -> None:
    name = f"new-{uuid4().hex[:8]}"
    nowhere = refused(run("group", "reset", name, "--to", "end"))
    assert "does not exist" in nowhere
    succeed(run("group", "reset", name, "--to", "end", "--topic", topic))
    assert lags(run, name) == {0: 0, 1: 0}


def test_an_active_group_is_neither_moved_nor_deleted(run: Command, member: str) -> None:
    for words in (("--dry-run",), ()):
        message = refused(run("group", "reset", member, "--to", "start", *words))
        assert "active" in message
        assert "1 member" in message
    assert "has members" in refused(run("group", "delete", member))


def test_a_group_is_deleted_with_its_offsets(run: Command, group: str) -> None:
    assert succeed(run("group", "delete", group)).out == f"deleted group {group}\n"
    assert "does not exist" in refused(run("group", "delete", group))
    succeed(run("group", "delete", group, "--if-exists"))
    assert "does not exist" in refused(run("group", "describe", group))


@pytest.mark.parametrize(
    "words",
    [
        ("reset", "g"),
        ("reset", "g", "--to", "someday"),
        ("reset", "g", "--to", "end", "--topic", "t:x"),
        ("describe",),
    ],
)
def test_wrong_usage_is_told_in_one_line(run: Command, words: tuple[str, ...]) -> None:
    done = run("group", *words)

    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)


def test_a_partition_that_is_not_there_is_named(run: Command, group: str, topic: str) -> None:
    message = refused(run("group", "reset", group, "--to", "end", "--topic", f"{topic}:7"))

    assert "no partition 7" in message
