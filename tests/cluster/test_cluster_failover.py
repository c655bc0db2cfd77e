"""Three replicas, and one broker or more that die, hang or restart: clients go on, and nothing acknowledged is lost."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.model.errors import ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.cluster import ClusterOfServers
from tests.support.history import producer, read_all, send
from tests.support.server import PATIENCE_S, until
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PAUSE_S = 6.0  # three sessions
BULK_BYTES = 2000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path, 3) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[ClusterOfServers]:
    """No session ends because the machine is busy."""
    with ClusterOfServers(tmp_path, 3, {"broker.session.timeout.ms": 20_000}) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


def test_every_replica_of_a_topic_comes_in_sync_and_has_the_same_bytes(
    calm: ClusterOfServers,
) -> None:
    cluster = calm
    values = [b"%06d" % number for number in range(2000)]
    for partition in range(3):
        view = cluster.partition(TOPIC, partition)
        assert set(view.replicas) == view.isr == {1, 2, 3}
    leaders = [cluster.leader_of(TOPIC, partition) for partition in range(3)]
    assert sorted(leaders) == [1, 2, 3], "each broker leads one"
    send(cluster.bootstrap, TOPIC, values)
    assert [message.value for message in read_all(cluster.bootstrap, TOPIC)] == values
    cluster.check_replicas_agree(TOPIC)
    assert len({header.base_offset for header, _ in cluster.batches(1, TOPIC)}) > 0


def test_producers_go_on_within_seconds_when_a_leader_is_killed(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        for _ in range(3):
            victim = cluster.leader_of(TOPIC, 0)
            killed_ns = time.monotonic_ns()
            cluster.kill(victim)
            work.await_progress()
            work.assert_went_on(killed_ns)
            assert cluster.leader_of(TOPIC, 0) != victim
            cluster.start(victim)
            cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_producers_go_on_when_the_controller_is_killed(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        for _ in range(2):
            victim = cluster.controller()
            killed_ns = time.monotonic_ns()
            cluster.kill(victim)
            work.await_progress()
            work.assert_went_on(killed_ns)
            assert cluster.controller() != victim
            cluster.start(victim)
            cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_a_follower_that_is_killed_costs_no_error_and_catches_up_later(
    tmp_path: Path, rng: Random
) -> None:
    settings = {"broker.session.timeout.ms": 6000}  # busy machines elect for nothing
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        cluster.create_topic(TOPIC)
        with Workload(cluster, rng, partitions=1) as work:
            leader = cluster.leader_of(TOPIC)
            follower = next(number for number in cluster.servers if number != leader)
            killed_ns = time.monotonic_ns()
            cluster.kill(follower)
            cluster.wait_isr(TOPIC, 0, 2)
            work.await_progress()
            work.assert_went_on(killed_ns)
            assert cluster.leader_of(TOPIC) == leader
            work.load.await_more(1000)
            cluster.start(follower)
            cluster.wait_isr(TOPIC, 0, 3)
            work.finish()
            assert not work.load.errors
            assert not work.reader.errors


def test_a_follower_is_in_sync_only_when_it_could_lead(tmp_path: Path, rng: Random) -> None:
    """It lags by much; in the moment in which it is told to be in sync all others die."""
    with ClusterOfServers(tmp_path, 3) as cluster:
        cluster.create_topic(TOPIC)
        with Workload(cluster, rng, partitions=1, per_second=500, padding_bytes=BULK_BYTES) as work:
            leader = cluster.leader_of(TOPIC)
            follower = next(number for number in cluster.servers if number != leader)
            others = [number for number in cluster.servers if number != follower]
            cluster.kill(follower)
            work.load.await_more(2000)
            cluster.start(follower)
            until(lambda: follower in cluster.partition(TOPIC).isr, "it is in sync")
            cluster.kill(*others)
            assert cluster.leader_of(TOPIC) == follower
            for number in others:
                cluster.start(number)
            cluster.wait_healthy()
            work.await_progress()
            work.finish()
            assert not work.load.errors


def test_a_rolling_restart_shows_no_client_an_error(calm: ClusterOfServers, rng: Random) -> None:
    cluster = calm
    with Workload(cluster, rng, group=True) as work:
        begun_ns = time.monotonic_ns()
        for number in cluster.servers:
            cluster.stop(number)
            work.await_progress()
            cluster.start(number)
            cluster.wait_healthy()
            work.await_progress()
        work.assert_went_on(begun_ns)
        work.finish()
        assert not work.load.errors
        assert not work.reader.errors
        assert (cluster.servers[1].data_dir / "running").exists()
        for number, lines in cluster.events("recovered").items():
            assert not lines, f"broker {number} had ended well"


def test_a_leader_that_hangs_is_replaced_and_takes_nothing_when_it_wakes(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        victim = cluster.leader_of(TOPIC, 0)
        epoch = cluster.partition(TOPIC, 0).leader_epoch
        paused_ns = time.monotonic_ns()
        cluster.pause(victim)
        resumed_s = time.monotonic() + PAUSE_S
        until(lambda: cluster.partition(TOPIC, 0).leader != victim, "somebody else leads")
        assert cluster.partition(TOPIC, 0).leader_epoch > epoch
        work.await_progress()
        work.assert_went_on(paused_ns)
        until(lambda: time.monotonic() > resumed_s, "time passes")
        cluster.resume(victim)
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_a_leader_that_wakes_refuses_what_clients_send_it_in_good_faith(
    cluster: ClusterOfServers,
) -> None:
    """acks=1 must not be given by a broker that has been replaced, not even in its first moment."""
    victim = cluster.leader_of(TOPIC, 0)
    send(cluster.bootstrap, TOPIC, [b"before"])
    cluster.pause(victim)
    until(lambda: cluster.partition(TOPIC, 0).leader != victim, "somebody else leads")
    sent: list[bytes] = []
    codes: list[int] = []
    cluster.resume(victim)
    deadline_s = time.monotonic() + PAUSE_S
    while time.monotonic() < deadline_s and victim != cluster.partition(TOPIC, 0).leader:
        sent.append(b"to the old leader %d" % len(sent))
        codes.append(produce_raw(cluster, victim, sent[-1], acks=1))
    values = {message.value for message in read_all(cluster.bootstrap, TOPIC)}
    accepted = [value for value, code in zip(sent, codes, strict=True) if code == 0]
    assert set(accepted) <= values, "acknowledged and not there"
    assert b"before" in values
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in codes


def produce_raw(cluster: ClusterOfServers, number: int, value: bytes, acks: int) -> int:
    """The code with which one broker answers, whoever leads."""
    batch = memoryview(build_batch([Record(0, 0, None, value)]))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=TOPIC,
                partition_data=[PartitionProduceData(index=0, records=batch)],
            )
        ],
    )
    answer = cluster.ask(number, request, ProduceResponse, 9)
    return answer.responses[0].partition_responses[0].error_code if answer is not None else -2


def test_all_brokers_killed_at_once_lose_nothing(cluster: ClusterOfServers, rng: Random) -> None:
    with Workload(cluster, rng, group=True) as work:
        for _ in range(2):
            cluster.kill_all()
            cluster.start_all()
            cluster.wait_healthy()
            work.await_progress()
        work.finish()
        assert not work.load.errors


def test_without_enough_replicas_nothing_is_taken_and_with_them_it_goes_on(
    cluster: ClusterOfServers,
) -> None:
    """min.insync.replicas is 2 where there are three replicas."""
    send(cluster.bootstrap, TOPIC, [b"first"])
    survivor = cluster.leader_of(TOPIC, 0)
    victims = [number for number in cluster.servers if number != survivor]
    for number in victims:
        cluster.kill(number)
    cluster.wait_isr(TOPIC, 0, 1)
    until(
        lambda: (
            produce_raw(cluster, survivor, b"refused", acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS
        ),
        "what cannot be kept twice is refused",
    )
    assert read_all(cluster.bootstrap, TOPIC)[0].value == b"first"
    cluster.start(victims[0])
    cluster.wait_isr(TOPIC, 0, 2)
    sender = producer(cluster.bootstrap, enable_idempotence=True)
    sender.produce(TOPIC, b"second", partition=0)
    assert sender.flush(PATIENCE_S) == 0
    values = [message.value for message in read_all(cluster.bootstrap, TOPIC)]
    assert values[0] == b"first"
    assert values[-1] == b"second"
    cluster.start(victims[1])
    cluster.wait_isr(TOPIC, 0, 3)
    cluster.check_replicas_agree(TOPIC)


def test_the_last_replica_standing_is_the_one_that_leads_again(
    cluster: ClusterOfServers, rng: Random
) -> None:
    """Killed one after the other, and the wrong ones come back first (KIP-966)."""
    with Workload(cluster, rng) as work:
        order = [1, 2, 3]
        rng.shuffle(order)
        for number in order:
            cluster.kill(number)
            if number != order[-1]:
                cluster.wait_brokers()
        for number in order:
            cluster.start(number)
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_a_broker_that_lost_its_disk_gets_everything_from_the_others(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with Workload(cluster, rng) as work:
        victim = cluster.leader_of(TOPIC, 0)
        cluster.kill(victim)
        shutil.rmtree(cluster.servers[victim].data_dir)
        work.await_progress()
        cluster.start(victim)
        cluster.wait_healthy()
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_topics_are_made_and_changed_whichever_broker_is_asked(
    cluster: ClusterOfServers,
) -> None:
    for number, server in cluster.servers.items():
        server.create_topic(f"by-{number}", partitions=2)
    for number in cluster.servers:
        until(lambda: not cluster.unhealthy(), "all replicas are in sync")
        assert len(cluster.partition(f"by-{number}", 1).isr) == 3
    for number, server in cluster.servers.items():
        server.delete_topic(f"by-{number}")
    until(
        lambda: all(set(server.topics()) == {TOPIC} for server in cluster.servers.values()),
        "they are gone everywhere",
    )
