from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.maintenance import cleaning as cleaning_module
from penstock.broker.maintenance.cleaning import Cleaning
from penstock.broker.partitions.partition import Partition
from penstock.model.errors import DiskFull, StorageFault
from penstock.storage import cleaner, swap
from penstock.storage.cleaner import Job, Outcome
from penstock.storage.compaction import Round
from penstock.storage.worker import WorkerFailed
from tests.support.engine import Engine
from tests.unit.broker.maintenance.test_housekeeping import Setting
from tests.unit.storage.logs import values

COMPACTED: Any = {
    "cleanup_policy": "compact",
    "segment_bytes": 1024,
    "min_cleanable_dirty_ratio": 0.1,
}


class InlineWorker:
    """The worker's tasks, done at once; `before` is called with the name of each."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda _: None
        self.is_running = False
        self.jobs: list[str] = []

    def clean(self, job: Job) -> Outcome:
        self.is_running = True
        self.jobs.append(job.directory)
        self.before("clean")
        outcome = cleaner.clean(job)
        self.before("cleaned")
        return outcome

    def prepare(self, directory: str, swaps: Any, interval_bytes: int) -> None:
        self.before("prepare")
        for change in swaps:
            swap.prepare(directory, change, interval_bytes)

    def end(self) -> None:
        self.is_running = False


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> InlineWorker:
    made = InlineWorker()
    monkeypatch.setattr(cleaning_module, "Worker", lambda: made)
    return made


@pytest.fixture
def cleaning(engine: Engine, setting: Setting, worker: InlineWorker) -> Cleaning:
    del worker  # in place before it is asked for
    return Cleaning(engine.replicas, setting, engine.clock)  # type: ignore[arg-type] # stands for a cluster


def overwrite(engine: Engine, partition: Partition, times: int = 12) -> None:
    """The same key again and again."""
    for number in range(times):
        engine.append(partition, b"%0300d" % number)


def test_a_dirty_log_is_compacted_and_the_worker_ends(
    engine: Engine, cleaning: Cleaning, worker: InlineWorker
) -> None:
    partition = engine.partition(**COMPACTED)
    overwrite(engine, partition)
    engine.run(cleaning.run())
    kept = values(partition.log)
    assert len(kept) < 6
    assert kept[-1] == b"%0300d" % 11
    assert engine.metrics.compaction.runs.value == 1
    assert not worker.is_running

    engine.run(cleaning.run())
    assert engine.metrics.compaction.runs.value == 1, "there is nothing more to do"


def test_only_compacted_topics_are_compacted_and_only_when_it_is_enabled(
    engine: Engine, cleaning: Cleaning, setting: Setting
) -> None:
    overwrite(engine, engine.partition("plain", segment_bytes=1024))
    engine.run(cleaning.run())
    overwrite(engine, engine.partition("compacted", **COMPACTED))
    setting.configure(log_cleaner_enable="false")
    engine.run(cleaning.run())
    assert engine.metrics.compaction.runs.value == 0
    setting.configure(log_cleaner_enable="true", log_cleaner_backoff_ms=2500)
    engine.run(cleaning.run())
    assert engine.metrics.compaction.runs.value == 1
    assert cleaning.pause_s() == 2.5


@pytest.mark.parametrize("error", [WorkerFailed("it ended"), DiskFull("no room")])
def test_a_log_whose_compaction_fails_rests_and_the_others_have_their_turn(
    engine: Engine,
    cleaning: Cleaning,
    worker: InlineWorker,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = engine.topic("orders", partitions=2, **COMPACTED)
    overwrite(engine, bad, 14)  # the dirtier one
    overwrite(engine, good)

    def fail(task: str) -> None:
        if task == "clean" and worker.jobs[-1] == bad.log.path:
            raise error

    worker.before = fail
    engine.run(cleaning.run())
    assert worker.jobs == [bad.log.path, good.log.path]
    assert len(values(good.log)) < 6
    assert engine.metrics.compaction.failures.value == 1
    assert "compaction-failed" in caplog.text

    engine.run(cleaning.run())
    assert len(worker.jobs) == 2, "it rests"
    worker.before = lambda _: None
    engine.clock.advance(60_000)
    engine.run(cleaning.run())
    assert worker.jobs[2:] == [bad.log.path]
    assert len(values(bad.log)) < 6


@pytest.mark.parametrize("moment", ["clean", "cleaned", "prepare"])
def test_a_topic_may_be_deleted_at_any_moment_of_its_compaction(
    engine: Engine,
    cleaning: Cleaning,
    worker: InlineWorker,
    moment: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    overwrite(engine, engine.partition("orders", **COMPACTED))

    def delete(task: str) -> None:
        if task == moment:
            engine.replicas.remove_topic("orders")

    worker.before = delete
    engine.run(cleaning.run())
    assert not engine.replicas.is_offline
    assert "compaction-failed" not in caplog.text
    assert engine.metrics.compaction.runs.value == 0


def test_a_topic_may_be_deleted_while_it_is_written_down_how_far_it_is_clean(
    engine: Engine, cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(engine, engine.partition("orders", **COMPACTED))
    finish = Round.finish

    def late(found: Any) -> None:
        engine.replicas.remove_topic("orders")
        finish(found)

    monkeypatch.setattr(Round, "finish", late)
    engine.run(cleaning.run())
    assert not engine.replicas.is_offline


def test_a_log_that_changed_meanwhile_is_left_as_it_is(
    engine: Engine, cleaning: Cleaning, worker: InlineWorker
) -> None:
    partition = engine.partition(**COMPACTED)
    overwrite(engine, partition)

    def trim(task: str) -> None:
        if task == "cleaned":
            partition.delete_records_before(7)

    worker.before = trim
    engine.run(cleaning.run())
    assert engine.metrics.compaction.runs.value == 0
    assert partition.log.start_offset == 7
    assert values(partition.log, 7)[-1] == b"%0300d" % 11


def test_a_fault_of_the_disk_is_not_taken_for_a_failed_compaction(
    engine: Engine, cleaning: Cleaning, worker: InlineWorker
) -> None:
    overwrite(engine, engine.partition(**COMPACTED))

    def broken(_: str) -> None:
        raise StorageFault("the disk is gone")

    worker.before = broken
    with pytest.raises(ExceptionGroup) as group:
        engine.run(cleaning.run())
    assert group.group_contains(StorageFault)
