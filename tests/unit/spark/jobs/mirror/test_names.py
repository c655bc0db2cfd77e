"""The source of a mirror, and what a target needs to have one."""

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror.names import (
    Adjust,
    Create,
    Decision,
    Origin,
    Replace,
    Skip,
    Topic,
    clusters,
    copied_settings,
    decide,
    parse_origin,
    renamed,
)

SOURCE = Topic("orders", b"\x01" * 16, 3, 2, {"retention.ms": "5"}, "")
ORIGIN = Origin("east", SOURCE.topic_id.hex(), "orders")


def _mirror(**changes: object) -> Topic:
    mirror = SOURCE._replace(mirrors=ORIGIN.text(), topic_id=b"\x02" * 16)
    return mirror._replace(**changes)  # type: ignore[arg-type]  # its own fields


def _decide(source: Topic, target: Topic | None, *, replace: bool = False) -> Decision:
    origin = ORIGIN._replace(before=source.mirrors)
    return decide(source, target, name="orders", origin=origin, target_id="west", replace=replace)


def test_an_origin_is_read_as_it_was_written() -> None:
    first = Origin("north", "ab", "orders")
    second = Origin("east", "cd", "north.orders", first.text())
    assert parse_origin(first.text()) == first
    assert parse_origin(second.text()) == second
    assert clusters(second.text()) == ["east", "north"]
    assert parse_origin("written by hand") is None
    assert clusters("west") == ["west"]


def test_a_mirror_is_created_once_and_then_left_as_it_is() -> None:
    assert _decide(SOURCE, None) == Create(3)
    assert _decide(SOURCE, _mirror()) == Adjust(None, {}, ())


def test_partitions_and_settings_follow_the_source() -> None:
    has = _mirror(partitions=1, settings={"retention.ms": "7", "segment.ms": "1"})
    assert _decide(SOURCE, has) == Adjust(3, {"retention.ms": "5"}, ("segment.ms",))


@pytest.mark.parametrize("before", ["west:00:orders", "north:00:orders < west:11:orders", "west"])
def test_what_came_from_the_target_is_not_copied_back_however_long_the_way(before: str) -> None:
    assert isinstance(_decide(SOURCE._replace(mirrors=before), None), Skip)


def test_a_mirror_of_a_mirror_says_where_both_come_from() -> None:
    source = SOURCE._replace(mirrors="north:00:orders")
    assert _decide(source, None) == Create(3)
    assert clusters(ORIGIN._replace(before=source.mirrors).text()) == ["east", "north"]


def test_a_topic_of_the_targets_own_is_replaced_only_when_failing_back() -> None:
    own = _mirror(mirrors="")
    with pytest.raises(JobError, match="is no mirror"):
        _decide(SOURCE, own)
    assert _decide(SOURCE, own, replace=True) == Replace(3)


@pytest.mark.parametrize(
    ("mirrors", "message"),
    [
        ("north:0101:orders", "mirrors another one"),
        ("east:" + "01" * 16 + ":payments", "mirrors another one"),
        ("by hand", "mirrors another one"),
        ("east:ffff:orders", "deleted and created again"),
    ],
)
def test_a_mirror_of_something_else_is_refused(mirrors: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        _decide(SOURCE, _mirror(mirrors=mirrors))


def test_a_mirror_with_more_partitions_is_no_copy() -> None:
    with pytest.raises(JobError, match="4 partitions and its source 3"):
        _decide(SOURCE, _mirror(partitions=4))


def test_settings_that_each_cluster_has_for_itself_are_not_copied() -> None:
    given = {
        "penstock.mirror.source": "x",
        "leader.replication.throttled.replicas": "*",
        "min.insync.replicas": "2",
    }
    assert copied_settings(SOURCE._replace(settings=given), 1) == {"min.insync.replicas": "1"}
    assert copied_settings(SOURCE._replace(settings=given), 3) == {"min.insync.replicas": "2"}


def test_a_pattern_names_the_mirrors() -> None:
    assert renamed("{source}.{topic}", "east", "orders") == "east.orders"
    assert renamed("{topic}", "east", "orders") == "orders"
    with pytest.raises(JobError, match="no topic's name"):
        renamed("{source}/{topic}", "east", "orders")
