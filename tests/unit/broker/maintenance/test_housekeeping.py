import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.maintenance import housekeeping as housekeeping_module
from penstock.broker.maintenance.housekeeping import Housekeeping
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.waiters import watch
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import BrokerError, DiskFull, OutOfResources, StorageFault
from penstock.storage import syncs as syncs_module
from penstock.storage.usage import Room
from tests.support.engine import Engine, running_engine
from tests.unit.broker.partitions.test_partition import Listener
from tests.unit.storage.logs import FaultyDisk, descriptors_left, failing

HOUR_MS = 3_600_000
SEGMENT: Any = {"segment_bytes": 1024, "file_delete_delay_ms": 60_000}


class Setting:
    """As much of a cluster as housekeeping asks for."""

    def __init__(self) -> None:
        self.config = resolve_broker_config({})
        self.image = SimpleNamespace(revision=17, topics={})
        self.confirmed = 0

    def configure(self, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.config = resolve_broker_config(texts)

    async def confirm_deleted(self) -> None:
        self.confirmed += 1


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def keeper(engine: Engine, setting: Setting) -> Housekeeping:
    return Housekeeping(engine.replicas, setting, setting, engine.clock)  # type: ignore[arg-type] # stands for both


def fill(engine: Engine, partition: Partition, batches: int, size: int = 300) -> None:
    for _ in range(batches):
        engine.append(partition, b"x" * size)


# Durability ------------------------------------------------------------------------------------


def test_logs_are_synced_when_their_time_has_come(engine: Engine, keeper: Housekeeping) -> None:
    soon, late = engine.partition("soon", flush_ms=1000), engine.partition("late", flush_ms=5000)
    engine.append(soon)
    engine.append(late)
    engine.clock.advance(999)
    engine.run(keeper._sync_due())
    engine.settle()
    assert (soon.log.recovery_point, late.log.recovery_point) == (0, 0)

    engine.clock.advance(1)
    engine.run(keeper._sync_due())
    engine.settle()
    assert (soon.log.recovery_point, late.log.recovery_point) == (1, 0)
    assert list(engine.replicas.unsynced) == [late]


def test_logs_are_synced_when_enough_messages_wait(engine: Engine, keeper: Housekeeping) -> None:
    partition = engine.partition(flush_messages=3)
    engine.append(partition, b"a", b"b")
    engine.run(keeper._sync_due())
    engine.settle()
    assert partition.log.recovery_point == 0
    engine.append(partition, b"c")
    engine.run(keeper._sync_due())
    engine.settle()
    assert partition.log.recovery_point == 3


def test_when_much_is_dirty_the_largest_are_synced_first(
    engine: Engine, keeper: Housekeeping, setting: Setting
) -> None:
    setting.configure(penstock_dirty_bytes_max=1 << 20)
    small, large = engine.topic("orders", partitions=2)
    fill(engine, small, 1, 100_000)
    fill(engine, large, 5, 100_000)
    engine.run(keeper._sync_due())
    engine.settle()
    assert (small.log.recovery_point, large.log.recovery_point) == (0, 5)


def test_a_partition_that_failed_does_not_keep_the_others_from_being_synced(
    engine: Engine, keeper: Housekeeping
) -> None:
    bad, good = engine.topic("orders", partitions=2, flush_ms=10)
    engine.append(bad)
    engine.append(good)
    bad.fail(BrokerError("damaged"))
    engine.clock.advance(10)
    for _ in range(2):
        engine.run(keeper._sync_due())
    engine.settle()
    assert good.log.recovery_point == 1
    assert engine.replicas.unsynced == {}


def test_a_checkpoint_says_what_is_durable_after_a_crash(tmp_path: Path) -> None:
    with running_engine(tmp_path, FaultyDisk()) as engine:
        setting = Setting()
        keeper = Housekeeping(engine.replicas, setting, setting, engine.clock)  # type: ignore[arg-type] # stands for both
        partition = engine.partition(flush_ms=10)
        engine.append(partition, b"a", b"b")
        engine.clock.advance(10)
        engine.run(keeper._sync_due())
        engine.settle()
        partition.delete_records_before(1)
        engine.append(partition, b"c")
        engine.run(keeper._checkpoint())
    with running_engine(tmp_path) as engine:
        again = engine.partition()
        assert again.log.start_offset == 1
        assert engine.directory.high_watermark(again.topic.id, 0) == 3
        assert engine.directory.store_revision == 17


def test_checkpoints_are_written_as_often_as_the_most_frequent_wants(
    keeper: Housekeeping, setting: Setting
) -> None:
    setting.configure(replica_high_watermark_checkpoint_interval_ms=700)
    assert keeper._checkpoint_pause_s() == 0.7
    setting.configure(log_retention_check_interval_ms=2000)
    assert keeper._retention_pause_s() == 2
    setting.configure(producer_id_expiration_check_interval_ms=3000)
    assert keeper._expiry_pause_s() == 3


# Forgetting ------------------------------------------------------------------------------------


def test_old_segments_go_and_who_waits_is_told(engine: Engine, keeper: Housekeeping) -> None:
    partition, listener = engine.partition(retention_ms=HOUR_MS, **SEGMENT), Listener()
    fill(engine, partition, 4)
    engine.clock.advance(2 * HOUR_MS)
    fill(engine, partition, 2)
    engine.tick()
    watch(partition, listener)
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset == 4
    assert listener.heard == [("changed", 0)]
    retention = engine.metrics.retention
    assert (retention.segments.value, retention.bytes.value > 1200) == (2, True)

    engine.run(keeper._apply_retention())
    assert len(listener.heard) == 1, "nothing went"


def test_a_log_is_kept_below_its_size(engine: Engine, keeper: Housekeeping) -> None:
    partition = engine.partition(retention_bytes=2048, **SEGMENT)
    fill(engine, partition, 20)
    engine.run(keeper._apply_retention())
    assert 2048 <= partition.log.size_bytes < 2048 + 1024 + 400
    assert partition.log.start_offset > 0


def test_what_is_not_committed_is_not_forgotten(engine: Engine, keeper: Housekeeping) -> None:
    partition = engine.partition(retention_ms=HOUR_MS, flush_messages=1, **SEGMENT)
    fill(engine, partition, 6)
    engine.clock.advance(2 * HOUR_MS)
    assert partition.high_watermark == 0
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset == 0


def test_retention_reaches_logs_that_nobody_has_opened_since_the_start(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        fill(engine, engine.partition(**SEGMENT), 6)
    with running_engine(tmp_path) as engine:
        engine.clock.advance(2 * HOUR_MS)
        setting = Setting()
        keeper = Housekeeping(engine.replicas, setting, setting, engine.clock)  # type: ignore[arg-type] # stands for both
        partition, never = engine.topic("orders", partitions=2, retention_ms=HOUR_MS, **SEGMENT)
        engine.run(keeper._apply_retention())
        assert partition.log.start_offset > 0
        assert not never.is_open


@pytest.mark.parametrize(
    "error", [DiskFull("no room for a new segment"), BrokerError("damaged"), ZeroDivisionError()]
)
def test_one_log_that_cannot_be_cared_for_does_not_end_the_care_for_others(
    engine: Engine,
    keeper: Housekeeping,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """A full disk is what retention is for: that one log cannot roll must not keep all others."""
    first, second = engine.topic("orders", partitions=2, retention_ms=HOUR_MS, **SEGMENT)
    for partition in (first, second):
        fill(engine, partition, 6)
    engine.clock.advance(2 * HOUR_MS)
    apply, failed = type(first.log).apply_retention, first.log

    def failing_once(log: Any, *args: Any, **named: Any) -> int:
        if log is failed:
            raise error
        return apply(log, *args, **named)

    monkeypatch.setattr(type(first.log), "apply_retention", failing_once)
    engine.run(keeper._apply_retention())
    assert second.log.start_offset > 0
    assert "care-failed partition=orders-0" in caplog.text


def test_others_have_their_turn_during_a_long_chore(
    engine: Engine, keeper: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping_module, "_PER_TURN", 10)
    for partition in engine.topic("orders", partitions=100):
        engine.append(partition)
    turns = 0

    async def beside() -> int:
        nonlocal turns
        async with asyncio.TaskGroup() as group:
            chore = group.create_task(keeper._apply_retention())
            while not chore.done():
                turns += 1
                await asyncio.sleep(0)
        return turns

    assert 10 <= engine.runner.run(beside()) <= 15


def test_a_wall_clock_that_jumps_deletes_nothing_for_an_hour(
    engine: Engine, keeper: Housekeeping
) -> None:
    partition = engine.partition(retention_ms=HOUR_MS, **SEGMENT)
    fill(engine, partition, 6)
    engine.clock.set_wall(engine.clock.wall_ms() + 30 * 24 * HOUR_MS)
    engine.run(keeper._watch_clock())
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset == 0
    engine.clock.advance(HOUR_MS // 2)
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset == 0
    engine.clock.advance(HOUR_MS)
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset > 0, "then it is believed"


def test_only_the_leader_deletes_what_is_old(engine: Engine, keeper: Housekeeping) -> None:
    """A follower deletes what lies below the leader's log start, whatever its own clock says."""
    partition = engine.partition(retention_ms=HOUR_MS, **SEGMENT)
    fill(engine, partition, 6)
    end = partition.log.next_offset
    partition.follow(None)
    engine.clock.advance(30 * 24 * HOUR_MS)
    engine.run(keeper._apply_retention())
    assert partition.log.start_offset == 0
    partition.learn(end, 3)
    assert partition.log.start_offset == 3


def test_files_are_removed_when_their_time_has_come(
    engine: Engine, keeper: Housekeeping, setting: Setting, tmp_path: Path
) -> None:
    partition = engine.partition(retention_ms=HOUR_MS, **SEGMENT)
    fill(engine, partition, 6)
    engine.clock.advance(2 * HOUR_MS)
    engine.run(keeper._apply_retention())
    engine.run(keeper._checkpoint())
    files = tmp_path / "data" / "orders" / "partition-0"
    before = len(list(files.iterdir()))
    engine.run(keeper._remove_files())
    assert len(list(files.iterdir())) == before, "who reads them still may"
    engine.clock.advance(60_001)
    engine.run(keeper._remove_files())
    assert len(list(files.iterdir())) < before
    assert setting.confirmed == 2


def test_a_checkpoint_that_no_thread_begins_is_seen_as_a_sync_that_hangs(
    engine: Engine, keeper: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    engine.append(engine.partition())
    syncs = engine.replicas.directory.syncs

    async def life() -> str | None:
        nonlocal now_s
        hung = syncs.hung(30)
        async with asyncio.TaskGroup() as group:
            group.create_task(keeper._checkpoint())
            await asyncio.sleep(0)
            for _ in range(7):
                now_s += 5
                hung = syncs.hung(30)
            engine.threads.run()
        return hung

    assert "waits for a thread" in (engine.runner.run(life()) or "")
    assert syncs.hung(30) is None


def test_a_file_that_cannot_be_removed_for_lack_of_descriptors_is_removed_later(
    engine: Engine, keeper: Housekeeping, tmp_path: Path
) -> None:
    for partition in engine.topic("orders", partitions=3):
        engine.append(partition)
    engine.replicas.remove_topic("orders")
    engine.run(keeper._remove_files())
    engine.clock.advance(60_001)
    with descriptors_left(0), pytest.raises(ExceptionGroup) as raised:
        engine.run(keeper._remove_files())
    assert raised.group_contains(OutOfResources)
    assert list(tmp_path.glob("data/*-delete"))
    engine.run(keeper._remove_files())
    assert not list(tmp_path.glob("data/*-delete"))


@pytest.mark.parametrize("jump_ms", [30 * 24 * HOUR_MS, -30 * 24 * HOUR_MS])
def test_files_are_removed_in_their_time_also_when_the_clock_is_set(
    engine: Engine, keeper: Housekeeping, tmp_path: Path, jump_ms: int
) -> None:
    partition = engine.partition(retention_ms=HOUR_MS, **SEGMENT)
    fill(engine, partition, 6)
    engine.clock.advance(2 * HOUR_MS)
    engine.run(keeper._apply_retention())
    engine.run(keeper._checkpoint())
    engine.run(keeper._remove_files())
    files = tmp_path / "data" / "orders" / "partition-0"
    before = len(list(files.iterdir()))
    engine.clock.set_wall(engine.clock.wall_ms() + jump_ms)
    engine.run(keeper._remove_files())
    assert len(list(files.iterdir())) == before
    engine.clock.advance(60_001)
    engine.run(keeper._remove_files())
    assert len(list(files.iterdir())) < before


def test_a_deleted_topic_leaves_the_disk(
    engine: Engine, keeper: Housekeeping, tmp_path: Path
) -> None:
    engine.append(engine.partition("orders"))
    engine.replicas.remove_topic("orders")
    engine.run(keeper._remove_files())
    assert any("orders" in path.name for path in (tmp_path / "data").iterdir())
    engine.clock.advance(HOUR_MS)
    engine.run(keeper._remove_files())
    assert not any("orders" in path.name for path in (tmp_path / "data").iterdir())


def test_producers_that_are_silent_for_too_long_are_forgotten(
    engine: Engine, keeper: Housekeeping, setting: Setting
) -> None:
    setting.configure(
        producer_id_expiration_ms=HOUR_MS, producer_id_expiration_check_interval_ms=HOUR_MS // 2
    )
    partition = engine.partition()
    engine.append(partition, producer_id=1, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        engine.run(keeper._expire_producers())
    engine.append(partition, producer_id=2, producer_epoch=0, base_sequence=0)
    assert [producer_id for producer_id, _ in partition.log.producers] == [1, 2]
    engine.run(keeper._expire_producers())
    assert [producer_id for producer_id, _ in partition.log.producers] == [2]


def test_a_clock_that_jumps_by_days_makes_no_retried_batch_a_new_one(
    engine: Engine, keeper: Housekeeping
) -> None:
    partition = engine.partition()
    sent = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    engine.append(partition, **sent)
    engine.run(keeper._expire_producers())
    engine.clock.set_wall(engine.clock.wall_ms() + 30 * 24 * HOUR_MS)
    engine.run(keeper._expire_producers())
    assert engine.append(partition, **sent).duplicate


# The disk --------------------------------------------------------------------------------------


def test_a_sync_that_does_not_return_takes_the_directory_offline_and_refuses_who_waits(
    engine: Engine, keeper: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other partitions too: the disk under them is the same."""
    now_s = 0.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    partition, other = engine.partition(flush_messages=1), engine.partition("other")
    engine.append(partition)
    waits = partition.committed(1)
    assert waits is not None
    Chores(keeper, engine).run(keeper._watch_syncs)
    with engine.directory.syncs.of("00.log"):
        for _ in range(4):
            now_s += 7.25
            Chores(keeper, engine).run(keeper._watch_syncs)
        assert not engine.replicas.is_offline
        now_s += 2
        Chores(keeper, engine).run(keeper._watch_syncs)
    assert engine.replicas.is_offline
    assert "has not returned for 31 s" in str(waits.exception())
    assert other.failure is not None


def test_appends_are_taken_again_when_there_is_room_beyond_the_reserve(
    engine: Engine,
    keeper: Housekeeping,
    setting: Setting,
    disk: FaultyDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting.configure(penstock_disk_reserve_bytes=1000)
    partition = engine.partition()
    engine.append(partition)
    disk.fault = failing("write", errno.ENOSPC)
    with pytest.raises(BrokerError):
        engine.append(partition)
    disk.fault = lambda _call, _size: None

    free_bytes = 1000
    monkeypatch.setattr(housekeeping_module, "room", lambda _: Room(1 << 40, free_bytes))
    engine.run(keeper._watch_disk())
    assert engine.replicas.is_full
    free_bytes = 1001
    engine.run(keeper._watch_disk())
    assert not engine.replicas.is_full
    assert engine.append(partition).base_offset == 1


def test_a_disk_that_others_have_filled_is_full_before_an_append_finds_out(
    engine: Engine, keeper: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = 1 << 20
    monkeypatch.setattr(housekeeping_module, "room", lambda _: Room(1 << 40, free_bytes))
    engine.run(keeper._watch_disk())
    assert not engine.replicas.is_full
    free_bytes = 1000
    engine.run(keeper._watch_disk())
    assert engine.replicas.is_full
    assert "1000 bytes are free" in str(engine.replicas.unable)


# Chores go on ----------------------------------------------------------------------------------


class Chores:
    """Runs one chore again and again, without time passing in between."""

    def __init__(self, keeper: Housekeeping, engine: Engine) -> None:
        self._keeper = keeper
        self._engine = engine

    def run(self, chore: Callable[[], Awaitable[None]], ticks: int = 20) -> None:
        async def beside() -> None:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._keeper._repeat("a-chore", chore, lambda: 0))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                task.cancel()

        self._engine.runner.run(beside())


def test_a_chore_that_fails_is_logged_and_runs_again(
    engine: Engine, keeper: Housekeeping, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ZeroDivisionError("a bug"), BrokerError("no room"), None]
    seen: list[object] = []

    async def chore() -> None:
        seen.append(error := errors[len(seen) % 3])
        if error is not None:
            raise error

    Chores(keeper, engine).run(chore)
    assert len(seen) > 3
    traced = [r for r in caplog.records if r.exc_info]
    assert {r.getMessage() for r in traced} == {"chore-failed chore=a-chore"}
    assert "chore-put-off chore=a-chore error=no room" in caplog.text
    assert not engine.replicas.is_offline


def test_a_chore_that_meets_a_fault_of_the_disk_is_the_last_one(
    engine: Engine, keeper: Housekeeping
) -> None:
    runs = 0

    async def chore() -> None:
        nonlocal runs
        runs += 1
        raise StorageFault("the disk is gone")

    Chores(keeper, engine).run(chore)
    assert (runs, engine.replicas.is_offline) == (1, True)


def test_every_chore_is_started_by_its_name(keeper: Housekeeping) -> None:
    started: dict[str, Coroutine[Any, Any, None]] = {}
    keeper.start(lambda coroutine, name: started.update({name: coroutine}))
    for coroutine in started.values():
        coroutine.close()
    assert set(started) == {
        "sync",
        "checkpoint",
        "watch-clock",
        "watch-disk",
        "watch-syncs",
        "remove-files",
        "retention",
        "producer-expiry",
        "compaction",
        "scrub",
    }
    keeper.stop()


def test_a_quiet_broker_complains_of_nothing(
    engine: Engine, keeper: Housekeeping, caplog: pytest.LogCaptureFixture
) -> None:
    engine.append(engine.partition())
    for chore in (
        keeper._sync_due,
        keeper._checkpoint,
        keeper._watch_disk,
        keeper._remove_files,
        keeper._apply_retention,
        keeper._expire_producers,
    ):
        engine.run(chore())
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
