"""What a killed broker left unsynced counts for no more than before, until it is synced."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError
from penstock.storage.log import Appended
from penstock.storage.recovery import Ending
from tests.support.engine import Engine, config_of, running_engine
from tests.unit.storage.logs import FaultyDisk

ME, ANN = 1, 2
FOLLOWING = PartitionImage(ANN, 4, 4, (ME, ANN), (ME, ANN))


def send(engine: Engine, partition: Partition, sequence: int) -> Appended:
    value = b"v%d" % sequence
    return engine.append(partition, value, producer_id=9, producer_epoch=0, base_sequence=sequence)


@contextmanager
def after_a_kill(
    path: Path, disk: FaultyDisk, **settings: Any
) -> Iterator[tuple[Engine, Partition]]:
    """Of two batches only the first was synced."""
    with running_engine(path) as engine:
        partition = engine.partition(**settings)
        send(engine, partition, 0)
        partition.log.flush()
        engine.write_checkpoint()
        send(engine, partition, 1)
    with running_engine(path, disk) as engine:
        assert engine.directory.ending is Ending.PROCESS_CRASH
        partition = engine.partition(**settings)
        disk.calls.clear()
        yield engine, partition


def test_a_duplicate_of_an_unsynced_batch_is_acknowledged_when_it_is_synced(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with after_a_kill(tmp_path, disk, flush_messages=1) as (engine, partition):
        again = send(engine, partition, 1)
        assert (again.base_offset, again.duplicate) == (1, True)
        assert partition.high_watermark == 1
        committed, written = partition.committed(2), partition.written(2)
        assert committed is not None
        assert written is not None
        assert "sync" not in disk.calls
        engine.settle()
        assert committed.done()
        assert written.done()
        assert {"sync", "sync partition-0"} <= set(disk.calls), "its name may be new, too"
        assert partition.log.recovery_point == 2


def test_the_tail_is_synced_without_any_other_append(tmp_path: Path, disk: FaultyDisk) -> None:
    with after_a_kill(tmp_path, disk, flush_messages=1) as (engine, partition):
        engine.run(engine.replicas.recover())
        assert partition.is_open
        engine.settle()
        assert (partition.high_watermark, partition.log.recovery_point) == (2, 2)
        assert "sync" in disk.calls


def test_a_follower_does_not_say_that_it_has_the_tail_before_it_is_synced(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with after_a_kill(tmp_path, disk, flush_messages=1) as (engine, partition):
        partition.follow(FOLLOWING)
        assert (partition.log.next_offset, partition.fetch_offset) == (2, 1)
        engine.settle()
        assert partition.fetch_offset == 2


def test_where_appends_are_not_synced_the_tail_counts_at_once_and_waits_its_turn(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with after_a_kill(tmp_path, disk) as (engine, partition):
        assert partition.log.next_offset == partition.high_watermark == 2
        assert partition in engine.replicas.unsynced
        engine.settle()
        assert "sync" not in disk.calls


def test_a_setting_that_asks_for_syncs_later_finds_what_is_durable(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with after_a_kill(tmp_path, disk) as (engine, partition):
        partition.follow(FOLLOWING)
        assert partition.fetch_offset == 2
        engine.replicas.configure("orders", config_of(flush_messages=1))
        assert partition.fetch_offset == 1
        engine.replicas.sync_soon(partition)  # as housekeeping does
        engine.settle()
        assert partition.fetch_offset == 2


@pytest.mark.parametrize("flush_messages", [1, 1000])
def test_after_a_clean_end_nothing_is_left_to_sync(
    tmp_path: Path, disk: FaultyDisk, flush_messages: int
) -> None:
    with running_engine(tmp_path) as engine:
        send(engine, engine.partition(flush_messages=flush_messages), 0)
        engine.directory.close()
        engine.replicas.stop()
        engine.directory._lock_fd = os.open(tmp_path, os.O_RDONLY)
    with running_engine(tmp_path, disk) as engine:
        assert engine.directory.ending is Ending.CLEAN
        partition = engine.partition(flush_messages=flush_messages)
        disk.calls.clear()
        assert partition.log.next_offset == partition.high_watermark == 1
        assert not partition.unsynced
        engine.settle()
        assert "sync" not in disk.calls


def test_a_replica_that_was_stopped_during_a_sync_is_synced_when_it_goes_on(engine: Engine) -> None:
    partition = engine.partition(flush_messages=1)
    send(engine, partition, 0)
    engine.settle()
    send(engine, partition, 1)
    partition.follow(FOLLOWING)
    engine.tick()
    assert len(engine.threads) == 1, "the sync has begun"
    with pytest.raises(BrokerError, match="an operator must decide"):
        partition.cut(0)
    assert partition.is_stopped
    engine.settle()

    partition.follow(FOLLOWING._replace(leader_epoch=5))
    assert partition.fetch_offset == 1
    engine.settle()
    assert partition.fetch_offset == 2


@pytest.mark.parametrize(("left", "mark"), [(3, 3), (2, 1), (1, 1)])
def test_of_a_log_that_lost_committed_records_only_what_was_synced_counts_as_committed(
    tmp_path: Path, left: int, mark: int
) -> None:
    """A cut may be among what it lost: then it ends with records again that were never committed."""
    with running_engine(tmp_path) as engine:
        partition = engine.partition()
        for sequence in range(3):
            send(engine, partition, sequence)
            if sequence == 0:
                partition.log.flush()
        engine.write_checkpoint()
        size_bytes = partition.log.size_bytes // 3
    os.truncate(tmp_path / "data/orders/partition-0" / f"{0:020d}.log", left * size_bytes)
    with running_engine(tmp_path) as engine:
        partition = engine.partition()
        partition.follow(FOLLOWING)
        assert (partition.log.next_offset, partition.high_watermark) == (left, mark)
