"""Facts of a cluster are gathered in stages: one that fails leaves the others, and large clusters are sampled."""

import asyncio
from typing import Any

import pytest

from penstock.client import features
from penstock.client.pool import Pool
from penstock.client.reassignments import Place
from penstock.doctor import cluster_reader, sampling
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.model.ids import TopicPartition
from penstock.records.batch import BatchHeader, parse_header
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from tests.support.fake_cluster import SIZE_BYTES, FakeCluster, at_rest

NOW_MS = 1_700_000_000_000


def gathered(cluster: FakeCluster, seconds: float = 0.0) -> ClusterFacts:
    async def run(where: str) -> ClusterFacts:
        async with Pool(where) as pool:
            return await cluster_reader.gather(pool, now_ms=NOW_MS, seconds=seconds)

    with cluster.served() as where:
        return asyncio.run(run(where))


def test_what_a_cluster_answers_is_known_and_the_rest_is_named() -> None:
    """The scripted cluster knows neither offsets nor groups."""
    settings = {
        (2, "t"): {"retention.ms": "5", "unclean.leader.election.enable": "true"},
        (4, "1"): {"penstock.http": "off"},
    }
    facts = gathered(FakeCluster(at_rest([1, 2], [2, 1]), [1, 2], settings=settings), 0.01)
    assert facts.topics["t"]["retention.ms"] == "5"
    assert facts.topics["t"]["min.insync.replicas"] == "2"
    assert facts.brokers[1]["penstock.http"] == "off"
    assert facts.is_penstock
    assert facts.disks[2].sizes_bytes == {TopicPartition("t", n): SIZE_BYTES for n in (0, 1)}
    assert facts.features is not None
    assert facts.groups == ()
    named = [name.partition(":")[0] for name in facts.unknown]
    assert named == ["ages of logs", "rates of partitions", "groups"]


def test_large_clusters_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "MOST_TOPICS", 3)
    monkeypatch.setattr(cluster_reader, "MOST_SIZES", 4)
    monkeypatch.setattr(cluster_reader, "_TOPICS_AT_ONCE", 2)
    places = {TopicPartition(f"t{number}", 0): Place(1, (1,), (1,)) for number in range(9)}
    places |= at_rest([1], topic="__consumer_offsets")
    facts = gathered(FakeCluster(places, [1]))
    assert list(facts.topics) == ["__consumer_offsets", "t0", "t3", "t6"]
    assert "settings of topics: a sample of 3 of 9" in facts.unknown
    assert "sizes of logs: a sample of 4 of 10" in facts.unknown


def test_a_stage_that_takes_too_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(cluster_reader, "STAGE_S", 0.05)
    monkeypatch.setattr(features, "describe", slow)
    facts = gathered(FakeCluster(at_rest([1]), [1]))
    assert facts.features is None
    assert "levels of features: not all of it within 0 s" in facts.unknown


def test_a_broker_that_cannot_be_reached_is_told_from_one_that_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All brokers of the scripted cluster are at one address, so broker 2 gets one of its own."""
    real = Pool._address

    async def address(pool: Pool, broker_id: int, deadline: Any) -> Any:
        found = await real(pool, broker_id, deadline)
        return found._replace(port=1) if broker_id == 2 else found

    monkeypatch.setattr(Pool, "_address", address)
    facts = gathered(FakeCluster(at_rest([1, 2], [2, 1]), [1, 2], stopped=[3]))
    assert list(facts.unreachable) == [2]
    assert list(facts.brokers) == list(facts.disks) == [1]
    assert "levels of features: not every broker answers" in facts.unknown


def test_topics_that_are_out_of_sync_are_not_left_to_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_reader, "MOST_TOPICS", 2)
    places = {TopicPartition(f"t{number}", 0): Place(1, (1, 2), (1, 2)) for number in range(9)}
    places[TopicPartition("t7", 0)] = Place(1, (1, 2), (1,))
    facts = gathered(FakeCluster(places, [1, 2]))
    assert list(facts.topics) == ["t7", "t0", "t4"]
    assert [problem.problem for problem in facts.problems] == ["under min ISR"]


# Samples -----------------------------------------------------------------------------------------


def batch(*keys: bytes | None, codec: Codec = Codec.NONE, control: bool = False) -> tuple[BatchHeader, memoryview]:  # fmt: skip
    records = [Record(n, 1000 + n, key, b"v") for n, key in enumerate(keys)]
    data = memoryview(build_batch(records, codec=codec, control=control))
    return parse_header(data), data


def test_keys_are_counted_up_to_a_bound() -> None:
    batches = [batch(b"a", b"a", None), batch(b"b", b"a", codec=Codec.LZ4)]
    assert sampling.count_keys(batches, 100) == (5, ((b"a", 3), (None, 1), (b"b", 1)))
    assert sampling.count_keys(batches, 4) == (4, ((b"a", 2), (None, 1), (b"b", 1)))
    assert sampling.count_keys([], 4) == (0, ())


def test_batches_without_messages_and_broken_ones_are_left_out() -> None:
    header, data = batch(b"a")
    broken = bytearray(data)
    broken[-3:] = b"\xff\xff\xff"
    rows = [batch(b"marker", control=True), (header, memoryview(broken)), batch(b"b")]
    assert sampling.count_keys(rows, 100) == (1, ((b"b", 1),))


def test_the_age_is_that_of_the_newest_message_of_the_first_batch() -> None:
    assert sampling.newest_of_first_batch([batch(b"a", b"b"), batch(b"c")]) == 1001
    assert sampling.newest_of_first_batch([]) is None
    header, data = batch(b"a")
    assert sampling.newest_of_first_batch([(header._replace(max_timestamp_ms=-1), data)]) is None


def test_samples_are_spread_evenly() -> None:
    assert sampling.evenly(range(10), 5) == [0, 2, 4, 6, 8]
    assert sampling.evenly([1, 2], 5) == [1, 2]
    assert len(sampling.evenly(range(100_001), 5000)) == 5000
