"""The disk of one broker of three fills up, fails or slows down: clients go on, and nothing acknowledged is lost."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from penstock.storage import checksummed_json, machine, markers
from tests.support.cluster import ClusterOfServers
from tests.support.cluster_disks import disks, faulty_disks, put_on
from tests.support.faulty_disk import FaultyDisk
from tests.support.history import read_all
from tests.support.private_disk import PrivateDisk
from tests.support.server import Server, until
from tests.support.variants import first_of
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LAG_MS = 3000
HANG_MS = 6000  # a busy disk takes its time, too
PADDING_BYTES = 1000
BROKERS = (1, 2, 3)
FILLED = 1  # the broker whose disk is full: it leads one partition, and follows two
ROOM_BYTES = 3 << 20
SETTINGS = {"replica.lag.time.max.ms": LAG_MS, "log.flush.offset.checkpoint.interval.ms": 500}
SMALL = SETTINGS | {
    "penstock.disk.reserve.bytes": 1 << 20,
    "broker.session.timeout.ms": 6000,  # busy machines elect for nothing
}


def loaded(cluster: ClusterOfServers, rng: Random, padding_bytes: int = 0) -> Workload:
    return Workload(cluster, rng, padding_bytes=padding_bytes)


# Full --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[PrivateDisk]:
    with disks(tmp_path, [FILLED], ram="200m") as made:
        yield made[FILLED]


@pytest.fixture
def small(tmp_path: Path, small_disk: PrivateDisk) -> Iterator[ClusterOfServers]:
    with put_on(ClusterOfServers(tmp_path, 3, SMALL), {FILLED: small_disk}) as started:
        started.create_topic(TOPIC, partitions=3, segment_bytes=1 << 20)
        yield started


def is_full(cluster: ClusterOfServers) -> bool:
    return cluster.servers[FILLED].metric("penstock_disk_full") == 1


def left_the_isr(cluster: ClusterOfServers, number: int, partitions: list[int]) -> bool:
    return all(number not in cluster.partition(TOPIC, index).isr for index in partitions)


def returns(cluster: ClusterOfServers, number: int) -> int:
    """How often a leader took it back in sync; others may come and go on a busy machine."""
    told = "\n".join(line for lines in cluster.events("isr").values() for line in lines)
    changes = re.findall(r" was=(\S*) is=(\S*)", told)
    who = str(number)
    return sum(who in now.split(",") and who not in was.split(",") for was, now in changes)


def led_by(cluster: ClusterOfServers, number: int) -> list[int]:
    return [index for index in range(3) if cluster.leader_of(TOPIC, index) == number]


def test_a_full_disk_stops_no_partition_for_long_and_is_taken_up_again_by_itself(
    small: ClusterOfServers, small_disk: PrivateDisk, rng: Random
) -> None:
    with loaded(small, rng, PADDING_BYTES) as work:
        (led,) = led_by(small, FILLED)
        followed = [index for index in range(3) if index != led]
        filled_ns = time.monotonic_ns()
        small_disk.fill(leave_bytes=ROOM_BYTES)
        until(lambda: is_full(small), "it is full")
        until(lambda: left_the_isr(small, FILLED, [led, *followed]), "it lags")
        work.await_progress()  # also where it led
        work.assert_went_on(filled_ns, after_s=LAG_MS / 1000)
        returned = returns(small, FILLED)
        assert small.leader_of(TOPIC, led) != FILLED, "another, with room, leads"
        assert FILLED in small.running
        assert read_all(small.bootstrap, TOPIC, led), "reads are served"
        work.load.await_more(500)
        assert returns(small, FILLED) == returned, "nobody waits for it again while it has no room"
        assert left_the_isr(small, FILLED, [led, *followed])

        small_disk.make_room()
        until(lambda: not is_full(small), "it notices the room")
        small.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors
        assert not work.reader.errors


@pytest.mark.long
def test_a_leader_is_killed_while_the_disk_of_another_is_full(
    small: ClusterOfServers, small_disk: PrivateDisk, rng: Random
) -> None:
    """Two faults: one broker alone takes messages, so none is acknowledged until another is back."""
    with loaded(small, rng, PADDING_BYTES) as work:
        (led,) = led_by(small, FILLED)
        followed = [index for index in range(3) if index != led]
        small_disk.fill(leave_bytes=ROOM_BYTES)
        until(lambda: is_full(small), "it is full")
        until(lambda: left_the_isr(small, FILLED, followed), "it lags")
        small.wait_isr(TOPIC, followed[0], size=2)
        victim = small.leader_of(TOPIC, followed[0])
        small.kill(victim)
        until(lambda: small.leader_of(TOPIC, followed[0]) not in (FILLED, victim), "a third leads")
        small.start(victim)
        work.load.await_more(100)
        small_disk.make_room()
        small.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


# Failing and slow --------------------------------------------------------------------------------


@pytest.fixture
def faults(tmp_path: Path) -> dict[int, FaultyDisk]:
    return faulty_disks(tmp_path, BROKERS)


@contextmanager
def on_disks(
    home: Path, faults: dict[int, FaultyDisk], settings: dict[str, int]
) -> Iterator[ClusterOfServers]:
    """Each message is synced before it is acknowledged."""
    variables = {number: disk.variables for number, disk in faults.items()}
    with ClusterOfServers(home, 3, SETTINGS | settings, variables=variables) as started:
        started.create_topic(TOPIC, partitions=3, flush_messages=1)
        yield started


@pytest.fixture
def synced(tmp_path: Path, faults: dict[int, FaultyDisk]) -> Iterator[ClusterOfServers]:
    with on_disks(tmp_path, faults, {}) as started:
        yield started


def is_offline(cluster: ClusterOfServers, number: int) -> bool:
    return cluster.servers[number].metric("penstock_data_directory_offline") == 1


def end_well(
    cluster: ClusterOfServers, faults: dict[int, FaultyDisk], victim: int, work: Workload
) -> None:
    """The broker has ended. On a sound disk it comes back, and no producer has seen an error."""
    faults[victim].heal()
    cluster.start(victim)
    cluster.wait_healthy()
    work.await_progress()
    work.finish()
    assert not work.load.errors


@pytest.mark.parametrize("operation", first_of(["sync", "write"]))
def test_a_disk_that_fails_takes_its_broker_out_and_others_lead_within_seconds(
    synced: ClusterOfServers, faults: dict[int, FaultyDisk], rng: Random, operation: str
) -> None:
    with loaded(synced, rng) as work:
        victim = synced.leader_of(TOPIC, 0)
        failed_ns = time.monotonic_ns()
        faults[victim].fail(operation, f"/{TOPIC}/")
        until(lambda: is_offline(synced, victim), "its directory is offline")
        until(lambda: left_the_isr(synced, victim, [0, 1, 2]), "it is out of sync everywhere")
        work.await_progress()
        work.assert_went_on(failed_ns)
        assert victim not in [synced.leader_of(TOPIC, index) for index in range(3)]
        assert len(synced.servers[victim].events("data-directory-offline")) == 1

        synced.stop(victim)
        end_well(synced, faults, victim, work)


def has_noted_its_failure(server: Server) -> bool:
    """A thread writes it down, maybe later than others are told."""
    content = checksummed_json.decode(
        markers.RUNNING, (server.data_dir / markers.RUNNING).read_bytes()
    )
    return bool(content["boot_id"] != machine.read_boot_id())


def test_a_broker_whose_disk_failed_does_not_lead_although_no_other_is_left(
    synced: ClusterOfServers, faults: dict[int, FaultyDisk], rng: Random
) -> None:
    """Three faults: two in sync, one of them fails, the other is killed. Only that one may lead again."""
    with Workload(synced, rng, partitions=1) as work:
        victim = synced.leader_of(TOPIC, 0)
        other, third = (number for number in BROKERS if number != victim)
        synced.kill(third)
        synced.wait_isr(TOPIC, 0, size=2)
        work.await_progress()
        faults[victim].fail("sync", f"/{TOPIC}/")
        until(lambda: synced.leader_of(TOPIC, 0) == other, "the other leads")
        until(lambda: has_noted_its_failure(synced.servers[victim]), "it is noted")
        synced.kill(other)
        synced.kill(victim)
        faults[victim].heal()
        synced.start(victim)
        (started,) = synced.servers[victim].events("recovered")[-1:]
        assert "ending=power-loss" in started
        until(lambda: synced.partition(TOPIC, 0).leader == -1, "that the other is gone is known")
        synced.start(other)
        until(lambda: synced.leader_of(TOPIC, 0) == other, "what it has is all that was committed")
        assert not any(synced.events("committed-records-cut").values())
        synced.start(third)
        synced.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.fixture
def calm(tmp_path: Path, faults: dict[int, FaultyDisk]) -> Iterator[ClusterOfServers]:
    """As `synced`, and no session ends because the machine is busy."""
    with on_disks(tmp_path, faults, {"broker.session.timeout.ms": 20_000}) as started:
        yield started


@pytest.mark.parametrize(("operation", "delay_ms"), first_of([("sync", 200), ("write", 20)]))
@pytest.mark.parametrize("who", first_of(["all", "follower"]))
def test_a_slow_disk_slows_producers_down_and_shows_them_no_error(
    calm: ClusterOfServers,
    faults: dict[int, FaultyDisk],
    rng: Random,
    operation: str,
    delay_ms: int,
    who: str,
) -> None:
    with loaded(calm, rng) as work:
        leader = calm.leader_of(TOPIC, 0)
        follower = next(number for number in BROKERS if number != leader)
        epochs = [calm.partition(TOPIC, index).leader_epoch for index in range(3)]
        for number in [follower] if who == "follower" else BROKERS:
            faults[number].slow_down(operation, f"/{TOPIC}/", delay_ms)
        work.await_progress()
        work.load.await_more(300)
        work.await_progress()
        for disk in faults.values():
            disk.heal()
        calm.wait_healthy()
        assert not any(calm.events("session-lost").values()), "slow is not dead"
        assert epochs == [calm.partition(TOPIC, index).leader_epoch for index in range(3)]
        work.finish()
        assert not work.load.errors
        assert not work.reader.errors


def test_a_follower_whose_disk_hangs_is_told_of_leaves_the_isr_and_returns(
    calm: ClusterOfServers, faults: dict[int, FaultyDisk], rng: Random
) -> None:
    with Workload(calm, rng, partitions=1) as work:
        leader = calm.leader_of(TOPIC, 0)
        follower = next(number for number in BROKERS if number != leader)
        held_ns = time.monotonic_ns()
        faults[follower].hold("sync", f"/{TOPIC}/partition-0")
        until(lambda: left_the_isr(calm, follower, [0]), "it lags for too long")
        server = calm.servers[leader]
        assert any(f"broker={follower}" in line for line in server.events("replica-lagging"))
        lag = server.metric("penstock_replica_lag_records", broker=str(follower))
        work.await_progress()
        work.assert_went_on(held_ns, after_s=LAG_MS / 1000)
        assert lag > 0
        faults[follower].heal()
        calm.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


@pytest.fixture
def impatient(tmp_path: Path, faults: dict[int, FaultyDisk]) -> Iterator[ClusterOfServers]:
    """As `synced`, and a sync may not take for ever."""
    with on_disks(tmp_path, faults, {"penstock.disk.hang.max.ms": HANG_MS}) as started:
        yield started


def test_a_leader_with_a_sync_that_never_returns_is_taken_out_and_can_be_stopped(
    impatient: ClusterOfServers, faults: dict[int, FaultyDisk], rng: Random
) -> None:
    """One hung file is enough: what else it leads has no better disk."""
    with loaded(impatient, rng) as work:
        victim = impatient.leader_of(TOPIC, 0)
        held_ns = time.monotonic_ns()
        faults[victim].hold("sync", f"/{TOPIC}/partition-0")
        until(lambda: is_offline(impatient, victim), "its directory is offline")
        until(lambda: left_the_isr(impatient, victim, [0, 1, 2]), "it is out of sync everywhere")
        work.await_progress()
        work.assert_went_on(held_ns, after_s=HANG_MS / 1000)
        (said,) = impatient.servers[victim].events("data-directory-offline")
        assert "a sync has not returned" in said

        impatient.stop(victim)
        end_well(impatient, faults, victim, work)


def test_a_broker_that_is_stopped_while_a_sync_hangs_ends_all_the_same(
    impatient: ClusterOfServers, faults: dict[int, FaultyDisk], rng: Random
) -> None:
    with Workload(impatient, rng, partitions=1) as work:
        victim = impatient.leader_of(TOPIC, 0)
        faults[victim].hold("sync", f"/{TOPIC}/partition-0")
        impatient.stop(victim)
        assert impatient.servers[victim].events("unclean-stop")
        work.await_progress()
        end_well(impatient, faults, victim, work)
