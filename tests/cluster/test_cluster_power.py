"""Brokers of a cluster lose their power, and with it what was not synced: what was promised to be there is there."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from tests.support.cluster import ClusterOfServers
from tests.support.cluster_disks import cut_power, disks, put_on
from tests.support.command import penstock_command
from tests.support.history import read_all, send
from tests.support.private_disk import PrivateDisk
from tests.support.server import PATIENCE_S, until
from tests.support.variants import first_of
from tests.support.workload import TOPIC, Workload

rd: Any = confluent_kafka  # its stubs hide half of its names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

BOUND_S = 60.0  # all lose power and start again: serving
SETTINGS = {"log.flush.offset.checkpoint.interval.ms": 500}
SEGMENT_BYTES = 200_000
PADDING_BYTES = 300

Disks = Mapping[int, PrivateDisk]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Disks]:
    with disks(tmp_path, (1, 2, 3)) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, mounted: Disks) -> Iterator[ClusterOfServers]:
    with put_on(ClusterOfServers(tmp_path, 3, SETTINGS), mounted) as started:
        yield started


def create(cluster: ClusterOfServers, *, synced: bool = False) -> None:
    """`synced`: each message is on the disks before it is acknowledged."""
    never = 1 << 40
    cluster.create_topic(
        TOPIC,
        partitions=3,
        segment_bytes=SEGMENT_BYTES,
        flush_messages=1 if synced else never,
    )


def loaded(cluster: ClusterOfServers, rng: Random, *, group: bool = False) -> Workload:
    return Workload(cluster, rng, padding_bytes=PADDING_BYTES, group=group)


def some(mounted: Disks, *numbers: int) -> Disks:
    return {number: mounted[number] for number in numbers}


def lost_power(cluster: ClusterOfServers, numbers: tuple[int, ...]) -> bool:
    """Whether each of these brokers says so."""
    told = cluster.events("recovered")
    return all("ending=power-loss" in "".join(told[number]) for number in numbers)


@pytest.mark.parametrize("synced", first_of([False, True]))
def test_one_broker_that_loses_power_costs_nothing(
    cluster: ClusterOfServers, mounted: Disks, rng: Random, synced: bool
) -> None:
    create(cluster, synced=synced)
    with loaded(cluster, rng) as work:
        for _ in range(2):
            victim = cluster.leader_of(TOPIC, 0)
            cut_power(cluster, some(mounted, victim))
            work.await_progress()  # by the others
            cluster.start(victim)
            assert lost_power(cluster, (victim,))
            cluster.wait_healthy()
            work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.mark.parametrize("synced", first_of([False, True]))
def test_two_brokers_that_lose_power_cost_nothing_while_the_third_has_everything(
    cluster: ClusterOfServers, mounted: Disks, rng: Random, synced: bool
) -> None:
    create(cluster, synced=synced)
    with loaded(cluster, rng) as work:
        survivor = cluster.leader_of(TOPIC, 0)
        victims = tuple(number for number in cluster.servers if number != survivor)
        cut_power(cluster, some(mounted, *victims))
        until(
            lambda: all(cluster.partition(TOPIC, n).isr == {survivor} for n in range(3)),
            "one is left",
        )
        cluster.start_all()
        assert lost_power(cluster, victims)
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.mark.long
def test_all_brokers_that_lose_power_lose_nothing_where_every_topic_is_synced(
    tmp_path: Path, mounted: Disks, rng: Random
) -> None:
    """The broker's own topics too: groups go on where they were."""
    settings = SETTINGS | {"log.flush.interval.messages": 1}
    with put_on(ClusterOfServers(tmp_path, 3, settings), mounted) as cluster:
        create(cluster, synced=True)
        with loaded(cluster, rng, group=True) as work:
            for _ in range(2):
                cut_power(cluster, mounted)
                start_and_serve_in_time(cluster, work)
                cluster.wait_healthy()
            work.finish()
            assert not work.load.errors


def test_all_brokers_that_lose_power_lose_nothing_of_a_topic_that_is_synced(
    cluster: ClusterOfServers, mounted: Disks, rng: Random
) -> None:
    """Those that are not come back with what is left of them: groups may read something twice."""
    create(cluster, synced=True)
    with loaded(cluster, rng) as work:
        cut_power(cluster, mounted)
        start_and_serve_in_time(cluster, work)
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def start_and_serve_in_time(cluster: ClusterOfServers, work: Workload) -> None:
    begun_s = time.monotonic()
    cluster.start_all()
    work.await_progress()
    took_s = time.monotonic() - begun_s
    print(f"serving after {took_s:.1f} s")  # noqa: T201 - `pytest -rP` shows it
    assert took_s < BOUND_S
    assert lost_power(cluster, (1, 2, 3))


@pytest.mark.long
def test_power_that_goes_again_while_brokers_recover_costs_nothing_of_a_topic_that_is_synced(
    cluster: ClusterOfServers, mounted: Disks, rng: Random
) -> None:
    create(cluster, synced=True)
    with loaded(cluster, rng) as work:
        cut_power(cluster, mounted)
        for number in cluster.servers:
            cluster.start(number)
            cut_power(cluster, some(mounted, number))
        start_and_serve_in_time(cluster, work)
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_without_syncs_the_replica_with_the_most_leads_after_all_lost_power(
    cluster: ClusterOfServers, mounted: Disks
) -> None:
    sent = blackout_of_unsynced(cluster, mounted)
    cluster.wait_healthy()
    assert "led-by-who-has-most" in "".join(server.log for server in cluster.servers.values())
    check_a_prefix_is_left(cluster, sent)


def test_an_operator_may_reserve_the_decision_who_leads_after_all_lost_power(
    tmp_path: Path, mounted: Disks
) -> None:
    settings = SETTINGS | {"unclean.recovery.strategy": "none"}
    with put_on(ClusterOfServers(tmp_path, 3, settings), mounted) as cluster:
        sent = blackout_of_unsynced(cluster, mounted)
        until(lambda: leaders(cluster) == [-1, -1, -1], "none is known to have everything")
        told = penstock_command("cluster", "health", "--bootstrap", cluster.bootstrap)
        assert told.status == 1, told
        assert f"penstock cluster elect --unclean {TOPIC}-0 --yes" in told.out, told
        assert leaders(cluster) == [-1, -1, -1], "and it stays so"

        elect_unclean(cluster, None)
        cluster.wait_healthy()
        check_a_prefix_is_left(cluster, sent)


def blackout_of_unsynced(cluster: ClusterOfServers, mounted: Disks) -> list[bytes]:
    """What was sent and acknowledged before all lost power; they are started again."""
    create(cluster)
    sent = [b"%06d" % number + bytes(PADDING_BYTES) for number in range(2000)]
    assert send(cluster.bootstrap, TOPIC, sent, batch_size=4000) == list(range(len(sent)))
    cut_power(cluster, mounted)
    cluster.start_all()
    assert lost_power(cluster, (1, 2, 3))
    return sent


def check_a_prefix_is_left(cluster: ClusterOfServers, sent: list[bytes]) -> None:
    told = penstock_command("cluster", "health", "--bootstrap", cluster.bootstrap)
    assert told.status == 0, told
    left = [message.value for message in read_all(cluster.bootstrap, TOPIC)]
    print(f"{len(left)} of {len(sent)} are left")  # noqa: T201 - `pytest -rP` shows it
    assert left == sent[: len(left)], "a prefix, and nothing else"
    assert send(cluster.bootstrap, TOPIC, [b"later"]) == [len(left)]
    for partition in range(3):
        cluster.check_replicas_agree(TOPIC, partition)


def leaders(cluster: ClusterOfServers) -> list[int]:
    return [cluster.partition(TOPIC, number).leader for number in range(3)]


def elect_unclean(cluster: ClusterOfServers, partitions: list[Any] | None) -> None:
    answer = cluster.admin.elect_leaders(rd.ElectionType.UNCLEAN, partitions).result(PATIENCE_S)
    assert all(error is None for error in answer.values()), answer
