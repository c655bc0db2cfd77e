"""Hosts that cannot reach each other: the majority goes on, and whoever was cut off comes back without harm."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.cluster import ClusterOfServers
from tests.support.etcd import Etcd, missing
from tests.support.network import Network
from tests.support.server import until
from tests.support.variants import first_of
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


@pytest.fixture
def etcd(network: Network, tmp_path: Path) -> Iterator[Etcd]:
    """A member on each host."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Etcd(tmp_path / "etcd", 3, places=list(network.places.values())) as started:
        yield started


@pytest.fixture
def on_etcd(etcd: Etcd, network: Network, tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(
        tmp_path / "brokers", 3, places=network.places, store=etcd.url()
    ) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def while_apart() -> None:
    deadline_s = time.monotonic() + APART_S
    until(lambda: time.monotonic() > deadline_s, "time passes")


@pytest.mark.parametrize("whom", first_of(["leader", "controller"]))
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


@pytest.mark.parametrize("whom", first_of(["leader", "controller"]))
def test_a_leader_that_does_not_hear_its_followers_gives_way(
    cluster: ClusterOfServers, network: Network, rng: Random, whom: str
) -> None:
    """Clients reach it, and it reaches the metadata: what Kafka has no answer to."""
    with Workload(cluster, rng) as work:
        victim = cluster.controller() if whom == "controller" else cluster.leader_of(TOPIC, 0)
        led = [it for it in range(3) if cluster.leader_of(TOPIC, it) == victim]
        cut_ns = time.monotonic_ns()
        network.isolate(victim, but_from=[0])
        until(
            lambda: all(cluster.leader_of(TOPIC, it) != victim for it in led), "others lead instead"
        )
        print(f"others led after {(time.monotonic_ns() - cut_ns) / 1e9:.2f} s")  # noqa: T201 - for pytest -rP
        work.await_progress()
        work.assert_went_on(cut_ns)
        network.heal()
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.mark.long
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


def find(whom: str, cluster: ClusterOfServers, etcd: Etcd) -> int:
    """The host on which it runs."""
    if whom == "leader":
        return cluster.leader_of(TOPIC, 0)
    if whom == "controller":
        return cluster.controller()
    return etcd.members.index(etcd.leader()) + 1


@pytest.mark.parametrize(
    "whom",
    [
        "leader",
        pytest.param("controller", marks=pytest.mark.long),
        pytest.param("leader of etcd", marks=pytest.mark.long),
    ],
)
def test_the_majority_goes_on_when_a_host_is_cut_off(
    on_etcd: ClusterOfServers, etcd: Etcd, network: Network, rng: Random, whom: str
) -> None:
    """A host with a broker and a member of etcd: those who still reach each other elect."""
    with Workload(on_etcd, rng) as work:
        victim = find(whom, on_etcd, etcd)
        cut_ns = time.monotonic_ns()
        network.isolate(victim)
        work.await_progress()
        work.assert_went_on(cut_ns)
        while_apart()
        network.heal()
        on_etcd.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.mark.long
def test_hosts_that_do_not_hear_each_other_agree_by_the_third(
    on_etcd: ClusterOfServers, network: Network, rng: Random
) -> None:
    """Each has a member of etcd; the third host hears both."""
    with Workload(on_etcd, rng) as work:
        one, other = rng.sample([1, 2, 3], 2)
        network.cut(one, other)
        while_apart()
        network.heal()
        on_etcd.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors
