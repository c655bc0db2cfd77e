"""Brokers whose metadata is in etcd: with a member of it gone, or all, messages flow; what dies together is replaced."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support import etcd as support
from tests.support.cluster import ClusterOfServers
from tests.support.etcd import Etcd
from tests.support.server import PATIENCE_S, Server, until
from tests.support.variants import first_of
from tests.support.workload import TOPIC, Workload

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(support.missing() is not None, reason=str(support.missing())),
]

SETTINGS = {"broker.session.timeout.ms": 4000}  # busy machines have slow elections
CALM_MS = 8000  # for sessions that must not end


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with support.running(tmp_path / "etcd", 3) as started:
        yield started


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path / "brokers", 3, SETTINGS, store=etcd.url()) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def test_a_controller_that_dies_together_with_etcds_leader_is_replaced(
    etcd: Etcd, cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        victim = cluster.controller()
        leader = etcd.leader()
        killed_ns = time.monotonic_ns()
        leader.kill()
        cluster.kill(victim)
        work.await_progress()
        work.assert_went_on(killed_ns)
        assert cluster.controller() != victim
        etcd.start()
        cluster.start(victim)
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_messages_flow_without_any_etcd_and_metadata_change_again_when_it_is_back(
    etcd: Etcd, cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        for member in etcd.members:
            member.kill()
        until(
            lambda: all(cluster.events("metadata-unreachable").values()),
            "every broker has noticed, and says so",
        )
        work.await_progress()
        etcd.start()
        cluster.create_topic("later")
        work.finish()
        assert not work.load.errors


@pytest.fixture
def calm(tmp_path: Path, etcd: Etcd) -> Iterator[ClusterOfServers]:
    settings = {"broker.session.timeout.ms": CALM_MS}
    with ClusterOfServers(tmp_path / "brokers", 3, settings, store=etcd.url()) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


@pytest.mark.parametrize("is_leader", first_of([True, False]), ids=["leader", "follower"])
def test_a_member_of_etcd_that_hangs_costs_no_broker_its_session(
    etcd: Etcd, calm: ClusterOfServers, rng: Random, is_leader: bool
) -> None:
    """Once it wakes, a leader of etcd may revoke leases that others renewed meanwhile: brokers come back at once."""
    cluster = calm
    leader = etcd.leader()
    member = next(it for it in etcd.members if (it is leader) == is_leader)
    with Workload(cluster, rng) as work:
        member.pause()
        ended_s = time.monotonic() + 1.5 * CALM_MS / 1000
        until(
            lambda: any(cluster.events("metadata-watch-moves").values()),
            "somebody watched it, and moved on",
        )
        cluster.create_topic("meanwhile")
        work.await_progress()
        until(lambda: time.monotonic() > ended_s, "a session that nobody renewed would be over")
        assert not any(cluster.events("session-lost").values())
        assert not any(cluster.events("broker-gone").values())
        member.resume()
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_a_broker_without_its_etcd_ends_with_one_line(tmp_path: Path) -> None:
    server = Server(tmp_path, {"penstock.metadata": "etcd://127.0.0.1:1/test"})
    server.launch().wait(PATIENCE_S)
    (line,) = server.log.splitlines()
    assert line.startswith("penstock: etcd 127.0.0.1:1: failed to connect to all addresses")
    assert line.endswith("is it running, and has it a quorum?")
    assert server.wait() == 1
