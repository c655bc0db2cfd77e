"""Balance, hot partitions and keys, and disks that retention will fill."""

from typing import Any

from penstock.client.reassignments import Disk, Member, Members, Place
from penstock.doctor.cluster_facts import ClusterFacts, KeySample
from penstock.doctor.findings import Found, examine
from penstock.doctor.load_checks import LOAD_CHECKS, hot_partitions, projected_bytes, shown_key
from penstock.model.ids import TopicPartition
from tests.support.fake_cluster import at_rest

RULES = {check.id: check for check in LOAD_CHECKS}
GIB = 1 << 30
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
THREE = Members("c", 1, tuple(Member(n, "h", 1, None, True) for n in (1, 2, 3)))


def t(index: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, index)


def cluster(**more: Any) -> ClusterFacts:
    given: dict[str, Any] = {"places": at_rest([1, 2], [2, 3], [3, 1]), **more}
    return ClusterFacts(THREE, now_ms=NOW_MS, **given)


def found(name: str, facts: ClusterFacts) -> list[Found]:
    return list(RULES[name].rule(facts))


def one(name: str, facts: ClusterFacts) -> Found:
    [row] = found(name, facts)
    return row


def topic(**values: str) -> dict[str, dict[str, str]]:
    settings = {"cleanup.policy": "delete", "retention.bytes": "-1", "segment.bytes": "1000"}
    return {"t": settings | {name.replace("_", "."): value for name, value in values.items()}}


def test_a_cluster_that_is_well() -> None:
    assert examine(LOAD_CHECKS, cluster(), "cluster") == []
    assert examine(LOAD_CHECKS, cluster(places={}), "cluster") == []


def test_uneven_leaders() -> None:
    places = {t(index): Place(1, (1, 2, 3), (1, 2, 3)) for index in range(9)}
    row = one("leaders-uneven", cluster(places=places))
    assert "broker 1 has 9; the even share is 3" in row.fact
    assert row.subjects == ["1"]
    assert found("replicas-uneven", cluster(places=places)) == []


def test_a_few_leaders_more_are_no_imbalance() -> None:
    assert found("leaders-uneven", cluster(places=at_rest([1, 2], [1, 2], [1, 3], [2, 3]))) == []


def test_a_share_of_a_fifth_more_is_even() -> None:
    leaders = [1] * 120 + [2] * 90 + [3] * 90
    places = {t(index): Place(n, (n,), (n,)) for index, n in enumerate(leaders)}
    assert found("leaders-uneven", cluster(places=places)) == []
    places[t(89 + 120)] = Place(1, (1,), (1,))
    assert one("leaders-uneven", cluster(places=places)).subjects == ["1"]


def test_uneven_replicas_without_those_that_leave() -> None:
    places = {t(index): Place(1, (1, 2), (1, 2)) for index in range(9)}
    assert one("replicas-uneven", cluster(places=places)).subjects == ["1", "2"]
    leaving = {t(index): Place(2, (2, 3, 1), (1, 2, 3), removing=(1,)) for index in range(9)}
    assert one("replicas-uneven", cluster(places=leaving)).subjects == ["2", "3"]


def test_uneven_bytes_name_the_largest_topic() -> None:
    small, large = Disk({t(0): GIB}, 9, 10), Disk({t(0, "big"): 9 * GIB, t(1): 1}, 9, 10)
    row = one("bytes-uneven", cluster(disks={1: small, 2: large, 3: small}))
    assert "broker 2 has 9.0 GiB" in row.fact
    assert "--topic big" in row.remedy
    assert found("bytes-uneven", cluster(disks={1: small, 2: small})) == []
    tiny = {1: Disk({t(0): 10}, 9, 10), 2: Disk({t(0): 1}, 9, 10)}
    assert found("bytes-uneven", cluster(disks=tiny)) == []


# Hot partitions ----------------------------------------------------------------------------------


def test_a_partition_with_more_than_twice_its_share_is_hot() -> None:
    rates = {t(0): 900.0, t(1): 50.0, t(2): 50.0}
    assert hot_partitions(rates) == [(t(0), 2.7)]
    assert (
        "t-0 (900 messages/s, 2.7 times its share)"
        in one("hot-partition", cluster(rates=rates)).fact
    )
    assert hot_partitions({t(0): 600.0, t(1): 200.0, t(2): 200.0}) == []


def test_a_quiet_topic_has_no_hot_partition() -> None:
    assert hot_partitions({t(0): 90.0, t(1): 0.0, t(2): 0.0}) == []
    assert hot_partitions({t(0): 5000.0}) == []
    assert found("hot-partition", cluster(rates={})) == []


def test_the_hottest_comes_first() -> None:
    rates = {t(n, "a"): 0.0 for n in range(4)} | {t(n, "b"): 0.0 for n in range(4)}
    rates |= {t(0, "a"): 200.0, t(3, "b"): 300.0}
    assert [at for at, _ in hot_partitions(rates)] == [t(3, "b"), t(0, "a")]


def test_a_hot_key() -> None:
    sample = KeySample(1000, ((b"customer-7", 510), (b"x", 490)))
    row = one("hot-key", cluster(keys={t(0): sample}))
    assert row.fact == "key 'customer-7' is 51 % of 1,000 sampled messages of t-0"
    assert one("hot-key", cluster(keys={t(0): KeySample(100, ((b"a", 99),))}))
    for harmless in (
        KeySample(1000, ((b"a", 500), (b"b", 500))),
        KeySample(1000, ((None, 1000),)),
        KeySample(99, ((b"a", 99),)),
        KeySample(0, ()),
    ):
        assert found("hot-key", cluster(keys={t(0): harmless})) == []


def test_keys_are_shown_short_and_printable() -> None:
    assert shown_key(b"k") == "'k'"
    assert shown_key(b"\x1b[31m\xff") == "'�[31m�'"
    assert len(shown_key(b"x" * 10_000)) == 42


# Disks -------------------------------------------------------------------------------------------


def test_disks_of_brokers() -> None:
    disks = {1: Disk({}, 19, 100), 2: Disk({}, 4, 100), 3: Disk({}, 50, 100)}
    facts = cluster(disks=disks)
    assert one("broker-disk-filling", facts).subjects == ["broker 1 (81 %)"]
    assert one("broker-disk-full", facts).subjects == ["broker 2 (96 %)"]
    unknown = cluster(disks={1: Disk({}, -1, -1), 2: Disk({}, -1, 100), 3: Disk({}, 0, 0)})
    assert found("broker-disk-filling", unknown) == found("broker-disk-full", unknown) == []


def growing(usable_bytes: int, **settings: str) -> ClusterFacts:
    """A log of 1,000 bytes that is one hour old."""
    return cluster(
        topics=topic(**settings),
        disks={1: Disk({t(0): 1000}, usable_bytes, 10**6)},
        first_timestamps_ms={t(0): NOW_MS - HOUR_MS},
    )


def test_retention_that_does_not_fit() -> None:
    facts = growing(8999, retention_ms=str(10 * HOUR_MS))
    assert projected_bytes(facts, t(0), 1000) == 10_000
    row = one("retention-too-long", facts)
    assert row.fact.startswith("broker 1 needs 8.8 KiB more")
    assert "penstock topic alter t -c retention.ms" in row.remedy
    assert found("retention-too-long", growing(9000, retention_ms=str(10 * HOUR_MS))) == []


def test_retention_by_size_ends_growth() -> None:
    facts = growing(1500, retention_ms=str(10 * HOUR_MS), retention_bytes="1500")
    assert projected_bytes(facts, t(0), 1000) == 2500
    assert found("retention-too-long", facts) == []
    by_size_alone = growing(1499, retention_ms="-1", retention_bytes="1500")
    assert one("retention-too-long", by_size_alone)


def test_growth_that_is_not_known_is_not_judged() -> None:
    long_ms = str(10**6 * HOUR_MS)
    for facts in (
        growing(0, retention_ms=long_ms, cleanup_policy="compact"),
        growing(0, retention_ms="-1"),
        growing(-1, retention_ms=long_ms),
        cluster(topics=topic(retention_ms=long_ms), disks={1: Disk({t(0): 1000}, 0, 10)}),
        cluster(
            topics=topic(retention_ms=long_ms),
            disks={1: Disk({t(0): 1000}, 0, 10)},
            first_timestamps_ms={t(0): NOW_MS - 599_999},
        ),
    ):
        assert found("retention-too-long", facts) == []


def test_retention_without_limit() -> None:
    assert one("retention-unlimited", cluster(topics=topic(retention_ms="-1"))).subjects == ["t"]
    for settings in (
        topic(retention_ms="1000"),
        topic(retention_ms="-1", retention_bytes="5"),
        topic(retention_ms="-1", cleanup_policy="compact"),
        {"__consumer_offsets": topic(retention_ms="-1")["t"]},
    ):
        assert found("retention-unlimited", cluster(topics=settings)) == []


def test_segments_that_outlive_their_retention() -> None:
    week = str(168 * HOUR_MS)
    row = one(
        "segment-outlives-retention",
        cluster(topics=topic(retention_ms=str(HOUR_MS), segment_ms=week)),
    )
    assert row.fact.endswith("(t: 7 d and 1 h)")
    assert row.remedy.endswith("segment.ms=900000")
    for settings in (
        topic(retention_ms=week, segment_ms=week),
        topic(retention_ms="-1", segment_ms=week),
        topic(retention_ms=str(HOUR_MS), segment_ms=week, cleanup_policy="compact"),
    ):
        assert found("segment-outlives-retention", cluster(topics=settings)) == []
