"""What the driver plans, with a cluster that says what the test wants; no JVM."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import pytest

pytest.importorskip("pyspark")

import pickle
import time

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from penstock.client.connection import Address
from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark import source
from penstock.spark.cluster import Location
from penstock.spark.offsets import DataLoss, Offsets
from penstock.spark.options import OptionError, parse_shape
from penstock.spark.rows import schema_of
from penstock.spark.source import BatchReader, Range, StreamReader

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = ReadAllAvailable()


class FakeCluster:
    """Stands in for every Cluster of a test; its state is the class's."""

    starts: ClassVar[Offsets]
    ends: ClassVar[Offsets]
    published: ClassVar[list[tuple[str, Offsets]]]
    questions: ClassVar[int]
    refuses: ClassVar[bool]
    topic_id: ClassVar[bytes]

    def __init__(self, _: object) -> None:
        pass

    def partitions(
        self, _: object, *, but_for: Iterable[str] = ()
    ) -> dict[TopicPartition, Location]:
        del but_for
        type(self).questions += 1
        return dict.fromkeys(self.ends, Location(Address("h", 1), self.topic_id))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {p: self.starts.get(p, 0) for p in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {p: self.ends[p] for p in partitions}

    def at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        return {p: ms if ms < self.ends[p] else -1 for p, ms in timestamps_ms.items()}

    def publish(self, group: str, offsets: Offsets) -> None:
        if self.refuses:
            raise ClientError("it has members", ErrorCode.NON_EMPTY_GROUP)
        self.published.append((group, dict(offsets)))

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    FakeCluster.starts, FakeCluster.ends = {}, {T0: 100, T1: 50}
    FakeCluster.published, FakeCluster.questions, FakeCluster.refuses = [], 0, False
    FakeCluster.topic_id = b"1" * 16
    monkeypatch.setattr(source, "Cluster", FakeCluster)
    return FakeCluster


def stream(**options: str) -> StreamReader:
    given = {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}
    return StreamReader(given, schema_of(parse_shape(given)))


def batch(**options: str) -> list[tuple[TopicPartition, int, int]]:
    given = {**BASE, **options}
    planned = BatchReader(given, schema_of(parse_shape(given))).partitions()
    assert all(isinstance(one, Range) for one in planned)
    return [tuple(one.range) for one in planned]


def test_a_batch_is_planned_between_its_ends(cluster: type[FakeCluster]) -> None:
    cluster.starts = {T0: 10}

    assert batch() == [(T0, 10, 100), (T1, 0, 50)]
    assert batch(startingTimestamp="30", endingTimestamp="70") == [(T0, 30, 70), (T1, 30, 50)]


def test_a_start_without_a_record_is_an_error_or_the_end() -> None:
    with pytest.raises(OptionError, match="t-1 has no record from timestamp 60 on"):
        batch(startingTimestamp="60")
    assert batch(startingTimestamp="60", startingOffsetsByTimestampStrategy="latest") == [
        (T0, 60, 100)
    ]


def test_a_batch_that_starts_past_the_end_is_a_loss() -> None:
    past = {"startingOffsets": '{"t":{"0":500,"1":0}}'}

    with pytest.raises(DataLoss, match="t-0 now ends at offset 100"):
        batch(**past)
    assert batch(**past, failOnDataLoss="false") == [(T1, 0, 50)]


def test_readers_travel_to_tasks_before_anything_is_open() -> None:
    pickle.loads(pickle.dumps(stream(maxOffsetsPerTrigger="5")))


def test_a_stream_moves_from_its_start_to_what_there_is(cluster: type[FakeCluster]) -> None:
    reader = stream()
    start = reader.initialOffset()

    end = reader.latestOffset(start, ALL)
    cluster.ends = {T0: 120, T1: 50}

    assert start == {"t": {"0": 0, "1": 0}}
    assert end == {"t": {"0": 100, "1": 50}}
    assert [one.range[1:] for one in reader.partitions(start, end)] == [(0, 100), (0, 50)]
    assert reader.partitions(end, end) == []
    later = reader.latestOffset(end, ALL)
    assert [one.range for one in reader.partitions(end, later)] == [(T0, 100, 120)]
    assert reader.reportLatestOffset() == later


def test_a_start_at_the_end_stays_where_it_was_when_it_is_asked_for_again(
    cluster: type[FakeCluster],
) -> None:
    reader = stream(startingOffsets="latest")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.ends = {T0: 120, T1: 70}

    assert reader.initialOffset() == first
    assert reader.partitions(reader.initialOffset(), first) == []
    assert stream(startingOffsets="latest").initialOffset() == {"t": {"0": 120, "1": 70}}


def test_the_limit_that_is_told_is_the_one_that_is_kept() -> None:
    assert stream().getDefaultReadLimit() == ReadAllAvailable()
    assert stream(maxOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(9)
    assert stream(minOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMinRows(9)
    reader = stream(maxOffsetsPerTrigger="15")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(15)) == {"t": {"0": 10, "1": 5}}
    assert reader.latestOffset(start, ALL) == {"t": {"0": 100, "1": 50}}


def test_too_little_waits_until_the_delay_is_over(
    cluster: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    reader = stream(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first == {"t": {"0": 100, "1": 50}}

    cluster.ends = {T0: 105, T1: 50}
    assert reader.latestOffset(first, limit) == first
    now_s += 29
    assert reader.latestOffset(first, limit) == first
    now_s += 1
    second = reader.latestOffset(first, limit)
    assert second == {"t": {"0": 105, "1": 50}}
    cluster.ends = {T0: 115, T1: 50}
    assert reader.latestOffset(second, limit) == {"t": {"0": 115, "1": 50}}


def test_a_query_over_what_is_available_has_an_end(cluster: type[FakeCluster]) -> None:
    reader = stream(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    seen = [reader.initialOffset()]
    while len(seen) < 2 or seen[-1] != seen[-2]:
        seen.append(reader.latestOffset(seen[-1], limit))
        cluster.ends = {p: end + 1000 for p, end in cluster.ends.items()}

    assert seen[-1] == {"t": {"0": 100, "1": 50}}


def test_a_new_partition_is_read_from_its_start(cluster: type[FakeCluster]) -> None:
    reader = stream()
    start = {"t": {"0": 90}}

    end = reader.latestOffset(start, ALL)

    assert [one.range for one in reader.partitions(start, end)] == [(T0, 90, 100), (T1, 0, 50)]
    cluster.starts = {T1: 7}
    with pytest.raises(DataLoss, match="new partition t-1 starts at offset 7, not 0"):
        reader.partitions(start, end)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({"t": {"0": 500, "1": 0}}, "t-0 now ends at offset 100"),
        ({"t": {"0": 0, "1": 0, "2": 5}}, "t-2 is gone"),
    ],
)
def test_a_loss_is_found_before_the_checkpoint_moves(
    start: dict[str, dict[str, int]], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLoss, match=says):
        stream().latestOffset(start, ALL)

    lenient = stream(failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    lenient.partitions(start, end)
    assert says in caplog.text


def test_progress_is_published_once_for_each_place(cluster: type[FakeCluster]) -> None:
    reader = stream(groupId="g")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.commit(end)
    reader.latestOffset(end, ALL)

    assert cluster.published == [("g", {T0: 0, T1: 0}), ("g", {T0: 100, T1: 50})]


def test_progress_that_cannot_be_published_does_not_end_the_query(
    cluster: type[FakeCluster], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuses = True

    stream(groupId="g").commit({"t": {"0": 5}})

    assert "progress-not-published group=g error=it has members" in caplog.text


def test_without_a_name_nothing_is_published(cluster: type[FakeCluster]) -> None:
    stream().commit({"t": {"0": 5}})

    assert cluster.published == []


def test_partitions_are_asked_for_again_when_the_answer_is_old(
    cluster: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    reader = stream(partition__metadata__cache__ttl__ms="5000")
    for _ in range(3):
        reader.latestOffset({"t": {"0": 0, "1": 0}}, ALL)
    assert cluster.questions == 1
    now_s += 5
    reader.latestOffset({"t": {"0": 0, "1": 0}}, ALL)
    assert cluster.questions == 2


def test_options_without_effect_are_told(caplog: pytest.LogCaptureFixture) -> None:
    stream(kafka__max__poll__records="5")

    assert "option-without-effect option=kafka.max.poll.records" in caplog.text


def test_a_topic_that_was_made_again_is_a_loss_even_if_it_has_grown(
    cluster: type[FakeCluster],
) -> None:
    reader = stream()
    end = reader.latestOffset({"t": {"0": 0, "1": 0}}, ALL)
    cluster.topic_id = b"2" * 16
    cluster.ends = {T0: 1000, T1: 1000}

    with pytest.raises(DataLoss, match="topic 't' was deleted and created again while it was read"):
        reader.latestOffset(end, ALL)
