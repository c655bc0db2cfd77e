"""Groups that are behind, that nobody reads for, and whose unread messages are about to be deleted."""

from typing import Any

from penstock.client.reassignments import Members
from penstock.doctor.cluster_facts import Behind, ClusterFacts, GroupFacts
from penstock.doctor.findings import Found, examine
from penstock.doctor.group_checks import GROUP_CHECKS
from penstock.model.ids import TopicPartition

RULES = {check.id: check for check in GROUP_CHECKS}
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
AT = TopicPartition("orders", 3)


def behind(
    age_ms: int | None = None, *, committed: int = 10, start: int = 0, end: int = 20
) -> Behind:
    return Behind(AT, committed, start, end, None if age_ms is None else NOW_MS - age_ms)


def group(*rows: Behind, name: str = "billing", state: str = "Stable", **more: Any) -> GroupFacts:
    return GroupFacts(name, state, behind=rows, **more)


def facts(
    *groups: GroupFacts, retention_ms: int = 7 * DAY_MS, policy: str = "delete"
) -> ClusterFacts:
    topics = {"orders": {"retention.ms": str(retention_ms), "cleanup.policy": policy}}
    return ClusterFacts(Members("c", 1, ()), {}, NOW_MS, topics=topics, groups=groups)


def found(name: str, known: ClusterFacts) -> list[Found]:
    return list(RULES[name].rule(known))


def one(name: str, known: ClusterFacts) -> Found:
    [row] = found(name, known)
    return row


def test_groups_that_are_well() -> None:
    known = facts(group(behind(MINUTE_MS)), group(name="idle", members=1))
    assert examine(GROUP_CHECKS, known, "cluster") == []


def test_a_group_that_lags() -> None:
    row = one("group-lag", facts(group(behind(6 * MINUTE_MS))))
    assert row.fact == "behind: billing (10 messages, 6 min old)"
    assert "penstock group describe billing" in row.remedy
    assert found("group-lag", facts(group(behind(5 * MINUTE_MS)))) == []
    assert found("group-lag", facts(group(behind(DAY_MS), state="Empty"))) == []


def test_lag_in_messages_where_the_age_is_unknown() -> None:
    assert (
        one("group-lag", facts(group(behind(end=100_011)))).fact
        == "behind: billing (100,001 messages)"
    )
    assert found("group-lag", facts(group(behind(end=100_010)))) == []


def test_the_oldest_lag_comes_first_and_the_text_is_bounded() -> None:
    groups = [group(behind(age * HOUR_MS), name=f"g{age}") for age in range(1, 50)]
    row = one("group-lag", facts(*groups))
    assert row.fact.startswith("behind: g49 (10 messages, 2 d old), g48")
    assert row.fact.endswith("and 44 more")
    assert len(row.subjects) == 49


def test_a_group_that_nobody_reads_for() -> None:
    known = facts(group(behind(DAY_MS + 1), state="Empty"))
    assert "billing (10 messages, 1 d old)" in one("group-abandoned", known).fact
    assert found("group-empty", known) == []
    young = facts(group(behind(DAY_MS), state="Empty"))
    assert found("group-abandoned", young) == []
    assert one("group-empty", young).subjects == ["billing"]


def test_an_empty_group() -> None:
    assert (
        one("group-empty", facts(group(state="Empty"))).fact == "1 group without members: billing"
    )
    assert found("group-empty", facts(group())) == []


def test_members_without_partitions() -> None:
    row = one("group-idle-members", facts(group(members=5, idle_members=2)))
    assert row.fact == "members without partitions: billing (2 of 5)"
    assert found("group-idle-members", facts(group(members=5))) == []


def test_retention_that_comes_close_to_unread_messages() -> None:
    known = facts(group(behind(6 * DAY_MS + HOUR_MS)))
    row = one("retention-deletes-unread", known)
    assert row.fact.endswith("billing on orders-3 (in 23 h)")
    assert "penstock topic alter orders -c retention.ms=14d" in row.remedy
    assert found("retention-deletes-unread", facts(group(behind(6 * DAY_MS)))) == []


def test_short_retention_is_judged_by_its_quarter() -> None:
    close = facts(group(behind(46 * MINUTE_MS)), retention_ms=HOUR_MS)
    assert "(in 14 min)" in one("retention-deletes-unread", close).fact
    far = facts(group(behind(44 * MINUTE_MS)), retention_ms=HOUR_MS)
    assert found("retention-deletes-unread", far) == []
    late = facts(group(behind(2 * HOUR_MS)), retention_ms=HOUR_MS)
    assert "(at any moment)" in one("retention-deletes-unread", late).fact


def test_what_retention_does_not_delete_is_not_threatened() -> None:
    old = behind(6 * DAY_MS + HOUR_MS)
    assert found("retention-deletes-unread", facts(group(old), policy="compact")) == []
    assert found("retention-deletes-unread", facts(group(old), retention_ms=-1)) == []
    assert found("retention-deletes-unread", facts(group(behind(None)))) == []


def test_the_most_urgent_partition_of_a_group_is_named() -> None:
    other = behind(6 * DAY_MS + 2 * HOUR_MS)._replace(partition=TopicPartition("orders", 9))
    row = one("retention-deletes-unread", facts(group(behind(6 * DAY_MS + HOUR_MS), other)))
    assert "orders-9 (in 22 h)" in row.fact


def test_messages_that_were_deleted_unread() -> None:
    row = one("group-lost-messages", facts(group(behind(committed=10, start=15))))
    assert row.fact.endswith("billing (5 offsets, orders-3 first)")
    assert found("group-lost-messages", facts(group(behind(committed=15, start=15)))) == []


def test_lag_counts_from_the_start_of_the_log() -> None:
    assert behind(committed=10, start=15, end=20).lag == 5
    assert behind(committed=30, end=20).lag == 0
