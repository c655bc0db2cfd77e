"""Brokers find each other through their metadata store, and the office of the controller is never long vacant."""

import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.support.checker import History, Outcome, assert_sound
from tests.support.cluster import ClusterOfServers
from tests.support.recorders import Load, Member, Readers, TransactionalLoad, read_logs
from tests.support.server import until, until_data
from tests.support.workload import group_saw_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FAILOVER_S = 50.0  # ten times the promise, which benchmarks/failover.py measures: machines are busy


def test_brokers_on_one_metadata_file_are_one_cluster(tmp_path: Path) -> None:
    calm = {"broker.session.timeout.ms": 20_000}  # busy machines take some for dead
    with ClusterOfServers(tmp_path, 3, calm, racks=["a", "b"]) as cluster:
        views = dict(cluster.views())
        assert sorted(views) == [1, 2, 3]
        assert len({view.cluster_id for view in views.values()}) == 1
        for view in views.values():
            racks = {broker.node_id: broker.rack for broker in view.brokers}
            assert racks == {1: "a", 2: "b", 3: "a"}
            ports = {f"{broker.host}:{broker.port}" for broker in view.brokers}
            assert ports == set(cluster.bootstrap.split(","))


def test_another_broker_becomes_the_controller_when_it_is_killed(tmp_path: Path) -> None:
    with ClusterOfServers(tmp_path, 3) as cluster:
        for _ in range(2):
            old = cluster.controller()
            killed_s = time.monotonic()
            cluster.kill(old)
            assert cluster.controller() != old
            cluster.wait_brokers()
            assert time.monotonic() - killed_s < FAILOVER_S
            cluster.start(old)
            cluster.wait_brokers()


def test_a_broker_that_is_stopped_leaves_and_comes_back(tmp_path: Path) -> None:
    with ClusterOfServers(tmp_path, 3) as cluster:
        for number in (1, 2, 3):
            cluster.stop(number)
            cluster.wait_brokers()
            cluster.start(number)
            cluster.wait_brokers()


def test_all_brokers_killed_at_once_come_back_with_their_topics(tmp_path: Path) -> None:
    with ClusterOfServers(tmp_path, 3) as cluster:
        cluster.create_topic("t", partitions=6, replicas=1)
        leaders = [cluster.leader_of("t", number) for number in range(6)]
        assert set(leaders) == {1, 2, 3}
        cluster.kill_all()
        cluster.start_all()
        until(
            lambda: [cluster.leader_of("t", number) for number in range(6)] == leaders,
            "each partition is led where its only replica is",
        )


def test_a_history_of_everything_over_a_crash_of_one_broker_is_sound(
    tmp_path: Path, rng: Random
) -> None:
    """The harness itself: loads, transactions, readers and a group, with nothing replicated."""
    partitions = [("t", 0), ("t", 1)]
    history = History()
    with ClusterOfServers(tmp_path, 1) as cluster:
        cluster.create_topic("t", partitions=2, replicas=1)
        where = cluster.bootstrap
        with (
            Readers(history, where, partitions) as reader,
            Member(history, where, ["t"], name="m1") as first,
            Member(history, where, ["t"], name="m2") as second,
        ):
            with (
                Load(history, where, partitions) as load,
                TransactionalLoad(history, where, partitions, rng) as transactions,
            ):
                load.await_more()
                transactions.await_more()
                cluster.kill(1)
                cluster.start(1)
                load.await_more()
                transactions.await_more()
            read_logs(history, where, partitions)
            total = sum(map(len, history.logs.values()))
            until_data(lambda: reader.count >= total, "the reader comes to the end")
            until_data(partial(group_saw_all, history, {first.name, second.name}), "the group too")
    assert not load.errors
    assert all(send.outcome is Outcome.DONE for send in history.sends if not send.transaction)
    assert_sound(history)
