"""A rolling upgrade under load: old and new brokers side by side, then the level is raised, and the old cannot come back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.cluster import ClusterOfServers
from tests.support.command import SOURCE, Done, penstock_command
from tests.support.older import earlier_revisions, narrower_source, run_from, source_of
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OLD: Final = {"group.version": (0, 0), "mirror.version": (0, 0), "transaction.version": (0, 1)}
BEFORE: Final = {
    "group.version": 0,
    "mirror.version": 0,
    "penstock.version": 1,
    "transaction.version": 1,
}
AFTER: Final = {
    "group.version": 1,
    "mirror.version": 1,
    "penstock.version": 1,
    "transaction.version": 2,
}


@contextmanager
def cluster_from(home: Path, source: str) -> Iterator[ClusterOfServers]:
    """Three brokers of that version. None is taken for dead because the machine is busy."""
    variables = {number: {"PYTHONPATH": source} for number in (1, 2, 3)}
    settings = {"broker.session.timeout.ms": 20_000}
    with ClusterOfServers(home, 3, settings, variables=variables) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def features(cluster: ClusterOfServers, *words: str) -> Done:
    return penstock_command("cluster", "features", *words, "--bootstrap", cluster.bootstrap)


def levels(cluster: ClusterOfServers) -> dict[str, int]:
    shown = features(cluster, "--json")
    assert shown.status == 0, shown.err
    return {row["feature"]: row["level"] for row in shown.json()["features"]}


def restart_from(source: str, cluster: ClusterOfServers, number: int, work: Workload) -> None:
    cluster.stop(number)
    work.await_progress()
    run_from(cluster.servers[number], source)
    cluster.start(number)
    cluster.wait_healthy()
    work.await_progress()


def raise_levels(cluster: ClusterOfServers) -> None:
    raised = features(cluster, "upgrade")
    assert raised.status == 0, raised.err
    assert levels(cluster) == AFTER


def finish(work: Workload) -> None:
    """Nothing was lost, and no client saw an error."""
    work.finish()
    assert work.transactions is not None
    seen = (work.load.errors, work.reader.errors, work.transactions.errors)
    assert seen == ([], [], [])


def test_a_rolling_upgrade_shows_no_client_an_error_and_its_last_step_keeps_old_brokers_out(
    tmp_path: Path, rng: Random
) -> None:
    old = narrower_source(tmp_path, OLD)
    with (
        cluster_from(tmp_path, old) as cluster,
        Workload(cluster, rng, group=True, transactions=True) as work,
    ):
        for number in cluster.servers:
            assert levels(cluster) == BEFORE, "until all are new and an operator says so"
            refused = features(cluster, "upgrade", "--to", "transaction.version=2")
            assert refused.status == 1
            assert "which has 0 to 1: upgrade that broker" in refused.err
            restart_from(SOURCE, cluster, number, work)
            if number == 1:  # until the levels are raised, one can go back
                restart_from(old, cluster, number, work)
                restart_from(SOURCE, cluster, number, work)
        raise_levels(cluster)
        work.await_progress()
        check_that_an_old_broker_stays_out(cluster, old)
        cluster.wait_healthy()
        work.await_progress()
        finish(work)


def check_that_an_old_broker_stays_out(cluster: ClusterOfServers, old: str) -> None:
    """And comes back as a new one."""
    server = cluster.servers[1]
    cluster.stop(1)
    run_from(server, old)
    server.launch()
    assert server.wait() == 1
    assert (
        "the cluster has group.version at level 1, and this broker supports 0: "
        "start it with a newer version of Penstock"
    ) in server.log
    run_from(server, SOURCE)
    cluster.start(1)


@pytest.mark.skipif(not earlier_revisions(), reason="UPGRADE_FROM names no revision")
@pytest.mark.parametrize("revision", earlier_revisions() or ["none"])
def test_brokers_of_an_earlier_revision_are_upgraded_one_by_one(
    tmp_path: Path, rng: Random, revision: str
) -> None:
    old = source_of(tmp_path, revision)
    with (
        cluster_from(tmp_path, old) as cluster,
        Workload(cluster, rng, group=True, transactions=True) as work,
    ):
        for number in cluster.servers:
            restart_from(SOURCE, cluster, number, work)
        raise_levels(cluster)
        work.await_progress()
        finish(work)
