import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.partitions.partition import Isolation, Partition
from penstock.broker.partitions.waiters import watch
from penstock.model.errors import BrokerError, ErrorCode, OffsetOutOfRange, StorageFault
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.storage.log import Origin
from penstock.storage.segment import DamagedLog
from tests.support.engine import Engine, running_engine
from tests.unit.storage.logs import FaultyDisk, batch, failing, flip, headers, scratch

ALL = 1 << 30
UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


class Listener:
    """What a watcher hears, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def grew(self, _partition: object, size_bytes: int) -> None:
        self.heard.append(("grew", size_bytes))

    def try_complete(self) -> None: ...

    def changed(self, _partition: object) -> None:
        self.heard.append(("changed", 0))


@pytest.fixture
def partition(engine: Engine) -> Partition:
    return engine.partition(segment_bytes=1024)


def offsets(partition: Partition, offset: int, max_bytes: int = ALL, **how: bool) -> list[int]:
    """The base offsets of what one read gives."""
    read = partition.read(offset, max_bytes, UNCOMMITTED, **how)
    data = b"".join(piece.read() for piece in read.slices)
    assert len(data) == read.size_bytes
    return [header.base_offset for header in headers(data)]


def transactional(engine: Engine, partition: Partition, producer_id: int, sequence: int) -> int:
    """A batch of an open transaction; its size."""
    made = batch(
        b"v",
        time_ms=engine.clock.wall_ms(),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    partition.append(made, now_ms=engine.clock.wall_ms(), transactional=True)
    return len(made)


def end(engine: Engine, partition: Partition, producer_id: int, *, commit: bool) -> None:
    marker = build_marker(
        EndMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=engine.clock.wall_ms(),
    )
    partition.append(memoryview(marker), now_ms=engine.clock.wall_ms(), origin=Origin.COORDINATOR)


# Reading ---------------------------------------------------------------------------------------


def test_a_partition_that_was_never_written_owns_no_files_and_reads_as_empty(
    partition: Partition, tmp_path: Path
) -> None:
    assert not partition.is_open
    read = partition.read(0, ALL, UNCOMMITTED)
    assert (read.slices, read.high_watermark, read.log_start_offset) == ([], 0, 0)
    assert not (tmp_path / "data" / "orders").exists()


def test_a_read_says_where_the_reader_stands(engine: Engine, partition: Partition) -> None:
    engine.append(partition, b"a", b"b")
    read = partition.read(0, ALL, UNCOMMITTED)
    assert (read.high_watermark, read.last_stable_offset, read.log_start_offset) == (2, 2, 0)
    assert (read.next_offset, read.aborted) == (2, None)
    assert partition.read(2, ALL, COMMITTED).aborted == []


@pytest.mark.parametrize("offset", [-1, 3, 1 << 40])
def test_an_offset_outside_of_the_log_is_refused(
    engine: Engine, partition: Partition, offset: int
) -> None:
    engine.append(partition, b"a", b"b")
    with pytest.raises(OffsetOutOfRange, match=r"orders-0: offset .* is outside 0\.\.2"):
        partition.read(offset, ALL, UNCOMMITTED)


def test_an_offset_below_the_log_start_is_refused(engine: Engine, partition: Partition) -> None:
    engine.append(partition, b"a", b"b")
    assert partition.delete_records_before(1) == 1
    with pytest.raises(OffsetOutOfRange):
        partition.read(0, ALL, UNCOMMITTED)
    assert offsets(partition, 1) == [0], "the whole batch; the reader drops its front"


def test_an_offset_between_high_watermark_and_log_end_is_empty_not_an_error(
    engine: Engine,
) -> None:
    """After a change of leader the high watermark may be behind what a consumer has read."""
    partition = engine.partition(flush_messages=1)
    for _ in range(3):
        engine.append(partition)
    assert (partition.high_watermark, partition.log.next_offset) == (0, 3)
    for offset in range(4):
        assert partition.read(offset, ALL, UNCOMMITTED).slices == []
    with pytest.raises(OffsetOutOfRange):
        partition.read(4, ALL, UNCOMMITTED)


def test_the_first_batch_is_given_even_if_too_large_but_only_when_asked(
    engine: Engine, partition: Partition
) -> None:
    engine.append(partition, b"x" * 300)
    size_bytes = partition.read(0, ALL, UNCOMMITTED).size_bytes
    assert offsets(partition, 0, 1) == [0]
    assert offsets(partition, 0, 0) == [0]
    assert offsets(partition, 0, size_bytes - 1, at_least_one=False) == []
    assert offsets(partition, 0, 0, at_least_one=False) == []
    assert offsets(partition, 0, size_bytes, at_least_one=False) == [0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(0, 12), st.integers(-1, 900)
)
def test_a_read_never_exceeds_its_limit_unless_for_the_first_batch(
    sizes: list[int], at: int, max_bytes: int
) -> None:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as engine:
        partition = engine.partition(segment_bytes=1024)
        for size in sizes:
            engine.append(partition, b"x" * size)
        offset = min(at, len(sizes))
        strict = partition.read(offset, max_bytes, UNCOMMITTED, at_least_one=False)
        assert strict.size_bytes <= max(max_bytes, 0)

        generous = partition.read(offset, max_bytes, UNCOMMITTED)
        batches = headers(b"".join(piece.read() for piece in generous.slices))
        assert len(batches) >= (offset < len(sizes))
        assert generous.size_bytes <= max_bytes or len(batches) == 1 or offset == len(sizes)
        assert [header.base_offset for header in batches] == list(
            range(offset, generous.next_offset)
        )


# Isolation -------------------------------------------------------------------------------------


def test_committed_readers_stop_before_the_first_open_transaction(
    engine: Engine, partition: Partition
) -> None:
    engine.append(partition)
    transactional(engine, partition, 9, 0)
    engine.append(partition)
    assert partition.visible_end(UNCOMMITTED) == 3
    assert partition.visible_end(COMMITTED) == 1
    read = partition.read(0, ALL, COMMITTED)
    assert (read.next_offset, read.last_stable_offset, read.high_watermark) == (1, 1, 3)
    assert partition.read(1, ALL, COMMITTED).slices == []
    assert partition.read(1, ALL, UNCOMMITTED).next_offset == 3

    end(engine, partition, 9, commit=True)
    assert partition.visible_end(COMMITTED) == 4
    assert partition.read(0, ALL, COMMITTED).aborted == []


def test_an_aborted_transaction_is_named_to_committed_readers_only(
    engine: Engine, partition: Partition
) -> None:
    transactional(engine, partition, 9, 0)
    engine.append(partition)
    end(engine, partition, 9, commit=False)
    read = partition.read(0, ALL, COMMITTED)
    assert read.aborted is not None
    assert [(txn.producer_id, txn.first_offset) for txn in read.aborted] == [(9, 0)]
    assert partition.read(0, ALL, UNCOMMITTED).aborted is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("plain"), st.just(0)),
            st.tuples(st.sampled_from(["txn", "commit", "abort"]), st.integers(1, 3)),
            st.tuples(st.sampled_from(["tick", "delete"]), st.integers(0, 5)),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_log_start_stable_offset_high_watermark_and_log_end_are_in_order_and_never_go_back(
    steps: list[tuple[str, int]], sync_each: bool
) -> None:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as engine:
        partition = engine.partition(segment_bytes=1024, flush_messages=1 if sync_each else 1000)
        sequences: dict[int, int] = {}
        open_ids: set[int] = set()
        before = (0, 0, 0, 0)
        for kind, number in steps:
            match kind:
                case "plain":
                    engine.append(partition)
                case "txn":
                    transactional(engine, partition, number, sequences.get(number, 0))
                    sequences[number] = sequences.get(number, 0) + 1
                    open_ids.add(number)
                case "commit" | "abort" if number in open_ids:
                    end(engine, partition, number, commit=kind == "commit")
                    open_ids.discard(number)
                case "delete":
                    partition.delete_records_before(
                        min(partition.log.start_offset + number, partition.last_stable_offset)
                    )
                case _:
                    engine.settle()
            now = (
                partition.log.start_offset,
                partition.last_stable_offset,
                partition.high_watermark,
                partition.log.next_offset,
            )
            assert list(now) == sorted(now)
            assert all(new >= old for new, old in zip(now, before, strict=True))
            before = now


# Epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_an_epoch_is_checked_where_one_is_given(
    partition: Partition, epoch: int, code: ErrorCode | None
) -> None:
    if code is None:
        partition.check_epoch(epoch)
        return
    with pytest.raises(BrokerError) as refused:
        partition.check_epoch(epoch)
    assert refused.value.code == code


# Writing ---------------------------------------------------------------------------------------


def test_an_append_is_committed_at_once_unless_each_is_to_be_synced(engine: Engine) -> None:
    at_once, later = engine.partition("plain"), engine.partition("synced", flush_messages=1)
    engine.append(at_once)
    engine.append(later)
    assert (at_once.high_watermark, at_once.committed(1)) == (1, None)
    assert later.high_watermark == 0
    wait = later.committed(1)
    assert wait is not None
    engine.settle()
    assert (later.high_watermark, wait.done()) == (1, True)
    assert later.committed(1) is None


def test_a_duplicate_waits_for_what_it_repeats_and_is_not_written_again(engine: Engine) -> None:
    partition = engine.partition(flush_messages=1)
    first = engine.append(partition, producer_id=5, producer_epoch=0, base_sequence=0)
    again = engine.append(partition, producer_id=5, producer_epoch=0, base_sequence=0)
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)
    assert partition.log.next_offset == 1
    wait = partition.committed(again.last_offset + 1)
    assert wait is not None
    engine.settle()
    assert wait.done()


def test_watchers_hear_of_all_that_a_tick_brought_once(engine: Engine) -> None:
    partition, listener = engine.partition(), Listener()
    engine.append(partition)
    watch(partition, listener)
    for _ in range(3):
        engine.append(partition)
    assert listener.heard == [], "not before the end of the tick"
    engine.tick()
    size_bytes = partition.read(1, ALL, UNCOMMITTED).size_bytes
    assert listener.heard == [("grew", size_bytes)]
    engine.tick()
    assert len(listener.heard) == 1


def test_watchers_of_a_synced_partition_hear_only_of_what_is_durable(engine: Engine) -> None:
    partition, listener = engine.partition(flush_messages=1), Listener()
    watch(partition, listener)
    engine.append(partition)
    engine.tick()
    assert listener.heard == []
    engine.settle()
    assert [kind for kind, _ in listener.heard] == ["grew"]


def test_a_watcher_that_fails_keeps_nobody_else_from_hearing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listener):
        def grew(self, _partition: object, _size_bytes: int) -> None:
            raise ZeroDivisionError

    class Undecided(Listener):
        def try_complete(self) -> None:
            raise ZeroDivisionError

    first, second = engine.topic("pair", partitions=2)
    good = Listener()
    watch(first, Broken())
    watch(first, Undecided())
    watch(second, good)
    for _ in range(2):
        engine.append(first)
        engine.append(second)
        engine.tick()
    assert [kind for kind, _ in good.heard] == ["grew", "grew"]
    assert caplog.text.count("watcher-failed partition=pair-0") == 2


def test_a_new_log_start_is_news(engine: Engine, partition: Partition) -> None:
    engine.append(partition)
    listener = Listener()
    watch(partition, listener)
    assert partition.delete_records_before(-1) == 1
    assert listener.heard == [("changed", 0)]


# Faults ----------------------------------------------------------------------------------------


def test_a_full_disk_refuses_appends_to_all_and_reads_go_on(
    engine: Engine, partition: Partition, disk: FaultyDisk
) -> None:
    other = engine.partition("other")
    engine.append(partition)
    engine.append(other)
    disk.fault = failing("write", errno.ENOSPC)
    with pytest.raises(BrokerError) as refused:
        engine.append(partition)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.log.next_offset == partition.high_watermark == 1

    disk.fault = lambda _call, _size: None
    with pytest.raises(BrokerError):
        engine.append(other)
    assert engine.metrics.disk_full.value == 1
    assert offsets(partition, 0) == [0]

    engine.replicas.disk_has_room()
    assert engine.append(partition).base_offset == 1
    assert engine.append(other).base_offset == 1
    assert engine.metrics.disk_full.value == 0


def test_a_disk_that_fails_a_write_is_not_used_again(
    engine: Engine, partition: Partition, disk: FaultyDisk
) -> None:
    other = engine.partition("other")
    engine.append(partition)
    engine.append(other)
    listener = Listener()
    watch(other, listener)
    disk.fault = failing("write", errno.EIO)
    with pytest.raises(BrokerError) as refused:
        engine.append(partition)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    disk.fault = lambda _call, _size: None
    assert listener.heard == [("changed", 0)], "who waits is told"
    for one in (partition, other):
        with pytest.raises(BrokerError, match="offline"):
            one.read(0, ALL, UNCOMMITTED)
        with pytest.raises(BrokerError, match="offline"):
            engine.append(one)
    engine.replicas.disk_has_room()
    assert engine.replicas.is_offline, "room is no cure for a fault"


def test_a_topic_made_after_the_disk_failed_is_refused_too(engine: Engine) -> None:
    engine.replicas.disk_failed(StorageFault("the disk is gone"))
    late = engine.partition("late")
    with pytest.raises(BrokerError, match="the disk is gone"):
        late.read(0, ALL, UNCOMMITTED)
    with pytest.raises(BrokerError, match="the disk is gone"):
        engine.append(late)


def test_a_read_that_the_disk_fails_takes_the_directory_offline(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.append(partition)

    def broken(*_: object, **__: object) -> None:
        raise StorageFault("orders: read of 100 bytes at 0 failed")

    monkeypatch.setattr(type(partition.log), "read", broken)
    with pytest.raises(BrokerError, match="read of 100 bytes") as refused:
        partition.read(0, ALL, UNCOMMITTED)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert engine.replicas.is_offline


def test_damage_found_by_a_read_concerns_that_partition_alone(
    engine: Engine, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = engine.partition("other")
    engine.append(partition)
    engine.append(other)

    def damaged(*_: object, **__: object) -> None:
        raise DamagedLog("a batch does not end where it says")

    with monkeypatch.context() as patch:
        patch.setattr(type(partition.log), "read", damaged)
        with pytest.raises(BrokerError, match="does not end"):
            partition.read(0, ALL, UNCOMMITTED)
    with pytest.raises(BrokerError, match="does not end"):
        engine.append(partition)
    assert not engine.replicas.is_offline
    assert offsets(other, 0) == [0]


def test_a_log_that_cannot_be_opened_fails_its_partition_alone(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        before = engine.partition()
        engine.append(before)
        before.log.flush()
        engine.write_checkpoint()
    flip(tmp_path / "data" / "orders" / "partition-0" / f"{0:020d}.log", 40)

    with running_engine(tmp_path) as engine:
        damaged, other = engine.partition(), engine.partition("other")
        with pytest.raises(BrokerError) as refused:
            engine.append(damaged)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(BrokerError):
            damaged.read(0, ALL, UNCOMMITTED)
        assert engine.append(other).base_offset == 0
        assert not engine.replicas.is_offline


def test_who_waits_for_a_commit_hears_of_the_failure(engine: Engine) -> None:
    partition = engine.partition(flush_messages=1)
    engine.append(partition)
    wait = partition.committed(1)
    assert wait is not None
    partition.fail(BrokerError("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert isinstance(wait.exception(), BrokerError)
    engine.settle()
    assert partition.high_watermark == 0


# Deleting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-2, 4])
def test_records_cannot_be_deleted_outside_of_the_log(
    engine: Engine, partition: Partition, offset: int
) -> None:
    engine.append(partition, b"a", b"b", b"c")
    with pytest.raises(OffsetOutOfRange):
        partition.delete_records_before(offset)


def test_what_is_deleted_already_may_be_deleted_again(engine: Engine, partition: Partition) -> None:
    engine.append(partition, b"a", b"b", b"c")
    assert partition.delete_records_before(2) == 2
    assert partition.delete_records_before(1) == 2
    assert partition.delete_records_before(-1) == 3
