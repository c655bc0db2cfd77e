"""Whose copies are slowed down: those that Kafka's settings name, on the side that they name."""

from types import SimpleNamespace
from typing import Any

from penstock.broker.partitions.throttles import Throttles
from penstock.model.configs import resolve_topic_config
from tests.support.clocks import ManualClock

RATE = 1000
LEADER = "leader.replication.throttled.replicas"
FOLLOWER = "follower.replication.throttled.replicas"


def throttles_of(broker_id: int) -> Throttles:
    config = SimpleNamespace(
        leader_replication_throttled_rate=RATE, follower_replication_throttled_rate=RATE
    )
    view: Any = SimpleNamespace(broker_id=broker_id, config=config)
    return Throttles(view, ManualClock())


def topic(**lists: str) -> Any:
    names = {"leader": LEADER, "follower": FOLLOWER}
    settings = {names[side]: replicas for side, replicas in lists.items()}
    return SimpleNamespace(config=resolve_topic_config(settings, {}))


def may_send_more(throttles: Throttles, to: Any, index: int) -> bool:
    """After what takes up the rate of some seconds."""
    assert throttles.may_send(to, index)
    throttles.sent(to, index, 10 * RATE)
    return throttles.may_send(to, index)


def test_a_leader_that_is_named_sends_no_more_than_the_rate() -> None:
    """As Kafka's tools write it: the broker that leads, not the one that fetches."""
    moved = topic(leader="0:1,0:2", follower="0:3")
    assert not may_send_more(throttles_of(1), moved, 0)
    assert may_send_more(throttles_of(3), moved, 0), "it is named on the other side only"
    assert may_send_more(throttles_of(1), moved, 1), "another partition"


def test_everyone_can_be_named_at_once() -> None:
    assert not may_send_more(throttles_of(7), topic(leader="*"), 5)


def test_a_follower_that_is_named_pauses() -> None:
    moved = topic(leader="0:1", follower="0:3")
    for broker_id, pauses in ((3, True), (1, False)):
        throttles = throttles_of(broker_id)
        assert throttles.fetch_pause_ms(moved, 0) == 0
        throttles.fetched(moved, 0, 10 * RATE)
        assert bool(throttles.fetch_pause_ms(moved, 0)) is pauses


def test_nobody_is_slowed_down_where_nobody_is_named() -> None:
    assert may_send_more(throttles_of(1), topic(), 0)
