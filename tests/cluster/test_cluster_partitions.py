"""Hosts that cannot reach each other: the majority goes on, and whoever was cut off comes back without harm."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.cluster import ClusterOfServers
from tests.support.network import Network
from tests.support.server import until
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

APART_S = 6.0  # three sessions


@pytest.fixture
def network() -> Iterator[Network]:
    """The test itself is on the clients' host."""
    with Network(3) as made, made.inside():
        yield made


@pytest.fixture
def cluster(network: Network, tmp_path: Path) -> Iterator[ClusterOfServers]:
    """Metadata are in a file, which every host sees also when it is cut off."""
    with ClusterOfServers(tmp_path, 3, places=network.places) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def while_apart() -> None:
    deadline_s = time.monotonic() + APART_S
    until(lambda: time.monotonic() > deadline_s, "time passes")


@pytest.mark.parametrize("whom", ["leader", "controller"])
def test_a_host_that_was_cut_off_comes_back_without_harm(
    cluster: ClusterOfServers, network: Network, rng: Random, whom: str
) -> None:
    with Workload(cluster, rng) as work:
        victim = cluster.leader_of(TOPIC, 0) if whom == "leader" else cluster.controller()
        network.isolate(victim)
        while_apart()
        network.heal()
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_a_leader_that_does_not_hear_its_followers_keeps_every_promise(
    cluster: ClusterOfServers, network: Network, rng: Random
) -> None:
    """Clients reach it, and it reaches the metadata: what Kafka has no answer to."""
    with Workload(cluster, rng) as work:
        victim = cluster.leader_of(TOPIC, 0)
        network.isolate(victim, but_from=[0])
        while_apart()
        network.heal()
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_two_brokers_that_do_not_hear_each_other_keep_every_promise(
    cluster: ClusterOfServers, network: Network, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        one, other = rng.sample([1, 2, 3], 2)
        network.cut(one, other)
        while_apart()
        network.heal()
        network.cut_one_way(one, other)
        while_apart()
        network.heal()
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors
