import pytest

from penstock.broker.maintenance import scrubbing as scrubbing_module
from penstock.broker.maintenance.scrubbing import Scrubbing
from penstock.broker.partitions.partition import Partition
from penstock.model.errors import BrokerError, ErrorCode
from tests.support.engine import Engine
from tests.unit.broker.maintenance.test_housekeeping import Setting, fill
from tests.unit.broker.partitions.test_partition import ALL, UNCOMMITTED
from tests.unit.storage.logs import flip, paths


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def scrubbing(engine: Engine, setting: Setting) -> Scrubbing:
    return Scrubbing(engine.replicas, setting)  # type: ignore[arg-type] # stands for a cluster


@pytest.fixture
def partition(engine: Engine) -> Partition:
    """Three closed segments and the active one."""
    made = engine.partition(segment_bytes=1024)
    fill(engine, made, 7)
    assert len(made.log.segments) == 4
    return made


def run(engine: Engine, scrubbing: Scrubbing, times: int) -> None:
    for _ in range(times):
        engine.run(scrubbing.run())


def test_every_closed_segment_is_read_again_and_no_other(
    engine: Engine, scrubbing: Scrubbing, partition: Partition
) -> None:
    run(engine, scrubbing, 2)  # the first finds what there is to do
    metrics = engine.metrics.scrub
    closed_bytes = sum(segment.size_bytes for segment in partition.log.segments[:-1])
    assert (metrics.segments.value, metrics.bytes.value) == (3, closed_bytes)
    assert metrics.damaged.value == 0


def test_a_second_is_no_more_than_its_share_of_bytes(
    engine: Engine, scrubbing: Scrubbing, partition: Partition, setting: Setting
) -> None:
    setting.configure(penstock_scrub_bytes_per_second=400)
    run(engine, scrubbing, 2)
    first = partition.log.segments[0].size_bytes
    assert 400 <= engine.metrics.scrub.bytes.value <= first
    before = engine.metrics.scrub.bytes.value
    run(engine, scrubbing, 1)
    assert before < engine.metrics.scrub.bytes.value <= before + 400 + first


def test_nothing_is_read_when_it_is_off(
    engine: Engine, scrubbing: Scrubbing, partition: Partition, setting: Setting
) -> None:
    del partition
    setting.configure(penstock_scrub_bytes_per_second=0)
    run(engine, scrubbing, 5)
    assert engine.metrics.scrub.bytes.value == 0


def test_damage_stops_that_partition_and_the_search_goes_on(
    engine: Engine, scrubbing: Scrubbing, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    other = engine.partition("other", segment_bytes=1024)
    fill(engine, other, 7)
    flip(paths(partition.log)[1], 200)
    run(engine, scrubbing, 2)
    with pytest.raises(BrokerError) as refused:
        partition.read(0, ALL, UNCOMMITTED)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert engine.metrics.scrub.damaged.value == 1
    assert "segment-damaged partition=orders-0" in caplog.text
    assert engine.metrics.scrub.segments.value == 1 + 3, "one before the damage, three elsewhere"
    assert not engine.replicas.is_offline
    assert other.read(0, ALL, UNCOMMITTED).size_bytes > 0


def test_a_topic_deleted_in_the_middle_is_no_damage(
    engine: Engine, scrubbing: Scrubbing, partition: Partition, setting: Setting
) -> None:
    setting.configure(penstock_scrub_bytes_per_second=400)
    run(engine, scrubbing, 2)
    engine.replicas.remove_topic(partition.topic.name)
    run(engine, scrubbing, 5)
    assert engine.metrics.scrub.damaged.value == 0
    assert not engine.replicas.is_offline


def test_a_log_is_told_of_each_segment_that_was_found_whole(
    engine: Engine,
    scrubbing: Scrubbing,
    partition: Partition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    monkeypatch.setattr(
        type(partition.log), "scrubbed", lambda _, scrub: told.append(scrub.base_offset)
    )
    run(engine, scrubbing, 2)
    assert told == [segment.base_offset for segment in partition.log.segments[:-1]]


def test_a_new_round_begins_after_the_last_segment(
    engine: Engine, scrubbing: Scrubbing, partition: Partition
) -> None:
    del partition
    run(engine, scrubbing, 2)
    run(engine, scrubbing, 1)
    assert engine.metrics.scrub.segments.value == 6


def test_only_so_many_logs_are_looked_at_before_others_have_their_turn(
    engine: Engine, scrubbing: Scrubbing, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing_module, "_LOGS_A_TURN", 1)
    fill(engine, engine.partition("other", segment_bytes=1024), 7)
    run(engine, scrubbing, 2)
    assert engine.metrics.scrub.segments.value == len(partition.log.segments) - 1
    run(engine, scrubbing, 1)
    assert engine.metrics.scrub.segments.value == 2 * (len(partition.log.segments) - 1)
