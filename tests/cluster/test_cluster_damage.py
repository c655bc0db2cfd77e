"""One replica's files rot, tear or vanish: it never leads, it is built again from another, and nothing is lost."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.storage import checkpoints, identity
from tests.support.checker import History
from tests.support.cluster import ClusterOfServers
from tests.support.cluster_disks import (
    LeaderWatch,
    closed_segment,
    flip_length,
    flip_value,
    isr_expansions,
)
from tests.support.raw_client import RawClient
from tests.support.recorders import read_logs
from tests.support.requests import fetch
from tests.support.server import PATIENCE_S, Server, rd, until
from tests.support.variants import first_of
from tests.support.workload import TOPIC, Workload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SEGMENT_BYTES = 60_000
PADDING_BYTES = 500
BULK_BYTES = 2000
VICTIM = 1
CALM = {"broker.session.timeout.ms": 20_000}  # busy machines elect for nothing
SETTINGS = {
    "log.flush.interval.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "penstock.scrub.bytes.per.second": 1 << 28,
    "broker.session.timeout.ms": 6000,  # busy machines elect for nothing
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path, 3, SETTINGS) as started:
        started.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES)
        yield started


def loaded(cluster: ClusterOfServers, rng: Random) -> Workload:
    return Workload(cluster, rng, partitions=1, padding_bytes=PADDING_BYTES)


def follower_of(cluster: ClusterOfServers) -> int:
    leader = cluster.leader_of(TOPIC)
    return next(number for number in cluster.partition(TOPIC).replicas if number != leader)


def end_of_closed(server: Server) -> int:
    """The offset at which what `closed_segment` gives ends: a slow machine has segments that nobody has read yet."""
    return int(server.segments(TOPIC)[2].stem)


def was_rebuilt(server: Server) -> bool:
    return bool(server.events("replica-rebuilt-from-leader"))


def set_aside(server: Server) -> list[Path]:
    """The segments of the damaged log, which are kept for the operator."""
    mine = server.partition_dir(TOPIC)
    return list(mine.parent.parent.glob(f"~~*~{mine.name}~*-stray/*.log"))


def check_failed_and_rebuilt(
    cluster: ClusterOfServers, victim: int, watch: LeaderWatch, epoch: int
) -> None:
    """It did not lead from the moment of the damage to the end of the repair."""
    server = cluster.servers[victim]
    until(lambda: was_rebuilt(server), "it is built anew")
    leaders = watch.leaders(after_epoch=epoch)
    assert victim not in leaders, f"it led while damaged: {watch.seen}"
    cluster.wait_healthy()
    assert server.events("partition-failed")
    assert server.metric("penstock_replicas_rebuilt_total") == 1
    assert set_aside(server), "the damaged log is kept"


# Bits --------------------------------------------------------------------------------------------


def test_a_bit_flipped_in_the_leaders_closed_segment_moves_the_lead_and_is_mended(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with loaded(cluster, rng) as work, LeaderWatch(cluster, TOPIC) as watch:
        victim = cluster.leader_of(TOPIC)
        epoch = cluster.partition(TOPIC).leader_epoch
        file = closed_segment(cluster, victim, TOPIC)
        work.await_reader(end_of_closed(cluster.servers[victim]))
        flip_value(file)
        until(lambda: cluster.partition(TOPIC).leader_epoch > epoch, "another leads")
        assert cluster.servers[victim].events("segment-damaged"), "it was the scrub that found it"
        check_failed_and_rebuilt(cluster, victim, watch, epoch)
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_a_bit_flipped_in_a_followers_closed_segment_is_mended_under_the_same_leader(
    cluster: ClusterOfServers, rng: Random
) -> None:
    with loaded(cluster, rng) as work, LeaderWatch(cluster, TOPIC) as watch:
        leader, victim = cluster.leader_of(TOPIC), follower_of(cluster)
        epoch = cluster.partition(TOPIC).leader_epoch
        expansions = isr_expansions(cluster)
        flip_value(closed_segment(cluster, victim, TOPIC))
        check_failed_and_rebuilt(cluster, victim, watch, epoch)
        until(lambda: watch.leaders(after_epoch=epoch), "it leads in another epoch")
        assert set(watch.leaders(after_epoch=epoch)) == {leader}, "nobody else had to lead"
        until(lambda: isr_expansions(cluster) > expansions, "it was out of sync meanwhile")
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_damage_that_a_read_runs_into_moves_the_lead_and_is_mended(
    tmp_path: Path, rng: Random
) -> None:
    """Without the scrub: whoever asks for what cannot be found is refused, and finds it elsewhere."""
    settings = SETTINGS | {"penstock.scrub.bytes.per.second": 0}
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES)
        with loaded(cluster, rng) as work, LeaderWatch(cluster, TOPIC) as watch:
            victim = cluster.leader_of(TOPIC)
            epoch = cluster.partition(TOPIC).leader_epoch
            file = closed_segment(cluster, victim, TOPIC)
            end = end_of_closed(cluster.servers[victim])
            work.await_reader(end)
            flip_length(file)
            codes = []
            for offset in range(int(file.stem), end):
                codes.append(code_of_reading(cluster, victim, offset))
                if codes[-1]:
                    break
            assert ErrorCode.KAFKA_STORAGE_ERROR in codes
            check_failed_and_rebuilt(cluster, victim, watch, epoch)
            until(lambda: watch.leaders(after_epoch=epoch), "another led")
            work.await_progress()
            work.finish()
            assert not work.load.errors


def code_of_reading(cluster: ClusterOfServers, number: int, offset: int) -> int:
    with RawClient(cluster.servers[number].bootstrap) as client:
        return fetch(client, TOPIC, offset).error_code


def test_a_damaged_replica_is_mended_while_another_hangs(
    cluster: ClusterOfServers, rng: Random
) -> None:
    """Two faults: for a while one broker alone has everything."""
    with loaded(cluster, rng) as work, LeaderWatch(cluster, TOPIC) as watch:
        hung = cluster.leader_of(TOPIC)
        victim = follower_of(cluster)
        epoch = cluster.partition(TOPIC).leader_epoch
        file = closed_segment(cluster, victim, TOPIC)
        work.await_reader(end_of_closed(cluster.servers[victim]))
        cluster.pause(hung)
        flip_value(file)
        until(lambda: was_rebuilt(cluster.servers[victim]), "it is built anew")
        work.await_progress()  # two are enough
        cluster.resume(hung)
        cluster.wait_healthy()
        until(lambda: watch.leaders(after_epoch=epoch), "another led instead of the one that hung")
        work.await_progress()
        work.finish()
        assert not work.load.errors


# Files -------------------------------------------------------------------------------------------


def segments(log: Path) -> list[Path]:
    found = sorted(log.glob("*.log"))
    assert len(found) > 3, "there is a first, a last and something between them"
    return found


def remove_the_log(log: Path) -> None:
    shutil.rmtree(log)


def remove_a_segment(log: Path) -> None:
    segments(log)[1].unlink()


def remove_the_last_segments(log: Path) -> None:
    for file in segments(log)[2:]:
        file.unlink()


def cut_a_closed_segment(log: Path) -> None:
    file = segments(log)[1]
    with open(file, "r+b") as cut:
        cut.truncate(file.stat().st_size // 2)


def tear_the_last_segments(log: Path) -> None:
    """All that is left of the last ones is the beginning of a batch."""
    _, _, torn, *last = segments(log)
    for file in last:
        file.unlink()
    with open(torn, "r+b") as cut:
        cut.truncate(30)


def scribble_over_notes(log: Path) -> None:
    for name in ("leader-epochs", "producers.snapshot"):
        for file in log.glob(name):
            file.write_bytes(b"\x07" * 40)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "no-log": remove_the_log,
    "no-segment": remove_a_segment,
    "no-last-segments": remove_the_last_segments,
    "cut-segment": cut_a_closed_segment,
    "torn-end": tear_the_last_segments,
    "bad-notes": scribble_over_notes,
}
HARMLESS = {"bad-notes"}
DAMAGED = {f"{TOPIC}-{index}" for index, name in enumerate(DAMAGES) if name not in HARMLESS}


def noted_marks(server: Server) -> dict[int, int]:
    """High watermarks of the topic's partitions, as they are on its disk."""
    found = checkpoints.read(str(server.data_dir), checkpoints.HIGH_WATERMARKS).offsets
    whose = identity.read(str(server.partition_dir(TOPIC)))
    return {} if whose is None else found.get(whose.topic_id, {})


def are_noted(server: Server, offsets: Iterable[int]) -> bool:
    """Of partitions 0, 1 and so on."""
    marks = noted_marks(server)
    return all(marks.get(index, 0) >= offset for index, offset in enumerate(offsets))


def bytes_below(file: Path, offset: int) -> int:
    """What the batches take that end there or before."""
    headers = (header for _, header in iter_headers(memoryview(file.read_bytes())))
    return sum(header.size_bytes for header in headers if header.next_offset <= offset)


def create_led_by(cluster: ClusterOfServers, leader: int, partitions: int, **config: str) -> None:
    """Each partition of the topic by that broker."""
    order = [leader, *(number for number in cluster.servers if number != leader)]
    topic = rd.NewTopic(TOPIC, partitions, replica_assignment=[order] * partitions, config=config)
    cluster.admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
    for index in range(partitions):
        cluster.wait_isr(TOPIC, index)


@pytest.fixture
def damaged_each(tmp_path: Path) -> Iterator[ClusterOfServers]:
    """A partition for each kind of damage. Who leads is not changed for the sake of balance."""
    settings = SETTINGS | {"auto.leader.rebalance.enable": "false"}
    with ClusterOfServers(tmp_path, 3, settings) as started:
        config = {"segment.bytes": str(SEGMENT_BYTES)}
        create_led_by(started, VICTIM, len(DAMAGES), **config)
        yield started


def damage_each(cluster: ClusterOfServers) -> None:
    for index, damage in enumerate(DAMAGES.values()):
        damage(cluster.servers[VICTIM].partition_dir(TOPIC, index))


def rebuilt_partitions(server: Server) -> set[str]:
    lines = server.events("replica-rebuilt-from-leader")
    return {line.rsplit("partition=", 1)[1] for line in lines}


def loaded_each(cluster: ClusterOfServers, rng: Random) -> Workload:
    return Workload(cluster, rng, partitions=len(DAMAGES), per_second=400, padding_bytes=BULK_BYTES)


def await_segments(cluster: ClusterOfServers) -> None:
    """So many that each can be damaged, and that all which will be missing is noted as committed."""
    server = cluster.servers[VICTIM]
    for index in range(len(DAMAGES)):
        closed_segment(cluster, VICTIM, TOPIC, index)
    ends = [int(server.segments(TOPIC, index)[3].stem) for index in range(len(DAMAGES))]
    until(lambda: are_noted(server, ends), "it is noted")


@pytest.mark.parametrize("ending", first_of(["killed", "stopped"]))
def test_what_one_broker_lost_between_two_runs_it_gets_from_the_others(
    damaged_each: ClusterOfServers, rng: Random, ending: str
) -> None:
    cluster, server = damaged_each, damaged_each.servers[VICTIM]
    with loaded_each(cluster, rng) as work:
        await_segments(cluster)
        if ending == "stopped":
            cluster.stop(VICTIM)
        else:
            cluster.kill(VICTIM)
        damage_each(cluster)
        cluster.start(VICTIM)
        until(lambda: rebuilt_partitions(server) >= DAMAGED, "all that is damaged is built anew")
        cluster.wait_healthy()
        assert "Traceback" not in server.log
        work.await_progress()
        work.finish()
        assert not work.load.errors


def test_files_that_went_after_a_clean_stop_are_missed_at_the_start_without_any_scrub(
    tmp_path: Path, rng: Random
) -> None:
    settings = SETTINGS | {"penstock.scrub.bytes.per.second": 0}
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        create_led_by(cluster, VICTIM, len(DAMAGES), **{"segment.bytes": str(SEGMENT_BYTES)})
        server = cluster.servers[VICTIM]
        with loaded_each(cluster, rng) as work:
            await_segments(cluster)
            cluster.stop(VICTIM)
            damage_each(cluster)
            cluster.start(VICTIM)
            failed = {
                line.split("partition=")[1].split()[0] for line in server.events("partition-failed")
            }
            assert failed == DAMAGED, "known before it takes part"
            until(
                lambda: rebuilt_partitions(server) >= DAMAGED, "all that is damaged is built anew"
            )
            cluster.wait_healthy()
            work.await_progress()
            work.finish()
            assert not work.load.errors


def test_a_leader_that_lost_files_while_all_were_down_does_not_lead_again(
    damaged_each: ClusterOfServers, rng: Random
) -> None:
    """All were killed at once, so that each is as much in sync as the others, as far as they know."""
    cluster, server = damaged_each, damaged_each.servers[VICTIM]
    with loaded_each(cluster, rng) as work:
        await_segments(cluster)
        cluster.kill_all()
        damage_each(cluster)
        cluster.start_all()
        work.await_progress()
        until(lambda: rebuilt_partitions(server) >= DAMAGED, "all that is damaged is built anew")
        for index, name in enumerate(DAMAGES):
            assert name in HARMLESS or cluster.partition(TOPIC, index).leader != VICTIM
        cluster.wait_healthy()
        work.finish()
        assert not work.load.errors


def test_a_leader_that_lost_the_end_of_its_log_while_all_were_down_does_not_cut_the_others(
    tmp_path: Path, rng: Random
) -> None:
    """Nothing of it was synced, so only the high watermark tells that more was there (L3, E3)."""
    settings = CALM | {"log.flush.offset.checkpoint.interval.ms": 100}
    kept = (0, 0.5, 0.9)
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        create_led_by(cluster, VICTIM, len(kept))
        server = cluster.servers[VICTIM]
        with Workload(cluster, rng, padding_bytes=PADDING_BYTES) as work:
            work.load.await_more(600)
            acked = work.load.acked // len(kept)
            until(lambda: are_noted(server, [acked] * len(kept)), "it is noted")
            cluster.kill_all()
            marks = noted_marks(server)  # more may have been written since
            for index, part in enumerate(kept):
                (file,) = server.segments(TOPIC, index)
                with open(file, "r+b") as cut:
                    cut.truncate(int(bytes_below(file, marks[index]) * part))
            cluster.start_all()
            until(lambda: len(rebuilt_partitions(server)) == len(kept), "they are built anew")
            cluster.wait_healthy()
            work.await_progress()
            work.finish()
            assert not any(cluster.events("committed-records-cut").values())
            assert not work.load.errors


def test_a_bit_flipped_above_all_marks_while_all_were_down_does_not_cut_the_others(
    tmp_path: Path, rng: Random
) -> None:
    """Nothing was synced, no high watermark was noted: but no crash of a process flips a bit (L3, E3)."""
    never_ms = 3_600_000
    settings = CALM | {
        "log.flush.offset.checkpoint.interval.ms": never_ms,
        "log.flush.start.offset.checkpoint.interval.ms": never_ms,
        "replica.high.watermark.checkpoint.interval.ms": never_ms,
    }
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        create_led_by(cluster, VICTIM, 1)
        server = cluster.servers[VICTIM]
        with loaded(cluster, rng) as work:
            work.load.await_more(300)
            cluster.kill_all()
            (file,) = server.segments(TOPIC)
            flip_value(file)
            cluster.start_all()
            until(lambda: was_rebuilt(server), "it is built anew")
            cluster.wait_healthy()
            work.await_progress()
            work.finish()
            assert not any(cluster.events("committed-records-cut").values())
            assert not work.load.errors


def test_followers_stop_rather_than_follow_a_leader_that_lost_what_was_committed_and_does_not_know(
    tmp_path: Path,
) -> None:
    """F3: its log is shorter, and nothing on its disk says that it was longer. The operator has the others lead."""
    settings = CALM | {"log.flush.offset.checkpoint.interval.ms": 100}
    others = (2, 3)
    with ClusterOfServers(tmp_path, 3, settings) as cluster:
        create_led_by(cluster, VICTIM, 1)
        sent = [b"%d" % number for number in range(300)]
        produce(cluster, sent)
        for number in others:
            server = cluster.servers[number]
            until(partial(are_noted, server, [300]), "it is noted")
        cluster.kill_all()
        lose_the_end(cluster.servers[VICTIM])
        cluster.start_all()
        until(
            lambda: all(cluster.servers[it].events("replica-stopped") for it in others), "they stop"
        )
        until(lambda: cluster.partition(TOPIC).isr == {VICTIM}, "they are out of sync")
        for number in others:
            assert cluster.servers[number].metric("penstock_replicas_stopped_total") == 1
        cluster.stop(VICTIM)
        until(lambda: cluster.partition(TOPIC).leader == -1, "nobody leads")
        assert cluster.controller() != VICTIM
        cluster.admin.list_topics(timeout=PATIENCE_S)  # librdkafka looks for no other by itself
        place = confluent_kafka.TopicPartition(TOPIC, 0)
        cluster.admin.elect_leaders(confluent_kafka.ElectionType.UNCLEAN, [place]).result(
            PATIENCE_S
        )
        cluster.start(VICTIM)
        cluster.wait_healthy()
        history = History()
        read_logs(history, cluster.bootstrap, [(TOPIC, 0)])
        assert [value for _, value in history.logs[TOPIC, 0]] == sent
        cluster.check_replicas_agree(TOPIC, 0)
        assert not any(cluster.events("replica-rebuilt-from-leader").values())


def produce(cluster: ClusterOfServers, values: list[bytes]) -> None:
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0}
    )
    for value in values:
        producer.produce(TOPIC, value, partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def lose_the_end(server: Server) -> None:
    """Half of the log, and all notes of how far it was committed."""
    (file,) = server.segments(TOPIC)
    with open(file, "r+b") as cut:
        cut.truncate(file.stat().st_size // 2)
    (server.data_dir / checkpoints.HIGH_WATERMARKS).unlink()
