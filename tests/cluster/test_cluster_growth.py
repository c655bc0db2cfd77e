"""Clusters grow, shrink and are repaired by the command line, while data stays what it was."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest

from tests.conformance.test_other_clients import POM, fetched, run
from tests.support import history as clients
from tests.support.checker import History, assert_sound
from tests.support.cluster import ClusterOfServers
from tests.support.command import Done, penstock_command, start_penstock
from tests.support.recorders import Load, read_logs
from tests.support.server import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MB = 1_000_000
TOLERANCE = 1.2  # of the rate of a throttle
_VALUE_BYTES = 10_000
_SAMPLE_EVERY_S = 0.05

Logs = dict[int, list[bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfServers]:
    """Three brokers; a fourth waits in `late`."""
    made = ClusterOfServers(tmp_path, 4, {"broker.session.timeout.ms": "6000"})
    made.late = made.servers.pop(4)  # type: ignore[attr-defined]  # only these tests have one
    with made:
        yield made


def add_fourth(cluster: ClusterOfServers) -> None:
    cluster.servers[4] = cluster.late  # type: ignore[attr-defined]  # see the fixture
    cluster.start(4)
    cluster.wait_brokers()


def said(cluster: ClusterOfServers, *words: object) -> Done:
    return penstock_command(*words, PENSTOCK_BOOTSTRAP=_where(cluster))


def facts(cluster: ClusterOfServers, *words: object, status: int = 0) -> Any:
    done = said(cluster, *words, "--json")
    assert done.status == status, done
    return done.json()


def _where(cluster: ClusterOfServers) -> str:
    return ",".join(cluster.servers[number].bootstrap for number in cluster.responsive)


def fill(cluster: ClusterOfServers, topic: str, partitions: int, mb_each: float) -> None:
    """Data that does not compress."""
    random = Random(topic)
    producer = clients.producer(_where(cluster), linger_ms=20, batch_size=200_000)
    for _ in range(round(mb_each * MB / _VALUE_BYTES)):
        for partition in range(partitions):
            producer.produce(topic, random.randbytes(_VALUE_BYTES), partition=partition)
        producer.poll(0)
        if len(producer) > 1000:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def contents(cluster: ClusterOfServers, topic: str, partitions: int) -> Logs:
    """What the leaders have on disk."""
    return {
        number: [
            batch for _, batch in cluster.batches(cluster.leader_of(topic, number), topic, number)
        ]
        for number in range(partitions)
    }


def check_unchanged(cluster: ClusterOfServers, topic: str, before: Logs) -> None:
    """Every replica that is assigned, and no other, has exactly this."""
    for partition, batches in before.items():
        replicas = cluster.partition(topic, partition).replicas
        cluster.wait_isr(topic, partition, len(replicas))
        for number in replicas:
            found = [batch for _, batch in cluster.batches(number, topic, partition)]
            assert found == batches, f"{topic}-{partition} on broker {number}"


def replicas_of(cluster: ClusterOfServers, topic: str, partitions: int) -> list[tuple[int, ...]]:
    return [cluster.partition(topic, number).replicas for number in range(partitions)]


def status(cluster: ClusterOfServers) -> Any:
    return facts(cluster, "reassign", "status")


def check_nothing_left_over(cluster: ClusterOfServers) -> None:
    assert status(cluster) == {"moves": [], "throttles": {"bytes_per_second": {}, "topics": {}}}


class _Scale(Thread):
    """Weighs what a broker has, again and again."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(name="scale")
        self._data_dir = data_dir
        self._ending = Event()
        self.samples: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self._ending.wait(_SAMPLE_EVERY_S):
            self.samples.append((time.monotonic(), self._weigh()))

    def _weigh(self) -> int:
        total = 0
        for folder, _, names in os.walk(self._data_dir):  # which bears that some go meanwhile
            for name in names:
                with suppress(FileNotFoundError):
                    if name.endswith(".log"):
                        total += Path(folder, name).stat().st_size
        return total

    def end(self) -> None:
        self._ending.set()
        self.join()

    def bytes_per_s(self) -> float:
        """From when there was nothing yet to when all was there: a look that comes late counts for nobody."""
        growing = [
            (before_s, after_s, after)
            for (before_s, before), (after_s, after) in pairwise(self.samples)
            if after > before
        ]
        return growing[-1][2] / (growing[-1][1] - growing[0][0])


@contextmanager
def weighed(cluster: ClusterOfServers, number: int) -> Iterator[_Scale]:
    scale = _Scale(cluster.servers[number].data_dir)
    scale.start()
    try:
        yield scale
    finally:
        scale.end()


# Growing -----------------------------------------------------------------------------------------


def test_a_new_broker_gets_its_share_no_faster_than_the_throttle(
    cluster: ClusterOfServers,
) -> None:
    partitions, rate = 8, 3 * MB
    cluster.create_topic("t", partitions=partitions, replicas=3)
    fill(cluster, "t", partitions, 4)
    before = contents(cluster, "t", partitions)
    add_fourth(cluster)
    foreseen = facts(cluster, "cluster", "balance", "--replicas", "--dry-run")
    assert foreseen["copied_replicas"] == 6, "a quarter of 24"
    with weighed(cluster, 4) as scale:
        done = facts(cluster, "cluster", "balance", "--replicas", "--throttle", "3MB/s")
    assert done["refused"] == []
    assert done["copied_bytes"] >= 6 * 4 * MB
    assert scale.bytes_per_s() < rate * TOLERANCE
    check_unchanged(cluster, "t", before)
    check_nothing_left_over(cluster)
    replicas = replicas_of(cluster, "t", partitions)
    held = [sum(number in chosen for chosen in replicas) for number in (1, 2, 3, 4)]
    led = [sum(chosen[0] == number for chosen in replicas) for number in (1, 2, 3, 4)]
    assert (held, led) == ([6] * 4, [2] * 4)
    assert facts(cluster, "cluster", "leaders")[3]["leaders"] == 2
    again = facts(cluster, "cluster", "balance", "--replicas", "--dry-run")
    assert (again["leaders"], again["copied_replicas"]) == ([], 0)


# Shrinking ---------------------------------------------------------------------------------------


def test_a_broker_leaves_under_load_and_nothing_is_lost(cluster: ClusterOfServers) -> None:
    cluster.create_topic("t", partitions=4, replicas=2)
    places = [("t", number) for number in range(4)]
    history = History()
    with Load(history, _where(cluster), places, padding_bytes=500) as load:
        load.await_more()
        done = facts(cluster, "broker", "decommission", 2)
        assert (done["replicas_left"], done["refused"]) == (0, [])
        load.await_more()
    assert all(2 not in chosen for chosen in replicas_of(cluster, "t", 4))
    cluster.create_topic("new", partitions=6, replicas=2)
    assert all(2 not in chosen for chosen in replicas_of(cluster, "new", 6)), "nor anything new"
    assert [row["id"] for row in facts(cluster, "broker", "list") if row["cordoned"]] == [2]
    running = said(cluster, "broker", "decommission", 2, "--unregister")
    assert running.status == 1
    assert "stop it, then strike it off" in running.err
    cluster.stop(2)
    cluster.wait_brokers()
    gone = facts(cluster, "broker", "decommission", 2, "--unregister")
    assert gone["unregistered"]
    assert [row["id"] for row in facts(cluster, "broker", "list")] == [1, 3]
    assert facts(cluster, "cluster", "health")["healthy"]
    read_logs(history, _where(cluster), places)
    assert not load.errors
    assert_sound(history)


def test_three_become_two_only_by_giving_up_replicas(cluster: ClusterOfServers) -> None:
    """Those of internal topics too: they follow the number of brokers, and do not come back."""
    cluster.create_topic("wide", replicas=3)
    fill(cluster, "wide", 1, 0.1)
    consume = ("consume", "wide", "-g", "g", "-n", 3, "-f", "%o ")
    assert said(cluster, *consume).out == "0 1 2 "
    refused = said(cluster, "broker", "decommission", 3)
    assert refused.status == 1
    assert "needs 3 brokers" in refused.err
    assert "penstock broker decommission 3 --shrink" in refused.err
    assert facts(cluster, "broker", "decommission", 3, "--shrink")["replicas_left"] == 0
    cluster.stop(3)
    cluster.wait_brokers()
    assert facts(cluster, "broker", "decommission", 3, "--unregister")["unregistered"]
    for topic in ("wide", "__consumer_offsets"):
        assert set(cluster.partition(topic).replicas) == {1, 2}
    assert facts(cluster, "cluster", "health")["healthy"]
    assert said(cluster, *consume).out == "3 4 5 "


def test_a_dead_broker_is_replaced(cluster: ClusterOfServers) -> None:
    cluster.create_topic("t", partitions=3, replicas=3)
    fill(cluster, "t", 3, 0.2)
    add_fourth(cluster)
    cluster.kill(1)
    cluster.wait_brokers()
    for number in range(3):
        cluster.wait_isr("t", number, 2)  # who is missed, and who leads instead, are two steps
        cluster.leader_of("t", number)
    health = facts(cluster, "cluster", "health", status=1)
    assert [row["broker"] for row in health["missing_brokers"]] == [1]
    assert {row["problem"] for row in health["problems"]} == {"under-replicated"}
    assert all("penstock broker decommission 1" in row["remedy"] for row in health["problems"])
    before = contents(cluster, "t", 3)
    done = facts(cluster, "broker", "decommission", 1, "--unregister")
    assert (done["replicas_left"], done["unregistered"]) == (0, True)
    assert facts(cluster, "cluster", "health")["healthy"]
    check_unchanged(cluster, "t", before)


# Interruptions -----------------------------------------------------------------------------------


@pytest.fixture
def plan_file(cluster: ClusterOfServers, tmp_path: Path) -> Path:
    """Two partitions of 3 MB on brokers 1 and 2; the plan sends both to 3 and 4."""
    cluster.create_topic("t", partitions=2, replicas=2)
    fill(cluster, "t", 2, 3)
    add_fourth(cluster)
    chosen = {0: [3, 4], 1: [4, 3]}
    rows = [
        {"topic": "t", "partition": number, "replicas": replicas}
        for number, replicas in chosen.items()
    ]
    old = [{**row, "replicas": [1, 2]} for row in rows]
    for name, content in (("old", old), ("new", rows)):
        (tmp_path / name).write_text(json.dumps({"version": 1, "partitions": content}))
    facts(cluster, "reassign", "execute", tmp_path / "old")
    return tmp_path / "new"


@contextmanager
def executing(
    cluster: ClusterOfServers, plan: Path, rate: str
) -> Iterator["subprocess.Popen[str]"]:
    """In the midst of it: some bytes were copied, and many are left."""
    words = ("reassign", "execute", plan, "--throttle", rate)
    process = start_penstock(*words, PENSTOCK_BOOTSTRAP=_where(cluster))
    try:
        until(lambda: _is_halfway(cluster), "something is copied, and something is left")
        yield process
    finally:
        process.kill()
        process.communicate()


def _is_halfway(cluster: ClusterOfServers) -> bool:
    moves = status(cluster)["moves"]
    left = sum(row["left_bytes"] for row in moves)
    return bool(moves) and 0 < left < 12 * MB


def test_a_kill_in_the_midst_of_a_move_and_an_interrupt_are_resumed_from(
    cluster: ClusterOfServers, plan_file: Path
) -> None:
    before = contents(cluster, "t", 2)
    with executing(cluster, plan_file, "300KB/s") as process:
        cluster.kill(4)
        cluster.wait_brokers()
        until(
            lambda: all(row["waits_for"] == [4] for row in status(cluster)["moves"]),
            "moves wait for broker 4",
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"go on with: penstock reassign execute {plan_file}" in err
    assert "penstock reassign cancel" in err
    found = status(cluster)
    assert len(found["moves"]) == 2
    assert found["throttles"]["bytes_per_second"]["3"] == 300_000
    cluster.start(4)
    cluster.wait_brokers()
    done = facts(cluster, "reassign", "execute", plan_file, "--throttle", "100MB/s")
    assert (done["partitions"], done["done"]) == (2, 2)
    assert replicas_of(cluster, "t", 2) == [(3, 4), (4, 3)]
    check_unchanged(cluster, "t", before)
    check_nothing_left_over(cluster)
    assert facts(cluster, "reassign", "execute", plan_file)["partitions"] == 0


def test_what_is_called_off_stays_where_it_was(cluster: ClusterOfServers, plan_file: Path) -> None:
    before = contents(cluster, "t", 2)
    with executing(cluster, plan_file, "50KB/s") as process:
        one = facts(cluster, "reassign", "cancel", "t-1")
        assert (one["cancelled"], one["throttles_removed"]) == (["t-1"], False)
        assert [row["partition"] for row in status(cluster)["moves"]] == ["t-0"]
        rest = facts(cluster, "reassign", "cancel")
        assert (rest["cancelled"], rest["throttles_removed"]) == (["t-0"], True)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "t-0 was not moved: somebody called the move off" in err
    assert replicas_of(cluster, "t", 2) == [(1, 2), (1, 2)]
    check_unchanged(cluster, "t", before)
    check_nothing_left_over(cluster)


# Repair ------------------------------------------------------------------------------------------


def test_a_partition_whose_data_is_out_of_reach_is_led_again_at_a_price(
    cluster: ClusterOfServers,
) -> None:
    cluster.create_topic("t", replicas=2)
    fill(cluster, "t", 1, 0.1)
    first, second = cluster.partition("t").replicas
    cluster.kill(second)
    cluster.wait_brokers()
    until(lambda: cluster.partition("t").isr == {first}, "one is in sync")
    fill(cluster, "t", 1, 0.1)
    cluster.kill(first)
    cluster.wait_brokers()
    cluster.start(second)
    cluster.wait_brokers()
    until(lambda: cluster.partition("t").leader == -1, "nobody leads")
    [problem] = facts(cluster, "cluster", "health", status=1)["problems"]
    assert (problem["partition"], problem["problem"]) == ("t-0", "no leader")
    assert problem["remedy"].startswith(f"start broker {first}")
    command = "penstock cluster elect --unclean t-0 --yes"
    assert command in problem["remedy"]
    warned = said(cluster, "cluster", "elect", "--unclean", "t-0")
    assert warned.status == 2
    assert command in warned.err
    assert facts(cluster, *command.split()[1:])["elected"] == ["t-0"]
    assert cluster.leader_of("t") == second


# Kafka's own tool --------------------------------------------------------------------------------


@pytest.mark.long
def test_kafkas_own_tool_carries_our_plan_out(
    cluster: ClusterOfServers, plan_file: Path, tmp_path: Path
) -> None:
    before = contents(cluster, "t", 2)
    folder = tmp_path / "java"
    folder.mkdir()
    (folder / "pom.xml").write_text(POM)
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    words = ("--bootstrap-server", _where(cluster), "--reassignment-json-file", str(plan_file))
    java = {"CLASSPATH": f"{folder}/lib/*"}
    run("java", tool, *words, "--execute", "--throttle", "2000000", env=java)
    rates = status(cluster)["throttles"]["bytes_per_second"]
    assert set(rates.values()) == {2_000_000}
    until(lambda: status(cluster)["moves"] == [], "it is done")
    verified = run("java", tool, *words, "--verify", env=java)
    assert "t-0 is completed" in verified
    check_unchanged(cluster, "t", before)
    check_nothing_left_over(cluster)
