"""Records are deleted by offset, and leaders send whole batches: a replica of what is left begins inside of one."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.metadata.image import PartitionImage
from penstock.model.errors import CorruptBatch, DiskFull, OffsetOutOfRange
from penstock.storage.recovery import Ending
from tests.support.engine import Engine, running_engine
from tests.unit.broker.partitions.test_replication import Keeper
from tests.unit.storage.logs import FaultyDisk, failing

ME, ANN = 1, 2
FOLLOWING = PartitionImage(ANN, 4, 1, (ANN, ME), (ANN,))
ALL = 1 << 30
START = 5  # of the leader's log, which has the batches 0..9 and 10..19


@pytest.fixture
def records(tmp_path: Path) -> Iterator[bytearray]:
    """What the leader answers with from there."""
    with running_engine(tmp_path / "leader") as engine:
        leader = engine.partition()
        for _ in range(2):
            engine.append(leader, *[b"x" * 60] * 10)
        leader.delete_records_before(START)
        yield bytearray(b"".join(it.read() for it in leader.read_all(START, ALL).slices))


def following(engine: Engine) -> Partition:
    """It has heard where its leader's log begins."""
    engine.replicas.replication = Keeper()
    partition = engine.partition(flush_messages=1, segment_bytes=1024)
    partition.follow(FOLLOWING)
    partition.restart_at(START)
    return partition


def bounds(partition: Partition) -> tuple[int, int, int]:
    log = partition.log
    return log.start_offset, partition.high_watermark, log.next_offset


def test_it_takes_the_batch_whole_and_starts_where_the_leader_does(
    engine: Engine, records: bytearray
) -> None:
    follower = following(engine)
    follower.append_replicated(memoryview(records))
    assert bounds(follower) == (START, START, 20)
    assert follower.log.epochs.entries() == [(3, START)], "as at the leader"
    engine.settle()
    assert follower.fetch_offset == 20
    follower.learn(20, START)
    assert b"".join(it.read() for it in follower.read(START, ALL, 0).slices) == records
    with pytest.raises(OffsetOutOfRange):
        follower.read(START - 1, ALL, 0)


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_crash_changes_none_of_that(tmp_path: Path, records: bytearray, is_synced: bool) -> None:
    with running_engine(tmp_path) as engine:
        follower = following(engine)
        follower.log.flush()
        engine.write_checkpoint()
        follower.append_replicated(memoryview(records))
        if is_synced:
            follower.log.flush()
    with running_engine(tmp_path) as engine:
        assert engine.directory.ending is Ending.PROCESS_CRASH
        follower = engine.partition(flush_messages=1, segment_bytes=1024)
        follower.follow(FOLLOWING)
        assert bounds(follower) == (START, START, 20)


def test_a_crash_between_two_steps_leaves_an_empty_log(
    tmp_path: Path, disk: FaultyDisk, records: bytearray
) -> None:
    with running_engine(tmp_path, disk) as engine:
        follower = following(engine)
        follower.log.flush()
        engine.write_checkpoint()
        disk.fault = failing("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            follower.append_replicated(memoryview(records))
    with running_engine(tmp_path) as engine:
        follower = engine.partition(flush_messages=1, segment_bytes=1024)
        follower.follow(FOLLOWING)
        assert bounds(follower) == (0, 0, 0)
        assert not follower.log.size_bytes


def test_nothing_changes_when_one_of_the_batches_is_damaged(
    engine: Engine, records: bytearray
) -> None:
    follower = following(engine)
    records[-1] ^= 1
    with pytest.raises(CorruptBatch):
        follower.append_replicated(memoryview(records))
    assert bounds(follower) == (START,) * 3


def test_without_room_for_it_the_log_is_empty_and_can_begin_again(
    engine: Engine, disk: FaultyDisk, records: bytearray
) -> None:
    follower = following(engine)
    disk.fault = failing("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        follower.append_replicated(memoryview(records))
    assert bounds(follower) == (0, 0, 0)
    assert follower.fetch_offset == 0
    disk.fault = failing("write", errno.ENOSPC, after=ALL)
    engine.replicas.disk_has_room()
    follower.restart_at(START)
    follower.append_replicated(memoryview(records))
    assert bounds(follower) == (START, START, 20)


def test_without_room_for_all_of_it_the_start_is_kept(
    engine: Engine, disk: FaultyDisk, records: bytearray
) -> None:
    follower = following(engine)
    disk.fault = failing("write", errno.ENOSPC, after=1)
    with pytest.raises(DiskFull):
        follower.append_replicated(memoryview(records))
    assert bounds(follower) == (START, START, 10)


def test_only_an_empty_log_may_begin_before_its_start(engine: Engine, records: bytearray) -> None:
    follower = following(engine)
    follower.append_replicated(memoryview(records))
    with pytest.raises(CorruptBatch):
        follower.append_replicated(memoryview(records))
    assert bounds(follower) == (START, START, 20)
