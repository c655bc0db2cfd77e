"""A damaged replica: out of sync first, by the controller's word, and then built anew from the leader."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.maintenance import repair
from penstock.broker.partitions.partition import Partition
from penstock.model.errors import BrokerError, DiskFull, StorageFault
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.segment import DamagedLog
from penstock.wire.messages.alter_partition import AlterPartitionRequest
from penstock.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.support.several import Held, Several, several_brokers

TOPIC = "t"
SINGLE = "single"
DAMAGE = DamagedLog("a file: damaged at byte 7")


@pytest.fixture(scope="module")
def _brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "_LOOK_S", 0.005)
        with several_brokers(tmp_path_factory.mktemp("several")) as started:
            yield started


@pytest.fixture
def brokers(_brokers: Several) -> Iterator[Several]:
    """With a topic of three replicas, which broker 1 leads, and some records in it; one of broker 2 alone."""
    _brokers.create_topic(TOPIC, [[1, 2, 3]])
    _brokers.create_topic(SINGLE, [[2]])
    append(_brokers, 3)
    _brokers.until(lambda: {end_at(_brokers, number) for number in (2, 3)} == {3})
    _brokers.until(lambda: set(state(_brokers).isr) == {1, 2, 3})
    yield _brokers
    for topic in (TOPIC, SINGLE):
        delete(_brokers, topic)


def delete(brokers: Several, topic: str) -> None:
    """Returns when no broker has it any more."""
    brokers.delete_topic(topic)
    nodes = brokers.nodes.values()
    brokers.until(lambda: not any(topic in it.services.replicas.topics for it in nodes))


def append(brokers: Several, count: int, topic: str = TOPIC) -> None:
    partition = brokers.partition(topic)
    records = [Record(number, 0, None, b"value", ()) for number in range(count)]
    batch = memoryview(bytearray(build_batch(records)))
    brokers.call(lambda: partition.append(batch, now_ms=0))


def state(brokers: Several, topic: str = TOPIC) -> Any:
    """As every broker sees it; the newest."""
    found = [
        node.services.cluster.image.topics[topic].partitions[0] for node in brokers.nodes.values()
    ]
    return max(found, key=lambda it: it.partition_epoch)


def end_at(brokers: Several, number: int) -> int:
    partition = brokers.partition(TOPIC, at=number)
    return -1 if partition.failure is not None else partition.log.next_offset


def repairs(brokers: Several, number: int) -> Any:
    return brokers.nodes[number]._repair


def damage(brokers: Several, number: int, topic: str = TOPIC) -> Partition:
    partition = brokers.partition(topic, at=number)
    brokers.call(lambda: partition.storage_failed(DAMAGE))
    return partition


def rebuilt(brokers: Several, number: int) -> float:
    return brokers.services(number).replicas.metrics.replication.rebuilt.value


def test_a_damaged_leader_gives_way_and_gets_everything_from_the_next(brokers: Several) -> None:
    count = rebuilt(brokers, 1)
    damaged = damage(brokers, 1)
    brokers.until(lambda: damaged.failure is None)
    assert brokers.leader(TOPIC) == 2
    brokers.until(lambda: end_at(brokers, 1) == 3)
    brokers.until(lambda: set(state(brokers).isr) == {1, 2, 3})
    assert brokers.leader(TOPIC) == 2
    assert rebuilt(brokers, 1) == count + 1
    assert repairs(brokers, 1).waiting_count == 0


def test_a_damaged_follower_is_built_anew_under_the_same_leader(brokers: Several) -> None:
    epoch = state(brokers).leader_epoch
    damaged = damage(brokers, 3)
    brokers.until(lambda: damaged.failure is None)
    brokers.until(lambda: end_at(brokers, 3) == 3)
    brokers.until(lambda: set(state(brokers).isr) == {1, 2, 3})
    assert (brokers.leader(TOPIC), state(brokers).leader_epoch) == (1, epoch + 1)


def test_a_replica_whose_leader_lacks_what_is_committed_is_kept_and_out_of_sync(
    brokers: Several,
) -> None:
    """Until there is another leader; here it is the same one, in its right mind again."""
    count, kept = rebuilt(brokers, 3), brokers.partition(TOPIC, at=3)
    brokers.until(lambda: kept.high_watermark == 3)

    def diverge() -> None:
        with pytest.raises(BrokerError):
            kept.cut(1)

    brokers.call(diverge)
    brokers.until(lambda: set(state(brokers).isr) == {1, 2})
    brokers.run(asyncio.sleep(0.05))
    assert (kept.failure is not None, rebuilt(brokers, 3)) == (True, count)
    brokers.move_leader(TOPIC, 0, 2)
    brokers.until(lambda: set(state(brokers).isr) == {1, 2, 3})
    assert end_at(brokers, 3) == 3
    assert rebuilt(brokers, 3) == count
    brokers.until(lambda: repairs(brokers, 3).waiting_count == 0)


def test_nothing_is_thrown_away_before_the_controller_has_decided(brokers: Several) -> None:
    number = next(it for it in (2, 3) if not brokers.services(it).cluster.is_controller)
    held = Held()
    with brokers.gate(number, AssignReplicasToDirsRequest, held):
        damaged = damage(brokers, number)
        brokers.run(held.arrived.wait())
        assert damaged.failure is not None
        assert number in state(brokers).isr
        brokers.call(held.may_pass.set)
        brokers.until(lambda: damaged.failure is None)
    brokers.until(lambda: end_at(brokers, number) == 3)


def test_a_return_that_the_metadata_told_of_before_it_was_answered_is_counted(
    brokers: Several,
) -> None:
    topic = "elsewhere"  # led by one whose questions go over the network
    leader = next(it for it in (2, 3) if not brokers.services(it).cluster.is_controller)
    brokers.create_topic(topic, [[leader, *({1, 2, 3} - {leader})]])
    brokers.until(lambda: len(state(brokers, topic).isr) == 3)
    expands = brokers.services(leader).replicas.metrics.replication.isr_expands
    before = expands.value
    held = Held(answers=True)
    with brokers.gate(leader, AlterPartitionRequest, held):
        damage(brokers, 1, topic)
        brokers.run(held.arrived.wait())
        brokers.until(lambda: len(brokers.partition(topic, at=leader).isr) == 3)
        assert expands.value == before
        brokers.call(held.may_pass.set)
        brokers.until(lambda: expands.value == before + 1)
    delete(brokers, topic)


def test_a_single_replica_is_left_as_it_is(brokers: Several) -> None:
    append(brokers, 2, SINGLE)
    damaged = damage(brokers, 2, SINGLE)
    for _ in range(20):
        brokers.run(asyncio.sleep(0.001))
    assert damaged.failure is not None
    assert state(brokers, SINGLE).leader == 2
    assert repairs(brokers, 2).waiting_count == 1
    path = brokers.services(2).replicas.directory.partition_path(SINGLE, 0)
    assert Path(path).exists()


def test_one_that_is_deleted_meanwhile_is_forgotten(brokers: Several) -> None:
    damage(brokers, 2, SINGLE)
    assert repairs(brokers, 2).waiting_count == 1
    delete(brokers, SINGLE)
    brokers.until(lambda: repairs(brokers, 2).waiting_count == 0)
    brokers.create_topic(SINGLE, [[2]])


def test_what_cannot_be_set_aside_for_want_of_room_is_tried_again_and_told_of_once(
    brokers: Several, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    directory = brokers.services(3).replicas.directory
    give_up = directory.give_up

    def no_room(*place: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise DiskFull("no room for a name")
        give_up(*place)

    monkeypatch.setattr(directory, "give_up", no_room)
    damaged = damage(brokers, 3)
    brokers.until(lambda: damaged.failure is None)
    brokers.until(lambda: end_at(brokers, 3) == 3)
    assert tries == 4
    told = [line for line in caplog.messages if line.startswith("replica-not-rebuilt")]
    assert told == ["replica-not-rebuilt partition=t-0 error=no room for a name"]


def test_a_log_that_lacks_what_was_committed_is_damaged_where_others_have_it(
    brokers: Several,
) -> None:
    short = brokers.partition(TOPIC, at=3)
    brokers.call(lambda: repairs(brokers, 3).fell_short(short, 9))
    assert "ends at offset 3; up to 9 was committed" in str(short.failure)
    brokers.until(lambda: short.failure is None)
    brokers.until(lambda: end_at(brokers, 3) == 3)


def test_a_single_replica_that_lacks_what_was_committed_serves_the_rest(brokers: Several) -> None:
    append(brokers, 2, SINGLE)
    short = brokers.partition(SINGLE)
    brokers.call(lambda: repairs(brokers, 2).fell_short(short, 9))
    assert short.failure is None


def test_a_disk_that_fails_under_the_repair_is_offline_and_nothing_more_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "_LOOK_S", 0.005)
    with several_brokers(tmp_path) as brokers:
        brokers.create_topic(TOPIC, [[1, 2, 3]])
        tries = 0

        def fails(*_: Any) -> None:
            nonlocal tries
            tries += 1
            raise StorageFault("cannot be set aside: Input/output error")

        replicas = brokers.services(3).replicas
        monkeypatch.setattr(replicas.directory, "give_up", fails)
        damage(brokers, 3)
        brokers.until(lambda: replicas.is_offline)
        for _ in range(20):
            brokers.run(asyncio.sleep(0.001))
        assert tries == 1
