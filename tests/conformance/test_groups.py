"""Groups with real clients: members come, go and die; nothing is lost, nothing committed is done again."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from penstock.testing import Broker
from tests.support.group_members import (
    CLIENTS,
    Company,
    Member,
    Place,
    confluent,
)
from tests.support.ports import kept_addresses

pytestmark = [
    pytest.mark.cluster,
    # client libraries leave sockets behind when a broker dies under them
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 6
QUICK = {  # sessions that a test can wait for
    "group.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.session.timeout.ms": 3000,
}
# what each client is told, so that it notices a rebalance soon
SETTINGS: dict[str, dict[str, Any]] = {
    "confluent": {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000},
    "kafka-python": {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000},
    "aiokafka": {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000},
}
KINDS = {
    **{name: (name, settings) for name, settings in SETTINGS.items()},
    "confluent-cooperative": (
        "confluent",
        {**SETTINGS["confluent"], "partition_assignment_strategy": "cooperative-sticky"},
    ),
    "confluent-consumer": ("confluent", {"group_protocol": "consumer"}),
}
CALM_MS = 60_000  # sessions that a machine which stands still for a while does not end


@pytest.fixture(scope="module")
def quick() -> Iterator[Broker]:
    with Broker(QUICK, subprocess=True) as started:
        yield started


@pytest.fixture(scope="module")
def calm() -> Iterator[Broker]:
    """For those who count: a session that ends moves every partition, and rightly so."""
    with Broker(
        {**QUICK, "group.consumer.session.timeout.ms": CALM_MS}, subprocess=True
    ) as started:
        yield started


def calmly(kind: str) -> tuple[str, dict[str, Any]]:
    """A client, and what it is told; in the newer protocol the broker says how long a session is."""
    client, settings = KINDS[kind]
    classic = "group_protocol" not in settings
    return client, settings | ({"session_timeout_ms": CALM_MS} if classic else {})


@pytest.fixture
def company() -> Iterator[Company]:
    company = Company()
    yield company
    company.close()
    gc.collect()  # what clients left behind is found here, and not in another test
    assert not company.record.wrongs


class Feed:
    """Writes numbered messages to all partitions of a topic, until told to stop."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "acks": "all"}
        )
        self._topic = topic
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.places: set[Place] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> set[Place]:
        """Everything that was acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.places

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            partition = number % PARTITIONS
            self._producer.produce(
                self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
            time.sleep(0.001)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            with self._lock:
                self.places.add((message.topic(), message.partition(), message.offset()))


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex[:8]}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_grows_to_ten_and_shrinks_to_three_without_losing_or_repeating_anything(
    quick: Broker, company: Company, kind: str
) -> None:
    client, settings = KINDS[kind]
    topic, group = quick.create_topic(partitions=PARTITIONS), fresh("scale")
    connect = CLIENTS[client](quick.bootstrap, group, topic, **settings)
    feed = Feed(quick, topic)
    members = [company.member("m0", connect)]
    company.record.until_shared(1, PARTITIONS)
    members += [company.member(f"m{n}", connect) for n in range(1, 10)]
    company.record.until_shared(10, PARTITIONS)
    for member in members[3:]:
        member.close()
    company.record.until_shared(3, PARTITIONS)
    company.record.until_worked_on(feed.stop())


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_of_a_member_that_is_killed_goes_on_with_the_others(
    quick: Broker, company: Company, kind: str
) -> None:
    client, settings = KINDS[kind]
    topic, group = quick.create_topic(partitions=PARTITIONS), fresh("kill")
    feed = Feed(quick, topic)
    company.member("ann", CLIENTS[client](quick.bootstrap, group, topic, **settings))
    victim = company.killable("bob", client, quick.bootstrap, group, topic, **settings)
    company.record.until_shared(2, PARTITIONS)
    victim.kill()
    company.record.until_shared(1, PARTITIONS)
    company.record.until_worked_on(feed.stop())


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_goes_on_after_its_broker_was_killed(company: Company, kind: str) -> None:
    client, settings = KINDS[kind]
    with Broker({**QUICK, **kept_addresses()}, subprocess=True) as broker:
        topic, group = broker.create_topic(partitions=PARTITIONS), fresh("crash")
        connect = CLIENTS[client](broker.bootstrap, group, topic, **settings)
        feed = Feed(broker, topic)
        for number in range(3):
            company.member(f"m{number}", connect)
        company.record.until_shared(3, PARTITIONS)
        company.record.until(
            lambda: len(company.record.committed) == PARTITIONS, "everyone commits"
        )
        broker.kill()
        broker.start()
        before = len(company.record.worked_on)
        company.record.until(
            lambda: len(company.record.worked_on) > before + 100, "the group works again"
        )
        company.record.until_worked_on(feed.stop())
        company.close()


@pytest.mark.parametrize("kind", ["confluent", "kafka-python", "aiokafka", "confluent-consumer"])
def test_a_static_member_that_restarts_disturbs_nobody(
    calm: Broker, company: Company, kind: str
) -> None:
    client, settings = calmly(kind)
    topic, group = calm.create_topic(partitions=PARTITIONS), fresh("static")

    def member(name: str) -> Member:
        more = {**settings, "group_instance_id": f"instance-{name}"}
        return company.member(name, CLIENTS[client](calm.bootstrap, group, topic, **more))

    member("ann")
    bob = member("bob")
    company.record.until_shared(2, PARTITIONS)
    told = company.record.owned["bob"]
    changes = [name for name, _ in company.record.assignments].count("ann")
    bob.close()
    member("bob")
    company.record.until(
        lambda: company.record.owned.get("bob") == told, "bob has its partitions back"
    )

    assert [name for name, _ in company.record.assignments].count("ann") == changes


@pytest.mark.parametrize("kind", ["confluent-cooperative", "confluent-consumer"])
def test_partitions_that_stay_with_their_member_keep_flowing_during_a_rebalance(
    calm: Broker, company: Company, kind: str
) -> None:
    client, settings = calmly(kind)
    topic, group = calm.create_topic(partitions=PARTITIONS), fresh("flow")
    connect = CLIENTS[client](calm.bootstrap, group, topic, **settings)
    feed = Feed(calm, topic)
    company.member("ann", connect)
    company.record.until_shared(1, PARTITIONS)
    before, alone = company.record.owned["ann"], len(company.record.assignments)
    company.member("bob", connect)
    company.record.until_shared(2, PARTITIONS)
    company.record.until_worked_on(feed.stop())

    since = [owned for name, owned in company.record.assignments[alone:] if name == "ann"]
    kept = before.intersection(*since)
    assert len(kept) == PARTITIONS // 2  # never taken away from it, not even for a moment


# Live migration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [False, True], ids=["upgrade", "downgrade"])
def test_a_live_group_changes_its_protocol_member_by_member(
    quick: Broker, company: Company, back: bool
) -> None:
    topic, group = quick.create_topic(partitions=PARTITIONS), fresh("move")
    protocols = [KINDS["confluent-cooperative"][1], KINDS["confluent-consumer"][1]]
    if back:
        protocols.reverse()
    old, new = (confluent(quick.bootstrap, group, topic, **settings) for settings in protocols)
    feed = Feed(quick, topic)
    before = [company.member(f"old{n}", old) for n in range(2)]
    company.record.until_shared(2, PARTITIONS)
    for number, member in enumerate(before):
        company.member(f"new{number}", new)
        company.record.until_shared(3, PARTITIONS)
        member.close()
        company.record.until_shared(2, PARTITIONS)
    company.record.until_worked_on(feed.stop())


# What the cluster does ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["confluent", "confluent-consumer"])
def test_added_partitions_and_new_topics_of_a_pattern_reach_the_group(
    quick: Broker, company: Company, kind: str
) -> None:
    client, settings = KINDS[kind]
    word = fresh("p")
    first = quick.create_topic(f"{word}-1", partitions=1)
    connect = CLIENTS[client](
        quick.bootstrap,
        fresh("pattern"),
        f"^{word}-.*",
        topic_metadata_refresh_interval_ms=500,
        **settings,
    )
    company.member("ann", connect)

    def until_owned(*wanted: tuple[str, int]) -> None:
        owned = company.record.owned
        company.record.until(lambda: owned.get("ann") == frozenset(wanted), f"ann has {wanted}")

    until_owned((first, 0))
    second = quick.create_topic(f"{word}-2", partitions=2)
    until_owned((first, 0), (second, 0), (second, 1))
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    admin.create_partitions([NewPartitions(first, 2)])[first].result(30)
    until_owned((first, 0), (first, 1), (second, 0), (second, 1))
    admin.delete_topics([second])[second].result(30)
    until_owned((first, 0), (first, 1))
