"""What one broker or one rack would cost is reported, and what is not well now as `cluster health` says it."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.client.reassignments import Member, Members, Place, Places
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Finding, Found, examine
from penstock.doctor.replication_checks import REPLICATION_CHECKS
from penstock.model.ids import TopicPartition
from tests.support.fake_cluster import at_rest

RULES = {check.id: check for check in REPLICATION_CHECKS}
RF3 = at_rest([1, 2, 3], topic="orders")


def members(
    racks: Sequence[str | None] = (None, None, None), stopped: Sequence[int] = ()
) -> Members:
    rows = [
        Member(broker_id, "h", 1, rack, broker_id not in stopped)
        for broker_id, rack in enumerate(racks, 1)
    ]
    return Members("c", 1, tuple(rows))


def cluster(places: Places, *, racks: Sequence[str | None] = (None, None, None), stopped: Sequence[int] = (), **more: Any) -> ClusterFacts:  # fmt: skip
    return ClusterFacts(members(racks, stopped), places, 0, **more)


def found(name: str, facts: ClusterFacts) -> list[Found]:
    return list(RULES[name].rule(facts))


def one(name: str, facts: ClusterFacts) -> Found:
    [row] = found(name, facts)
    return row


def settings(topic: str, **values: str) -> dict[str, dict[str, str]]:
    return {topic: {name.replace("_", "."): value for name, value in values.items()}}


def test_a_cluster_that_is_well() -> None:
    facts = cluster(RF3, topics=settings("orders", min_insync_replicas="2"))
    assert examine(REPLICATION_CHECKS, facts, "cluster") == []


# As `penstock cluster health` --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("no-leader", Place(-1, (1, 2, 3), ())),
        ("under-min-isr", Place(1, (1, 2, 3), (1,))),
        ("offline-replica", Place(1, (1, 2, 3), (1, 2, 3), offline=(2,))),
        ("under-replicated", Place(1, (1, 2, 3), (1, 2))),
    ],
)
def test_each_diagnosis_is_a_finding_of_its_own(name: str, place: Place) -> None:
    facts = cluster({TopicPartition("t", 0): place}, topics=settings("t", min_insync_replicas="2"))
    findings: list[Finding] = examine(REPLICATION_CHECKS, facts, "cluster")
    assert [finding.id for finding in findings] == [name]
    assert findings[0].remedy == facts.problems[0].remedy
    assert findings[0].subjects == ("t-0",)


def test_partitions_with_one_remedy_are_one_finding_and_bounded_in_text() -> None:
    places = {TopicPartition("t", index): Place(1, (1, 3), (1,)) for index in range(5000)}
    row = one("under-replicated", cluster(places, stopped=[3]))
    assert row.fact.endswith("t-4 and 4,995 more")
    assert row.remedy.startswith("start broker 3")
    assert len(row.subjects) == 5000
    [finding] = examine([RULES["under-replicated"]], cluster(places, stopped=[3]), "cluster")
    assert (len(finding.subjects), finding.subject_count) == (100, 5000)


def test_many_remedies_become_a_few() -> None:
    racks = [None] * 60
    places = {TopicPartition("t", index): Place(1, (1, index), (1,)) for index in range(2, 40)}
    rows = found("under-replicated", cluster(places, racks=racks, stopped=range(2, 40)))
    assert len(rows) == 6
    assert rows[-1].remedy == "see: penstock cluster health"
    assert sum(len(row.subjects) for row in rows) == 38


def test_a_broker_that_does_not_run() -> None:
    row = one("broker-missing", cluster(RF3, stopped=[3]))
    assert row.fact == "broker 3 is not running"
    assert "decommission 3 --unregister" in row.remedy
    assert (
        one("broker-missing", cluster(RF3, stopped=[2, 3])).fact == "brokers 2, 3 are not running"
    )
    assert found("broker-missing", cluster(RF3)) == []


def test_a_broker_that_cannot_be_reached() -> None:
    facts = cluster(RF3, unreachable={2: "connection refused"})
    assert "broker 2 runs, and cannot be reached" in one("broker-unreachable", facts).fact
    assert found("broker-unreachable", cluster(RF3)) == []


def test_no_controller() -> None:
    facts = ClusterFacts(members()._replace(controller_id=None), RF3, 0)
    assert one("no-controller", facts)
    assert found("no-controller", cluster(RF3)) == []


# Copies ------------------------------------------------------------------------------------------


def test_one_broker_is_reported_once_and_its_topics_are_not() -> None:
    facts = cluster(at_rest([1], [1]), racks=[None], topics=settings("t", min_insync_replicas="1"))
    assert [finding.id for finding in examine(REPLICATION_CHECKS, facts, "c")] == ["single-broker"]
    assert found("single-broker", cluster(RF3)) == []


def test_one_replica() -> None:
    row = one("one-replica", cluster({**at_rest([1], [1, 2]), **RF3}))
    assert row.fact == "1 topic with replication factor 1: t"
    assert "penstock reassign plan --topic t --replication-factor 3" in row.remedy
    assert found("one-replica", cluster(RF3)) == []


def test_a_replica_that_is_being_added_does_not_count_yet() -> None:
    moving = {TopicPartition("t", 0): Place(1, (1, 2), (1,), adding=(2,))}
    assert one("one-replica", cluster(moving))


def test_a_min_isr_of_all_replicas() -> None:
    facts = cluster(RF3, topics=settings("orders", min_insync_replicas="3"))
    assert one("min-isr-all", facts).remedy.endswith("orders -c min.insync.replicas=2")
    pair = cluster(at_rest([1, 2]), topics=settings("t", min_insync_replicas="2"))
    assert "--replication-factor 3" in one("min-isr-all", pair).remedy
    fine = cluster(RF3, topics=settings("orders", min_insync_replicas="2"))
    assert found("min-isr-all", fine) == found("min-isr-all", cluster(RF3)) == []


def test_a_min_isr_of_one() -> None:
    facts = cluster(RF3, topics=settings("orders", min_insync_replicas="1"))
    assert (
        one("min-isr-one", facts).remedy == "penstock topic alter orders -c min.insync.replicas=2"
    )
    pair = cluster(at_rest([1, 2]), topics=settings("t", min_insync_replicas="1"))
    assert "--replication-factor 3" in one("min-isr-one", pair).remedy
    odd = cluster(RF3, topics=settings("orders", min_insync_replicas="many"))
    assert found("min-isr-one", odd) == []


def test_unclean_elections() -> None:
    facts = cluster(RF3, topics=settings("orders", unclean_leader_election_enable="true"))
    assert one("unclean-elections", facts).subjects == ["orders"]
    fine = cluster(RF3, topics=settings("orders", unclean_leader_election_enable="false"))
    assert found("unclean-elections", fine) == []


def test_internal_topics_want_three_copies() -> None:
    offsets = at_rest([1], [1, 2], topic="__consumer_offsets")
    assert one("internal-replicas", cluster(offsets)).fact.startswith(
        "__consumer_offsets has 1 rep"
    )
    assert found("one-replica", cluster(offsets)) == []
    both = at_rest([1, 2], topic="__consumer_offsets")
    assert found("internal-replicas", cluster(both, racks=[None, None])) == []


def test_internal_topics_are_compacted() -> None:
    facts = cluster(RF3, topics=settings("__consumer_offsets", cleanup_policy="delete"))
    assert one("internal-not-compacted", facts)
    fine = cluster(RF3, topics=settings("__consumer_offsets", cleanup_policy="compact"))
    assert found("internal-not-compacted", fine) == []


# Racks -------------------------------------------------------------------------------------------


def test_some_brokers_without_a_rack() -> None:
    assert one("rack-unset", cluster(RF3, racks=["a", None, "b"])).subjects == ["2"]
    assert found("rack-unset", cluster(RF3)) == []
    assert found("rack-unset", cluster(RF3, racks=["a", "b", "c"])) == []


def test_all_replicas_in_one_rack() -> None:
    racks = ["a", "a", "b"]
    assert one("one-rack", cluster(at_rest([1, 2], [1, 3]), racks=racks)).subjects == ["t-0"]
    assert found("one-rack", cluster(at_rest([1], [1, 3]), racks=racks)) == []
    assert found("one-rack", cluster(at_rest([1, 2]), racks=["a", "a"])) == []


def test_racks_of_different_size() -> None:
    row = one("racks-uneven", cluster(RF3, racks=["a", "a", "b"]))
    assert row.fact.endswith("a has 2, b has 1")
    assert found("racks-uneven", cluster(RF3, racks=["a", "b", "c"])) == []
