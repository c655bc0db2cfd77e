"""A broker's wall clock jumps by an hour or a month: nobody loses a session, nobody is elected, nothing is deleted before its time."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.cluster import ClusterOfServers
from tests.support.fake_clock import FakeClock
from tests.support.history import read_all
from tests.support.server import until
from tests.support.variants import first_of
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HOUR_S = 3600
MONTH_S = 30 * 24 * HOUR_S
SETTINGS = {"log.retention.check.interval.ms": 100, "broker.session.timeout.ms": 20_000}
LOOKED_S = 2.0  # twenty looks for what is too old: what must not happen gets the time to happen
RETENTION_MS = 2 * HOUR_S * 1000


@pytest.fixture
def clocks(tmp_path: Path) -> dict[int, FakeClock]:
    made = {}
    for number in (1, 2, 3):
        own = tmp_path / f"clock-of-{number}"
        own.mkdir()
        made[number] = FakeClock(own)
    return made


@pytest.fixture
def cluster(tmp_path: Path, clocks: dict[int, FakeClock]) -> Iterator[ClusterOfServers]:
    variables = {number: clock.variables for number, clock in clocks.items()}
    with ClusterOfServers(tmp_path, 3, SETTINGS, variables=variables) as started:
        started.create_topic(TOPIC, partitions=3, segment_bytes=20_000, retention_ms=RETENTION_MS)
        yield started


def has_time_of(cluster: ClusterOfServers, number: int, before: str) -> bool:
    """The last line that the broker logged has another hour than that."""
    return cluster.log_tail(number, 1)[:13] != before


def let_them_look() -> None:
    looked_s = time.monotonic() + LOOKED_S
    until(lambda: time.monotonic() > looked_s, "time passes")


@pytest.mark.parametrize(
    ("jump_s", "who"),
    first_of(
        [
            (MONTH_S, "controller"),  # far beyond the retention
            (HOUR_S, "controller"),
            (-HOUR_S, "controller"),
            (HOUR_S, "all"),
            (-HOUR_S, "all"),
        ]
    ),
)
def test_a_clock_that_jumps_costs_no_session_no_election_and_no_data(
    cluster: ClusterOfServers, clocks: dict[int, FakeClock], rng: Random, jump_s: int, who: str
) -> None:
    with Workload(cluster, rng, per_second=60, group=True, transactions=True) as work:
        cluster.wait_healthy()
        epochs = [cluster.partition(TOPIC, index).leader_epoch for index in range(3)]
        controller = cluster.controller()
        jumping = [controller] if who == "controller" else list(cluster.servers)
        for to_s in (jump_s, 0):
            for number in jumping:
                clocks[number].jump(to_s)
            let_them_look()
            work.await_progress()
            work.await_progress()

        assert not any(cluster.events("session-lost").values())
        assert not any(cluster.events("broker-gone").values())
        assert cluster.controller() == controller
        assert epochs == [cluster.partition(TOPIC, index).leader_epoch for index in range(3)]
        work.finish()
        assert not work.load.errors
        assert not work.reader.errors
        assert work.transactions is not None
        assert not work.transactions.errors
        assert not any(cluster.events("retention").values())
        for index in range(3):
            assert read_all(cluster.bootstrap, TOPIC, index)[0].offset == 0


def test_the_clock_of_a_broker_under_test_does_jump(
    cluster: ClusterOfServers, clocks: dict[int, FakeClock]
) -> None:
    """Else the rest proves nothing: the time in its log is another one."""
    before = cluster.log_tail(1, 1)[:13]
    clocks[1].jump(24 * HOUR_S)
    cluster.create_topic("another")
    until(lambda: has_time_of(cluster, 1, before), "it tells another time")
