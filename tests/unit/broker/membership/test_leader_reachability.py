"""What the controller makes of heartbeats, of what they say of leaders, and of those that do not come."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.broker.membership.leader_reachability import LeaderReachability
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.values import PartitionImage
from tests.unit.metadata.worlds import World, partition, world_with

FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))
ME, LEADER, OTHER = 2, 1, 3


class Office:
    """Broker 2 is the controller, on a cluster on paper; time passes when the test says so."""

    broker_id = ME

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s = 1000.0
        self.woken = 0
        its: Any = self
        self.reachability = LeaderReachability(its, self.commit_fast, self.wake)
        self.reachability.begin()

    @property
    def image(self) -> Any:
        return self.world.image

    @property
    def rules(self) -> Any:
        return self.world.rules

    @property
    def config(self) -> Any:
        return self.world.rules.config

    def wake(self) -> None:
        self.woken += 1

    async def commit_fast(
        self, decide: Callable[[], Sequence[Decision[None]]]
    ) -> Sequence[Decision[None]]:
        decisions = decide()
        self.world.carry_out_all(decisions)
        return decisions

    def beat(self, seconds: float, said: dict[int, list[int]]) -> None:
        """Every half a second those brokers say whom they cannot reach."""
        for _ in range(round(seconds * 2)):
            self.now_s += 0.5
            for broker_id, unreachable in said.items():
                epoch = self.image.brokers[broker_id].epoch
                self.reachability.heard(broker_id, epoch, unreachable)

    def attend(self) -> PartitionImage:
        asyncio.run(self.reachability.attend())
        return partition(self.world)


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    made: list[Office] = []
    monkeypatch.setattr(LeaderReachability, "_now_s", lambda _: made[0].now_s if made else 1000.0)
    made.append(Office(world_with(FULL)))
    return made[0]


def test_a_leader_that_all_accuse_is_replaced_once_and_not_trusted_for_a_while(
    office: Office,
) -> None:
    office.beat(1, {ME: [], LEADER: [], OTHER: [LEADER]})
    assert (office.woken, office.attend()) == (0, FULL)
    office.beat(0.5, {ME: [LEADER], LEADER: [], OTHER: [LEADER]})
    assert office.woken > 0
    moved = office.attend()
    assert (moved.leader, moved.isr) == (ME, (2, 3))
    assert office.reachability.avoided == {LEADER}
    office.beat(61, {ME: [], LEADER: [], OTHER: []})
    assert not office.reachability.avoided


def test_the_same_partition_is_not_moved_again_at_once(office: Office) -> None:
    office.beat(1, {ME: [LEADER], LEADER: [], OTHER: [LEADER]})
    moved = office.attend()._replace(isr=(1, 2, 3))
    assert moved.leader == ME
    office.beat(20, {ME: [], LEADER: [ME], OTHER: [ME]})
    assert office.attend().leader == ME
    office.beat(10, {ME: [], LEADER: [ME], OTHER: [ME]})
    assert office.attend().leader == ME, "alone in sync, the last one would be too few"


def test_what_a_broker_said_long_ago_or_in_another_session_does_not_count(office: Office) -> None:
    office.beat(1, {ME: [LEADER], LEADER: [], OTHER: []})
    epoch = office.image.brokers[OTHER].epoch
    office.reachability.heard(OTHER, epoch - 1, [LEADER])
    assert office.attend() == FULL
    office.reachability.heard(OTHER, epoch, [LEADER])
    office.beat(2.5, {ME: [LEADER], LEADER: []})
    assert office.attend() == FULL


def test_a_leader_that_is_not_heard_and_accused_by_one_follows_the_other(office: Office) -> None:
    office.beat(2, {ME: [LEADER], OTHER: []})
    assert office.attend() == FULL
    office.beat(1, {ME: [LEADER], OTHER: []})
    assert office.attend() == FULL._replace(leader=OTHER, leader_epoch=6, partition_epoch=8)


def test_a_controller_that_hears_from_too_few_is_the_one_that_is_cut_off(office: Office) -> None:
    office.beat(3, {ME: [LEADER, OTHER], OTHER: []})
    assert not office.reachability.is_cut_off, "one of two"
    office.beat(3, {ME: [LEADER, OTHER]})
    assert office.reachability.is_cut_off
    assert office.woken > 0


def test_a_controller_that_stood_still_itself_accuses_nobody(office: Office) -> None:
    office.beat(1, {ME: [], LEADER: [], OTHER: []})
    office.now_s += 30
    office.beat(1, {ME: []})
    assert not office.reachability.is_cut_off


def test_where_sessions_may_last_longer_silence_may_too(office: Office) -> None:
    office.world.static = {"broker.session.timeout.ms": "20000"}
    office.beat(20, {})
    assert not office.reachability.is_cut_off
    office.beat(6, {})
    assert office.reachability.is_cut_off
