"""What was measured of a cluster becomes the inputs of a plan, and what could not be measured is told."""

from dataclasses import replace

import pytest

from penstock.cli.arguments import CommandError
from penstock.cli.plan_cluster import inputs_of
from penstock.client.traffic import ClusterTraffic, TopicTraffic
from penstock.planner.planning import make_plan

DAY_MS = 86_400_000
ORDERS = TopicTraffic(
    name="orders",
    partitions=6,
    replication_factor=3,
    messages_s=1000.0,
    size_bytes=5_000_000_000,
    message_bytes=500.0,
    retention_ms=2 * DAY_MS,
    retention_bytes=-1,
    segment_bytes=2**30,
    min_insync_replicas=2,
    deletes=True,
    groups=2,
    members=4,
)


def traffic(*topics: TopicTraffic, **changes: object) -> ClusterTraffic:
    made = ClusterTraffic(3, 3, 5.0, topics, 0, 0)
    return made._replace(**changes)  # type: ignore[arg-type]  # its own fields


def test_a_topic_is_planned_as_it_was_measured() -> None:
    inputs = inputs_of(traffic(ORDERS))
    [topic] = inputs.topics
    assert (topic.rate, topic.message, topic.framed) == (1000, 500, False)
    assert (topic.replication_factor, topic.min_insync_replicas, topic.partitions) == (3, 2, 6)
    assert (topic.groups, topic.members, topic.retention, topic.kept) == (2, 4, 172_800, 0)
    assert inputs.cluster.zones == 3
    assert make_plan(inputs).size.totals.kept == 1000 * 500 * 172_800


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, 0),
        ({"deletes": False}, 5e9),
        ({"retention_ms": -1}, 5e9),
        ({"retention_ms": 2**63 - 1}, 5e9),
        ({"retention_bytes": 10**9}, 6e9),
        ({"retention_bytes": 10**12}, 1000 * 500 * 172_800),
        ({"retention_ms": -1, "retention_bytes": 10**6}, 6e6),
        ({"deletes": False, "size_bytes": 0}, 1),
    ],
)
def test_what_is_kept_follows_retention_where_there_is_one(
    changes: dict[str, int], kept: float
) -> None:
    inputs = inputs_of(traffic(ORDERS._replace(**changes)))  # type: ignore[arg-type]  # its own fields
    assert inputs.topics[0].kept == kept
    assert make_plan(inputs).size.fits


def test_topics_that_nobody_writes_to_are_one_line() -> None:
    idle = ORDERS._replace(messages_s=0.0, size_bytes=7, partitions=2)
    inputs = inputs_of(traffic(ORDERS, idle._replace(name="a"), idle._replace(name="b")))
    assert [topic.name for topic in inputs.topics] == ["orders", "2 idle topics, RF 3"]
    both = inputs.topics[1]
    assert (both.partitions, both.kept, both.rate, both.groups) == (4, 14, 0, 0)
    assert make_plan(inputs).size.partitions == (6, 4)


def test_a_cluster_without_traffic_is_told() -> None:
    with pytest.raises(CommandError, match="no messages were written in 5 s; measure longer"):
        inputs_of(traffic(ORDERS._replace(messages_s=0.0)))
    with pytest.raises(CommandError, match="no messages were written"):
        inputs_of(traffic())


def test_what_could_not_be_measured_is_told() -> None:
    odd = ORDERS._replace(name="odd", message_bytes=None, retention_ms=-1)
    inputs = inputs_of(traffic(ORDERS, odd, without_leader=1, groups_left_out=2))
    notes = " ".join(inputs.notes)
    assert "Retention does not bound odd: the size of today was taken." in notes
    assert "The message size of odd could not be measured: 1 KB was taken." in notes
    assert "1 partition without a leader were left out" in notes
    assert "2 groups could not be read" in notes


def test_more_min_insync_replicas_than_replicas_do_not_stop_a_plan() -> None:
    inputs = inputs_of(traffic(ORDERS._replace(replication_factor=1)))
    assert inputs.topics[0].min_insync_replicas == 1
    assert make_plan(replace(inputs)).size.fits
