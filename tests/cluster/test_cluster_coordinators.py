"""Coordinators die: groups go on where they were, transactions end once, and what was committed stays committed."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from tests.support.cluster import GROUP as GROUPS
from tests.support.cluster import TRANSACTION, ClusterOfServers
from tests.support.recorders import Member
from tests.support.server import until, until_data
from tests.support.workload import GROUP, TOPIC, TRANSACTIONAL_ID, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROUNDS = 3
_rd: Any = confluent_kafka


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path, 3) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def test_a_group_goes_on_when_its_coordinator_is_killed(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng, group=True) as work:
        for _ in range(ROUNDS):
            victim = cluster.coordinator_of(GROUP, GROUPS)
            cluster.kill(victim)
            assert cluster.coordinator_of(GROUP, GROUPS) != victim
            work.await_progress()
            cluster.start(victim)
            cluster.wait_healthy()
        work.finish()


def test_what_a_group_committed_outlives_every_one_of_its_coordinators(
    cluster: ClusterOfServers, rng: Random
) -> None:
    """A member that comes later begins where the first one stopped, whoever coordinates."""
    with Workload(cluster, rng) as work:
        with late_member(work, "early") as first:
            first.await_more(5, "commits")
        for _ in range(ROUNDS):
            victim = cluster.coordinator_of("late", GROUPS)
            cluster.kill(victim)
            cluster.coordinator_of("late", GROUPS)
            cluster.start(victim)
            cluster.wait_healthy()
        with late_member(work, "late") as second:
            second.await_more(100)
        kept = set(values_of(work, "early")[: first.committed])
        assert kept
        assert not kept & set(values_of(work, "late")), "read again"
        work.finish()


def test_a_member_reads_on_that_asked_for_its_offsets_where_nobody_coordinates_any_more(
    cluster: ClusterOfServers,
) -> None:
    """It is given its partitions, asks a broker that sleeps where to begin, and is answered when another has taken over."""
    producer = _rd.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(9):
        producer.produce(TOPIC, b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    sleeper = cluster.coordinator_of(GROUP, GROUPS)
    consumer = _rd.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 45_000,
        }
    )
    consumer.subscribe([TOPIC])  # it joins by itself, and begins to read when it is first asked
    until(lambda: has_assigned(cluster), "the group is stable")
    cluster.pause(sleeper)
    seen = set[bytes]()
    note(consumer, seen)
    assert not seen, "it does not know where to begin"
    assert cluster.coordinator_of(GROUP, GROUPS) != sleeper
    cluster.resume(sleeper)
    until_data(lambda: note(consumer, seen) == 9, "it reads")
    consumer.close()


def has_assigned(cluster: ClusterOfServers) -> bool:
    try:
        found = cluster.admin.describe_consumer_groups([GROUP])[GROUP].result(60)
    except _rd.KafkaException:  # the coordinator has yet to learn that it is one
        return False
    return bool(found.state == _rd.ConsumerGroupState.STABLE)


def note(consumer: Any, seen: set[bytes]) -> int:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        seen.add(message.value())
    return len(seen)


def late_member(work: Workload, name: str) -> Member:
    where = work.cluster.bootstrap
    return Member(work.history, where, [TOPIC], group="late", name=name, must_get_all=False)


def values_of(work: Workload, reader: str) -> list[bytes]:
    return [seen.value for seen in work.history.seen if seen.reader == reader]


def test_transactions_go_on_when_their_coordinator_is_killed(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng, transactions=True) as work:
        for _ in range(ROUNDS):
            victim = cluster.coordinator_of(TRANSACTIONAL_ID, TRANSACTION)
            cluster.kill(victim)
            assert cluster.coordinator_of(TRANSACTIONAL_ID, TRANSACTION) != victim
            work.await_progress()
            cluster.start(victim)
            cluster.wait_healthy()
        work.finish()


def test_groups_and_transactions_go_on_over_a_rolling_restart(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng, group=True, transactions=True) as work:
        for number in cluster.servers:
            cluster.stop(number)
            work.await_progress()
            cluster.start(number)
            cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_internal_topics_grow_to_three_replicas_when_brokers_join(tmp_path: Path) -> None:
    """O7: what was made on one broker does not stay on one."""
    with ClusterOfServers(tmp_path, 3) as cluster:
        for number in (2, 3):
            cluster.stop(number)
        cluster.coordinator_of("g", GROUPS)
        for number in (2, 3):
            cluster.start(number)
        cluster.wait_brokers()
        until(
            lambda: all(
                len(cluster.partition("__consumer_offsets", partition).isr) == 3
                for partition in range(3)
            ),
            "the groups' log has three replicas",
        )
