"""Coordinators die: groups go on where they were, transactions end once, and what was committed stays committed."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.cluster import GROUP as GROUPS
from tests.support.cluster import TRANSACTION, ClusterOfServers
from tests.support.recorders import Member
from tests.support.server import until
from tests.support.workload import GROUP, TOPIC, TRANSACTIONAL_ID, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROUNDS = 3


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
        assert not values_of(work, "early") & values_of(work, "late"), "read again"
        work.finish()


def late_member(work: Workload, name: str) -> Member:
    where = work.cluster.bootstrap
    return Member(work.history, where, [TOPIC], group="late", name=name, must_get_all=False)


def values_of(work: Workload, reader: str) -> set[bytes]:
    return {seen.value for seen in work.history.seen if seen.reader == reader}


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
