import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.partitions import flusher as flusher_module
from penstock.broker.partitions.partition import Partition
from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.storage import syncs as syncs_module
from tests.support.engine import Engine, config_of, running_engine
from tests.unit.storage.logs import FaultyDisk, descriptors_left, failing, scratch


def syncs(disk: FaultyDisk) -> int:
    """Of segments and small files, not of directories."""
    return disk.calls.count("sync")


def wait_for_all(partition: Partition) -> "asyncio.Future[None]":
    future = partition.committed(partition.log.next_offset)
    assert future is not None
    return future


@pytest.fixture
def partition(engine: Engine) -> Partition:
    """Each append counts once it is synced. Its files are there already."""
    made = engine.partition(flush_messages=1)
    engine.append(made)
    engine.settle()
    assert made.high_watermark == 1
    return made


def test_one_sync_answers_every_append_that_came_before_it_began(
    engine: Engine, partition: Partition, disk: FaultyDisk
) -> None:
    before = syncs(disk)
    waits = []
    for _ in range(10):
        engine.append(partition)
        waits.append(wait_for_all(partition))
    engine.settle()
    assert all(wait.done() for wait in waits)
    assert syncs(disk) == before + 1
    assert partition.high_watermark == partition.log.recovery_point == 11


def test_who_comes_while_a_sync_runs_is_answered_by_the_next_one(
    engine: Engine, partition: Partition
) -> None:
    engine.append(partition)
    early = wait_for_all(partition)
    engine.tick()
    assert len(engine.threads) == 1, "the sync has begun"

    engine.append(partition)
    late = wait_for_all(partition)
    engine.threads.run()
    engine.tick()
    assert (early.done(), late.done()) == (True, False)
    assert partition.high_watermark == 2, "what the sync did not cover is not committed"

    engine.settle()
    assert late.done()


def test_nothing_is_seen_before_it_is_durable(engine: Engine, partition: Partition) -> None:
    engine.append(partition)
    engine.tick()
    assert partition.read(0, 1 << 20, 0).high_watermark == 1
    assert partition.read(1, 1 << 20, 0).slices == []
    engine.settle()
    assert partition.read(1, 1 << 20, 0).size_bytes > 0


def test_the_partitions_of_a_tick_share_a_round(engine: Engine) -> None:
    partitions = engine.topic("many", partitions=5, flush_messages=1)
    for partition in partitions:
        engine.append(partition)
    engine.tick()
    assert len(engine.threads) == 1
    engine.settle()
    assert [partition.high_watermark for partition in partitions] == [1] * 5


def test_a_round_is_bounded_and_the_rest_comes_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "_ROUND_PARTITIONS", 2)
    partitions = engine.topic("many", partitions=5, flush_messages=1)
    for partition in partitions:
        engine.append(partition)
    rounds = 0
    engine.tick()
    while engine.threads.run():
        engine.tick()
        rounds += 1
    assert rounds == 3
    assert [partition.high_watermark for partition in partitions] == [1] * 5


def test_a_failed_sync_is_never_tried_again_and_nothing_is_acknowledged(
    engine: Engine, partition: Partition, disk: FaultyDisk
) -> None:
    engine.append(partition)
    wait = wait_for_all(partition)
    disk.fault = failing("sync", errno.EIO)
    engine.settle()

    error = wait.exception()
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert engine.replicas.is_offline
    assert partition.high_watermark == 1

    disk.fault = lambda _call, _size: None
    tried = syncs(disk)
    engine.replicas.sync_soon(partition)
    engine.settle()
    assert syncs(disk) == tried
    assert partition.high_watermark == 1


def test_a_fault_nobody_foresaw_is_a_fault_of_the_disk(
    engine: Engine, partition: Partition, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(call: str, _size: int) -> int | None:
        if call == "sync":
            raise ZeroDivisionError
        return None

    engine.append(partition)
    wait = wait_for_all(partition)
    disk.fault = broken
    engine.settle()
    assert wait.exception() is not None
    assert engine.replicas.is_offline
    assert "ZeroDivisionError" in caplog.text


def test_a_bug_before_a_sync_leaves_nobody_waiting_for_ever(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError

    engine.append(partition)
    wait = wait_for_all(partition)
    monkeypatch.setattr(type(partition.log), "flush_begin", broken)
    engine.settle()
    assert wait.done()
    assert wait.exception() is not None
    assert engine.replicas.is_offline


def test_a_flush_that_cannot_begin_is_put_off_and_the_others_go_on(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = engine.partition("other", flush_messages=1)
    engine.append(partition)
    engine.append(other)
    wait, others = wait_for_all(partition), wait_for_all(other)
    with monkeypatch.context() as patch:
        log = type(partition.log)
        begin = log.flush_begin

        def no_room(self: object) -> object:
            if self is partition.log:
                raise BrokerError("no room for an index", ErrorCode.KAFKA_STORAGE_ERROR)
            return begin(self)  # type: ignore[arg-type] # a log

        patch.setattr(log, "flush_begin", no_room)
        engine.settle()
    assert (wait.done(), others.done()) == (False, True)
    assert partition in engine.replicas.unsynced, "housekeeping will ask again"
    assert not engine.replicas.is_offline

    engine.replicas.sync_soon(partition)
    engine.settle()
    assert wait.done()


def test_a_flush_without_room_for_indexes_answers_and_the_rest_is_tried_again(
    engine: Engine, partition: Partition, disk: FaultyDisk
) -> None:
    engine.append(partition)
    wait = wait_for_all(partition)
    disk.fault = failing("write", errno.ENOSPC)
    partition.log.roll()
    engine.settle()
    assert wait.done()
    assert (partition.high_watermark, partition.log.recovery_point) == (2, 1)
    assert partition in engine.replicas.unsynced, "housekeeping will ask again"

    disk.fault = lambda _call, _size: None
    engine.replicas.sync_soon(partition)
    engine.settle()
    assert partition.log.recovery_point == 2


def test_a_flush_that_cannot_begin_for_the_disk_takes_the_directory_offline(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise StorageFault("segment: cannot be opened")

    engine.append(partition)
    wait = wait_for_all(partition)
    monkeypatch.setattr(type(partition.log), "flush_begin", broken)
    engine.settle()
    assert isinstance(wait.exception(), BrokerError)
    assert engine.replicas.is_offline


@pytest.mark.parametrize("deleted_after", ["asked", "begun", "synced"])
def test_a_topic_may_be_deleted_at_any_moment_of_its_sync(
    tmp_path: Path, deleted_after: str
) -> None:
    with running_engine(tmp_path) as engine:  # a disk that looks for the directories it syncs
        other = engine.partition("other", flush_messages=1)
        gone = engine.partition("gone", flush_messages=1)
        engine.append(gone)
        engine.append(other)
        wait, others = wait_for_all(gone), wait_for_all(other)
        if deleted_after != "asked":
            engine.tick()
            assert len(engine.threads) == 1
        if deleted_after == "synced":
            engine.threads.run()
        engine.replicas.remove_topic("gone")
        engine.settle()

        error = wait.exception()
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not engine.replicas.is_offline
        assert others.result() is None
        assert other.high_watermark == 1


def test_a_directory_that_vanished_under_a_log_in_use_is_a_fault(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        partition = engine.partition(flush_messages=1)
        engine.append(partition)
        wait = wait_for_all(partition)
        engine.tick()
        os.rename(tmp_path / "data" / "orders", tmp_path / "elsewhere")
        engine.settle()
        assert isinstance(wait.exception(), BrokerError)
        assert engine.replicas.is_offline


def test_appends_that_wait_are_committed_also_when_the_setting_changes_meanwhile(
    engine: Engine, partition: Partition
) -> None:
    engine.append(partition)
    wait = wait_for_all(partition)
    engine.tick()
    engine.replicas.configure("orders", engine.topic("plain")[0].topic.config)
    engine.settle()
    assert wait.done()
    assert partition.high_watermark == 2


def test_after_the_stop_no_round_begins_and_the_last_one_changes_nothing(
    engine: Engine, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    engine.append(partition)
    engine.tick()
    engine.append(partition)
    engine.replicas.stop()
    engine.threads.run()
    engine.tick()
    with pytest.raises(BrokerError, match="is closed"):
        engine.append(partition)
    engine.replicas.sync_soon(partition)
    engine.tick()
    assert len(engine.threads) == 0
    assert partition.high_watermark == 1
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_a_sync_without_descriptors_is_put_off_and_the_disk_stays_online(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = engine.topic("many", partitions=3, flush_messages=1)
    for partition in partitions:
        engine.append(partition)
    engine.tick()
    with descriptors_left(0):
        engine.threads.run()
        engine.tick()
    assert not engine.replicas.is_offline
    assert [p.high_watermark for p in partitions] == [0, 0, 0], "nothing counts that was not synced"
    assert [p.log.recovery_point for p in partitions] == [0, 0, 0]
    assert set(engine.replicas.unsynced) == set(partitions), "they are tried again"
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1, "one line for a round"
    assert "partitions=3" in warnings[0]

    for partition in partitions:
        engine.replicas.sync_soon(partition)
    engine.settle()
    assert [p.high_watermark for p in partitions] == [1, 1, 1]


def test_a_sync_that_failed_takes_the_disk_offline_also_beside_one_that_was_put_off(
    engine: Engine, disk: FaultyDisk
) -> None:
    first, second = engine.topic("many", partitions=2, flush_messages=1)
    engine.append(first)
    engine.append(second)
    disk.fault = failing("sync", errno.EIO, after=1)
    engine.tick()
    with descriptors_left(0):
        engine.threads.run()
        engine.tick()
    assert engine.replicas.is_offline


def test_a_round_that_no_thread_begins_is_seen_as_a_sync_that_hangs(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    syncs = engine.replicas.directory.syncs
    assert syncs.hung(30) is None
    engine.append(partition)
    engine.tick()
    for _ in range(6):
        now_s += 5
        assert syncs.hung(30) is None
    now_s += 1
    assert "a flush of 1 logs, which waits for a thread" in (syncs.hung(30) or "")
    engine.settle()
    assert syncs.hung(30) is None


def test_each_sync_is_measured(engine: Engine, partition: Partition) -> None:
    measured = engine.metrics.flush_ms.count
    engine.append(partition)
    engine.settle()
    assert engine.metrics.flush_ms.count == measured + 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["tick", "threads"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_a_wait_ends_only_when_a_sync_that_began_after_its_append_has_ended(
    steps: list[tuple[str, int]],
) -> None:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as engine:
        partitions = engine.topic("orders", partitions=2, flush_messages=1)
        waits: list[tuple[Partition, int, asyncio.Future[None]]] = []
        for kind, index in steps:
            match kind:
                case "append":
                    appended = engine.append(partitions[index])
                    future = wait_for_all(partitions[index])
                    waits.append((partitions[index], appended.last_offset + 1, future))
                case "tick":
                    engine.tick(1)
                case _:
                    engine.threads.run()
            for partition, next_offset, future in waits:
                if future.done():
                    assert next_offset <= partition.log.recovery_point
                    assert next_offset <= partition.high_watermark
        engine.settle()
        assert all(future.done() for _, _, future in waits)


ME, ANN = 1, 2


def following(epoch: int, isr: tuple[int, ...] = (ME, ANN)) -> PartitionImage:
    return PartitionImage(ANN, epoch, epoch, (ME, ANN), isr)


def test_a_sync_of_a_log_that_was_set_aside_says_nothing_of_the_one_in_its_place(
    tmp_path: Path,
) -> None:
    with running_engine(tmp_path) as engine:  # a disk that looks for the directories it syncs
        partition = engine.partition(flush_messages=1)
        for _ in range(10):
            engine.append(partition)
        partition.follow(following(4))
        engine.tick()
        assert len(engine.threads) == 1, "the sync has begun"

        partition.fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
        partition.follow(following(5, isr=(ANN,)))
        engine.replicas.start_over(partition)
        assert partition.log.next_offset == 0
        engine.settle()
        assert (partition.log.recovery_point, partition.fetch_offset) == (0, 0)
        assert not engine.replicas.is_offline


@pytest.mark.parametrize("flush_messages", [1, 1000])
def test_a_sync_that_ends_after_a_cut_does_not_count_and_another_one_does(
    engine: Engine, flush_messages: int
) -> None:
    partition = engine.partition(flush_messages=flush_messages)
    for _ in range(10):
        engine.append(partition)
    engine.replicas.sync_soon(partition)
    engine.tick()
    assert len(engine.threads) == 1, "the sync has begun"

    partition.follow(following(5))
    partition.high_watermark = 0  # as of a follower that has not heard of more
    partition.cut(4)
    engine.threads.run()
    engine.tick()
    engine.replicas.configure("orders", config_of(flush_messages=1))
    assert partition.fetch_offset == partition.log.recovery_point == 0
    engine.settle()
    assert partition.fetch_offset == partition.log.recovery_point == 4
