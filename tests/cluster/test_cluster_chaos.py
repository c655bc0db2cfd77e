"""Brokers are killed, paused, restarted and cut off at random, again and again; in the end every promise was kept.

`make chaos MINUTES=10` looks for longer, with another seed each time; `SEED=… make chaos` plays one again.
"""

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.support.chaos import Chaos
from tests.support.checker import summary
from tests.support.cluster import ClusterOfServers, Place
from tests.support.cluster_disks import faulty_disks
from tests.support.etcd import Etcd, missing
from tests.support.faulty_disk import FaultyDisk
from tests.support.network import Network
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(0)]

SLOWER = {"broker.session.timeout.ms": 4000}  # etcd's elections take their time on a busy machine
SYNCED = {"log.flush.interval.messages": 100}
BROKERS = (1, 2, 3)
DESCRIPTORS = 400  # of each broker; a flood has more connections
needs_prlimit = pytest.mark.skipif(
    shutil.which("prlimit") is None, reason="prlimit is not installed"
)
MINUTES = float(os.environ.get("MINUTES", "0.25"))


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201 - pytest shows it when the test fails


def run_chaos(
    cluster: ClusterOfServers,
    rng: Random,
    network: Network | None = None,
    etcd: Etcd | None = None,
    disks: Mapping[int, FaultyDisk] | None = None,
) -> None:
    cluster.create_topic(TOPIC, partitions=3)
    chaos = Chaos(cluster, rng, tell, network, etcd, disks)
    until_s = time.monotonic() + 60 * MINUTES
    with Workload(cluster, rng, group=True, transactions=True) as work:
        while time.monotonic() < until_s:
            begun_ns = time.monotonic_ns()
            chaos.strike()
            work.await_progress()
            if rng.random() < 0.7:  # else the next one comes while this one is not over
                cluster.wait_healthy()
            work.silence_s(begun_ns)
        work.finish()
        tell(summary(work.history))
        assert not work.load.errors, work.load.errors[0]


@pytest.mark.long
def test_random_faults_of_processes_break_no_promise(tmp_path: Path, rng: Random) -> None:
    with ClusterOfServers(tmp_path, 3) as cluster:
        run_chaos(cluster, rng)


@needs_prlimit
def test_slow_disks_and_too_few_descriptors_break_no_promise(tmp_path: Path, rng: Random) -> None:
    disks = faulty_disks(tmp_path, BROKERS)
    with ClusterOfServers(
        tmp_path,
        len(BROKERS),
        SYNCED,
        places=dict.fromkeys(BROKERS, Place(["prlimit", f"--nofile={DESCRIPTORS}"])),
        variables={number: disk.variables for number, disk in disks.items()},
    ) as cluster:
        run_chaos(cluster, rng, disks=disks)


@pytest.mark.long
def test_random_faults_of_the_network_break_no_promise(tmp_path: Path, rng: Random) -> None:
    with (
        Network(3) as network,
        network.inside(),
        ClusterOfServers(tmp_path, 3, places=network.places) as cluster,
    ):
        run_chaos(cluster, rng, network)


def test_random_faults_of_hosts_and_of_etcd_break_no_promise(tmp_path: Path, rng: Random) -> None:
    """Each host has a broker and a member of etcd."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        network = stack.enter_context(Network(3))
        stack.enter_context(network.inside())
        hosts = list(network.places.values())
        etcd = stack.enter_context(Etcd(tmp_path / "etcd", 3, places=hosts))
        cluster = stack.enter_context(
            ClusterOfServers(
                tmp_path / "brokers", 3, SLOWER, store=etcd.url(), places=network.places
            )
        )
        run_chaos(cluster, rng, network, etcd)
