import asyncio
import gc
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.partitions.waiters import watch
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, OutOfResources, StorageFault
from penstock.model.ids import TopicId
from penstock.storage import checksummed_json, markers
from penstock.storage.directory import DataDirectory
from penstock.storage.segment import Segment
from tests.support.engine import Engine, config_of, running_engine
from tests.unit.broker.partitions.test_partition import ALL, UNCOMMITTED, Listener
from tests.unit.storage.logs import flip

UNKNOWN_ID = bytes(15) + b"\xff"


def code_of(error: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return error.value.code


# Finding ---------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused_with_its_own_code(engine: Engine) -> None:
    replicas = engine.replicas
    topic = engine.partition("orders").topic
    with pytest.raises(BrokerError) as no_topic:
        replicas.topic("absent")
    with pytest.raises(BrokerError) as no_id:
        replicas.topic_by_id(UNKNOWN_ID)
    assert code_of(no_topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(no_id) == ErrorCode.UNKNOWN_TOPIC_ID
    for index in (-1, 1, 1 << 31):
        with pytest.raises(BrokerError) as no_partition:
            replicas.partition(topic, index)
        assert code_of(no_partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_of_another_broker_is_counted_and_refused(engine: Engine) -> None:
    topic = engine.partition("orders").topic
    engine.replicas.add_partition(topic, 0, hosted=False)
    with pytest.raises(BrokerError) as refused:
        engine.replicas.partition(topic, 1)
    assert code_of(refused) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(topic.partitions) == 2
    assert list(engine.replicas.partitions()) == [topic.partitions[0]]


def test_only_logs_in_use_are_told_of(engine: Engine) -> None:
    used, unused, failed = engine.topic("orders", partitions=3)
    engine.append(used)
    engine.append(failed)
    failed.fail(BrokerError("gone"))
    assert list(engine.replicas.open_partitions()) == [used]
    assert engine.replicas.high_watermarks() == {used.topic.id: {0: 1}}
    assert engine.replicas.has_log(used)
    assert not engine.replicas.has_log(unused)


# Topics come and go ----------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_for_everyone_at_once(engine: Engine, tmp_path: Path) -> None:
    partition = engine.partition("orders", flush_messages=1)
    engine.append(partition)
    wait, listener = partition.committed(1), Listener()
    assert wait is not None
    watch(partition, listener)
    engine.replicas.remove_topic("orders")

    error = wait.exception()
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listener.heard == [("changed", 0)]
    assert engine.replicas.topics == {}
    assert engine.replicas.topics_by_id == {}
    assert engine.replicas.unsynced == {}
    with pytest.raises(BrokerError, match="was deleted"):
        partition.read(0, ALL, UNCOMMITTED)
    with pytest.raises(BrokerError, match="was deleted"):
        engine.append(partition)
    assert not (tmp_path / "data" / "orders").exists()
    engine.settle()


def test_a_topic_of_the_same_name_begins_anew(engine: Engine) -> None:
    engine.append(engine.partition("orders"), b"old")
    engine.replicas.remove_topic("orders")
    new = engine.partition("orders")
    assert new.read(0, ALL, UNCOMMITTED).high_watermark == 0
    assert engine.append(new).base_offset == 0


def test_a_topic_that_cannot_be_renamed_for_want_of_room_is_deleted_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room")

    engine.append(engine.partition("orders"))
    monkeypatch.setattr(DataDirectory, "delete_topic", full)
    engine.replicas.remove_topic("orders")
    assert engine.replicas.topics == {}
    assert "topic-left-behind topic=orders" in caplog.text


def test_a_topic_that_cannot_be_renamed_for_a_fault_takes_the_directory_offline(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StorageFault("cannot be renamed")

    other = engine.partition("other")
    engine.append(engine.partition("orders"))
    monkeypatch.setattr(DataDirectory, "delete_topic", broken)
    engine.replicas.remove_topic("orders")
    assert engine.replicas.is_offline
    assert other.failure is not None


def test_new_settings_reach_open_logs_and_pass_by_those_that_failed(engine: Engine) -> None:
    used, _, failed = engine.topic("orders", partitions=3)
    engine.append(used)
    engine.append(failed)
    failed.fail(BrokerError("damaged"))
    engine.replicas.configure("orders", config_of(segment_bytes=4096, flush_messages=1))
    assert used.log.config.segment_bytes == 4096
    assert used.topic.sync_each_append


# Recovery --------------------------------------------------------------------------------------


def test_after_a_crash_every_log_is_opened_and_what_was_found_is_counted(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        for partition in engine.topic("orders", partitions=3)[:2]:
            engine.append(partition, b"kept")
        log = tmp_path / "data" / "orders" / "partition-1" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + b"torn")

    with running_engine(tmp_path) as engine:
        partitions = engine.topic("orders", partitions=3)
        engine.run(engine.replicas.recover())
        assert [partition.is_open for partition in partitions] == [True, True, False]
        assert [partition.high_watermark for partition in partitions] == [1, 1, 0]
        found = engine.metrics.recovery
        assert (found.logs.value, found.remaining_logs.value) == (2, 0)
        assert found.truncated_bytes.value == len(b"torn")
        assert found.bytes.value > 0


def test_others_have_their_turn_between_two_logs(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        for partition in engine.topic("orders", partitions=3):
            engine.append(partition)

    with running_engine(tmp_path) as engine:
        engine.topic("orders", partitions=3)
        left_to_do: list[float] = []

        async def look() -> None:
            for _ in range(3):
                left_to_do.append(engine.metrics.recovery.remaining_logs.value)
                await asyncio.sleep(0)

        async def both() -> None:
            await asyncio.gather(engine.replicas.recover(), look())

        engine.run(both())
        assert left_to_do == [2, 1, 0]


def test_what_was_committed_and_is_gone_is_said_even_when_no_file_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_engine(tmp_path) as engine:
        for partition in engine.topic("orders", partitions=2):
            engine.append(partition)
        engine.write_checkpoint()
    shutil.rmtree(tmp_path / "data" / "orders" / "partition-1")

    with running_engine(tmp_path) as engine:
        engine.topic("orders", partitions=2)
        engine.run(engine.replicas.recover())
    lost = [record.getMessage() for record in caplog.records if "offsets-lost" in record.msg]
    assert lost == ["offsets-lost partition=orders-1 next-offset=0 high-watermark-was=1"]


def lose_an_acknowledged_record(tmp_path: Path, boot_id: str | None = None) -> None:
    """After a crash; with another boot id, after a loss of power."""
    with running_engine(tmp_path) as engine:
        engine.append(engine.partition("orders"))
        engine.write_checkpoint()
    (tmp_path / "data" / "orders" / "partition-0" / f"{0:020d}.log").write_bytes(b"")
    if boot_id is not None:
        running = tmp_path / "data" / markers.RUNNING
        content = checksummed_json.decode(markers.RUNNING, running.read_bytes())
        running.write_bytes(
            checksummed_json.encode(markers.RUNNING, content | {"boot_id": boot_id})
        )


def shortfalls(tmp_path: Path) -> list[tuple[str, int]]:
    """What the next start finds missing and cannot explain; then it crashes."""
    found: list[tuple[str, int]] = []
    with running_engine(tmp_path) as engine:
        engine.partition("orders")
        engine.replicas.on_shortfall = lambda it, committed: found.append((str(it), committed))
        engine.run(engine.replicas.recover())
        engine.directory.note_broker_epoch(1)  # it takes part
    return found


def test_what_is_missing_after_a_crash_of_the_process_alone_is_damage(tmp_path: Path) -> None:
    lose_an_acknowledged_record(tmp_path)
    assert shortfalls(tmp_path) == [("orders-0", 1)]


def test_what_a_loss_of_power_took_is_no_damage_then_or_after_the_next_crash(
    tmp_path: Path,
) -> None:
    lose_an_acknowledged_record(tmp_path, boot_id="of another time")
    assert shortfalls(tmp_path) == []
    assert shortfalls(tmp_path) == [], "it was written down at once how much is left"


def test_after_a_clean_end_no_log_is_opened(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path / "data"))
    directory.close()
    with running_engine(tmp_path) as engine:
        partition = engine.partition("orders")
        engine.run(engine.replicas.recover())
        assert not partition.is_open


def test_a_log_that_changed_after_a_clean_end_fails_before_anything_is_served(
    tmp_path: Path,
) -> None:
    with running_engine(tmp_path) as engine:
        for partition in engine.topic("orders", 3, segment_bytes=1024):
            for _ in range(10):
                engine.append(partition, b"x" * 300)
        engine.directory.close()
        engine.replicas.stop()
        engine.directory._lock_fd = os.open(tmp_path, os.O_RDONLY)
    closed = sorted((tmp_path / "data/orders/partition-1").glob("*.log"))[1]
    closed.unlink()
    with running_engine(tmp_path) as engine:
        partitions = engine.topic("orders", 3)
        failed: list[str] = []
        engine.replicas.on_damage = lambda partition: failed.append(str(partition))
        engine.run(engine.replicas.recover())
        assert failed == ["orders-1"]
        assert [partition.is_open for partition in partitions] == [False] * 3
        assert partitions[1].failure is not None


def test_one_damaged_log_does_not_keep_the_others_from_recovering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_engine(tmp_path) as engine:
        for partition in engine.topic("orders", partitions=2):
            engine.append(partition)
            partition.log.flush()
        engine.write_checkpoint()
    flip(tmp_path / "data" / "orders" / "partition-0" / f"{0:020d}.log", 40)

    with running_engine(tmp_path) as engine:
        damaged, sound = engine.topic("orders", partitions=2)
        engine.run(engine.replicas.recover())
        assert (damaged.failure is None, sound.is_open) == (False, True)
        assert engine.metrics.recovery.remaining_logs.value == 0
        assert "partition-failed partition=orders-0" in caplog.text


# The disk --------------------------------------------------------------------------------------


def test_a_fault_is_told_once_and_outlives_a_full_disk(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    replicas = engine.replicas
    replicas.disk_is_full(DiskFull("full"))
    replicas.disk_is_full(DiskFull("still full"))
    assert (replicas.is_full, replicas.is_offline) == (True, False)
    replicas.disk_failed(StorageFault("broken"))
    replicas.disk_failed(StorageFault("broken again"))
    replicas.disk_is_full(DiskFull("full"))
    replicas.disk_has_room()
    assert (replicas.is_full, replicas.is_offline) == (False, True)
    assert "broken" in str(replicas.unable)
    assert caplog.text.count("data-directory-offline") == 1
    assert caplog.text.count("disk-full") == 1
    assert engine.metrics.directory_offline.value == 1


def test_refusals_that_are_kept_hold_on_to_nothing_of_those_who_were_refused(
    engine: Engine,
) -> None:
    """Else a full disk would gather every refused request, and a deleted log's files stay open."""

    class Buffer:
        """Stands for what a request refers to."""

    def be_refused(refuse: Callable[[], object], buffer: Buffer) -> "weakref.ref[Buffer]":
        with pytest.raises(BrokerError):
            refuse()
        return weakref.ref(buffer)

    partition = engine.partition()
    try:
        raise DiskFull("full") from OSError("no room")
    except DiskFull as error:
        engine.replicas.disk_is_full(error)
    partition.fail(BrokerError("gone"))
    for refuse in (engine.replicas.refuse_when_unable, lambda: partition.log):
        held = [be_refused(refuse, Buffer()) for _ in range(3)]
        gc.collect()
        assert [ref() for ref in held] == [None] * 3
    for kept in (engine.replicas.unable, partition.failure):
        assert kept is not None
        assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)


def test_topics_are_found_by_id(engine: Engine) -> None:
    topic = engine.partition("orders").topic
    assert (
        engine.replicas.topic_by_id(TopicId(topic.id)) is topic is engine.replicas.topic("orders")
    )


def test_settings_change_while_no_descriptor_is_left(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changes them has changes of other partitions to make as well."""
    partition = engine.partition("orders")
    engine.append(partition, b"one")

    def short(_segment: Segment) -> None:
        raise OutOfResources("no descriptor is left")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "first_header", short)
        engine.replicas.configure("orders", config_of(segment_bytes=4096))
    assert partition.log.config.segment_bytes == 4096
    assert engine.append(partition, b"two").base_offset == 1
    assert partition.failure is None


def test_a_disk_that_fails_while_settings_change_takes_the_directory_offline(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = engine.partition("orders")
    engine.append(partition, b"one")

    def broken(_segment: Segment) -> None:
        raise StorageFault("it cannot be read")

    monkeypatch.setattr(Segment, "first_header", broken)
    engine.replicas.configure("orders", config_of(segment_bytes=4096))
    assert engine.replicas.is_offline
