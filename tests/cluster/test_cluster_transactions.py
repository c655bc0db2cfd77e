"""Transactions over partitions of all brokers, with offsets of a group in them, while brokers are killed: all or nothing, once."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.support.checker import Outcome
from tests.support.cluster import GROUP as GROUPS
from tests.support.cluster import TRANSACTION, ClusterOfServers
from tests.support.copier import COPIES, COPY_GROUP, COPY_ID, Copier
from tests.support.network import Network
from tests.support.recorders import TransactionalLoad
from tests.support.server import until_data
from tests.support.transactions import COMMITTED, CONFLUENT
from tests.support.variants import first_of
from tests.support.workload import TOPIC, TRANSACTIONAL_ID, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS = 3
ROUNDS = 3
DURATION_S = float(os.environ.get("CHAOS_S") or 12)

Victim = Callable[[ClusterOfServers, Random], int]
Trouble = Callable[[ClusterOfServers, int, float], None]
VICTIMS: dict[str, Victim] = {
    "the coordinator of the transactions": lambda cluster, _: cluster.coordinator_of(
        TRANSACTIONAL_ID, TRANSACTION
    ),
    "the coordinator of the copier": lambda cluster, _: cluster.coordinator_of(
        COPY_ID, TRANSACTION
    ),
    "the leader of a partition": lambda cluster, rng: cluster.leader_of(
        TOPIC, rng.randrange(PARTITIONS)
    ),
    "the coordinator of the group": lambda cluster, _: cluster.coordinator_of(COPY_GROUP, GROUPS),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path, 3) as started:
        create_topics(started)
        yield started


def create_topics(cluster: ClusterOfServers) -> None:
    for topic in (TOPIC, COPIES):
        cluster.create_topic(topic, partitions=PARTITIONS, min_insync_replicas=2)
        leaders = {cluster.leader_of(topic, number) for number in range(PARTITIONS)}
        assert leaders == {1, 2, 3}, "every broker leads"


class Work:
    """Two producers of transactions, and a copier whose offsets are in its transactions."""

    def __init__(self, cluster: ClusterOfServers, rng: Random) -> None:
        self.cluster = cluster
        self.load = Workload(cluster, rng, per_second=30, transactions=True)
        self.other = TransactionalLoad(
            self.load.history,
            cluster.bootstrap,
            self.load.partitions,
            Random(rng.getrandbits(32)),
            name="other",
        )
        self.copier = Copier(cluster.bootstrap, TOPIC, cluster.home / "copier.log")

    def await_progress(self) -> None:
        self.load.await_progress()
        self.other.await_more(3)
        self.copier.await_more(3)

    def finish(self) -> None:
        """Everything that was promised holds, and every committed message was copied once."""
        self.other.end()
        self.load.finish()
        history = self.load.history
        wanted = Counter(value for log in history.logs.values() for _, value in log)
        until_data(lambda: self.copies().total() >= wanted.total(), "the copier comes to the end")
        self.copier.end()
        assert self.copies() == wanted, "copied once each"
        ends = Counter(history.transactions.values())
        assert ends[Outcome.DONE] > 10, f"there was something to see: {ends}"

    def copies(self) -> Counter[bytes]:
        found = CONFLUENT.read_all(self.cluster.bootstrap, COPIES, PARTITIONS, COMMITTED)
        return Counter(value for column in found for value in column)


@contextmanager
def at_work(cluster: ClusterOfServers, rng: Random) -> Iterator[Work]:
    made = Work(cluster, rng)
    with made.load, made.other, made.copier:
        yield made


@pytest.fixture
def work(cluster: ClusterOfServers, rng: Random) -> Iterator[Work]:
    with at_work(cluster, rng) as made:
        yield made


def kill_and_start(cluster: ClusterOfServers, victim: int, pause_s: float) -> None:
    cluster.kill(victim)
    time.sleep(pause_s)
    cluster.start(victim)


@pytest.mark.parametrize("victim", first_of(VICTIMS))
def test_transactions_go_on_and_are_whole_when_a_broker_is_killed(
    work: Work, cluster: ClusterOfServers, rng: Random, victim: str
) -> None:
    for _ in range(ROUNDS):
        number = VICTIMS[victim](cluster, rng)
        cluster.kill(number)
        work.await_progress()
        cluster.start(number)
        cluster.wait_healthy()
    work.finish()


def pause_and_resume(cluster: ClusterOfServers, victim: int, pause_s: float) -> None:
    """It sleeps, maybe for so long that others take its place, and does not know."""
    cluster.pause(victim)
    time.sleep(pause_s)
    cluster.resume(victim)


@pytest.mark.long
@pytest.mark.parametrize(
    "trouble", [pytest.param(kill_and_start, marks=pytest.mark.long), pause_and_resume]
)
def test_transactions_are_whole_whoever_is_in_trouble_and_whenever(
    work: Work, cluster: ClusterOfServers, rng: Random, trouble: Trouble
) -> None:
    """SEED=… replays who it is and when; CHAOS_S=… says how long."""
    ends_s = time.monotonic() + DURATION_S
    while time.monotonic() < ends_s:
        time.sleep(rng.uniform(0.1, 3))
        cluster.wait_healthy()
        trouble(cluster, VICTIMS[rng.choice(sorted(VICTIMS))](cluster, rng), rng.uniform(0, 4))
    work.await_progress()
    work.finish()


@pytest.mark.long
def test_transactions_are_whole_while_brokers_do_not_reach_each_other(
    tmp_path: Path, rng: Random
) -> None:
    """All of them live, and clients reach all: what one broker sends another is lost, or comes late."""
    with (
        Network(3) as network,
        network.inside(),
        ClusterOfServers(tmp_path, 3, places=network.places) as cluster,
    ):
        create_topics(cluster)
        with at_work(cluster, rng) as work:
            ends_s = time.monotonic() + DURATION_S
            while time.monotonic() < ends_s:
                cut = rng.choice([network.cut, network.cut_one_way])
                cut(*rng.sample([1, 2, 3], 2))
                time.sleep(rng.uniform(0.5, 8))
                network.heal()
                cluster.wait_healthy()
            work.await_progress()
            work.finish()
