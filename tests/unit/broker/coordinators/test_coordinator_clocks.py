"""A coordinator whose wall clock is wrong for less than an hour expires no offset and no transactional id."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.wire.messages.leave_group import LeaveGroupRequest
from tests.support.clocks import ManualClock
from tests.support.context import BrokerContext, broker_context
from tests.support.groups import GROUP, commit_request, committed, find, stable_group
from tests.support.txn_session import Session

HOUR_MS, WEEK_MS, MONTH_MS = 3_600_000, 7 * 24 * 3_600_000, 30 * 24 * 3_600_000
ID = "tx"
Prepare = Callable[[BrokerContext], None]
IsKept = Callable[[BrokerContext], bool]


def commit_alone(broker: BrokerContext) -> None:
    """A consumer without a group protocol: its offset is as old as its last commit."""
    find(broker)
    broker.ask(commit_request(5))


def leave_with_an_offset(broker: BrokerContext) -> None:
    """A group that is empty: its offset is as old as that."""
    find(broker)
    member = stable_group(broker)
    broker.ask(commit_request(5, member_id=member, generation_id_or_member_epoch=1))
    broker.ask(LeaveGroupRequest(group_id=GROUP, member_id=member), 0)


def has_offset(broker: BrokerContext) -> bool:
    return committed(broker) == 5


def use_id(broker: BrokerContext) -> None:
    Session(broker, ID).initialize()


def has_id(broker: BrokerContext) -> bool:
    return broker.services.transactions.find(ID) is not None


KINDS = pytest.mark.parametrize(
    ("prepare", "is_kept"),
    [(commit_alone, has_offset), (leave_with_an_offset, has_offset), (use_id, has_id)],
    ids=["offset", "offset of an empty group", "transactional id"],
)


def sweep(broker: BrokerContext) -> None:
    """Look for what is too old, as each coordinator does now and then."""
    groups, transactions = broker.services.groups, broker.services.transactions

    async def swept() -> None:
        for shard in groups._shards:
            await groups._sweep_shard(shard)
        await transactions._sweep(transactions._forget_expired_of)

    broker.run(swept())


def until_loaded(broker: BrokerContext) -> None:
    services = broker.services

    async def loaded() -> None:
        for _ in range(10_000):
            if not (services.groups.is_loading or services.transactions.is_loading):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the coordinators never load")

    broker.run(loaded())


@KINDS
@pytest.mark.parametrize("is_put_right", [True, False])
def test_a_jump_of_the_clock_counts_after_an_hour(
    tmp_path: Path, prepare: Prepare, is_kept: IsKept, is_put_right: bool
) -> None:
    clock = ManualClock()
    with broker_context(tmp_path, clock=clock) as broker:
        broker.create_topic("t")
        prepare(broker)
        written_ms = clock.wall_ms()
    clock.advance(1000)
    with broker_context(tmp_path, clock=clock) as broker:
        until_loaded(broker)
        clock.advance(2 * HOUR_MS)
        clock.set_wall(written_ms + MONTH_MS)
        sweep(broker)
        clock.advance(HOUR_MS - 1)
        sweep(broker)
        assert is_kept(broker)
        if is_put_right:
            clock.set_wall(written_ms + 4 * HOUR_MS)
        clock.advance(WEEK_MS // 2)
        sweep(broker)
        assert is_kept(broker) == (is_put_right or prepare is not commit_alone)
        clock.advance(WEEK_MS)
        sweep(broker)
        assert not is_kept(broker)


@KINDS
def test_a_new_coordinator_with_a_wrong_clock_expires_nothing_in_its_first_hour(
    tmp_path: Path, prepare: Prepare, is_kept: IsKept
) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("t")
        prepare(broker)
        written_ms = broker.services.clock.wall_ms()
    wrong = ManualClock(wall_ms=written_ms + MONTH_MS)
    with broker_context(tmp_path, clock=wrong) as broker:
        until_loaded(broker)
        sweep(broker)
        wrong.advance(HOUR_MS - 1)
        sweep(broker)
        assert is_kept(broker)
        wrong.set_wall(written_ms + HOUR_MS)
        wrong.advance(HOUR_MS)
        sweep(broker)
        assert is_kept(broker)
        wrong.advance(WEEK_MS)
        sweep(broker)
        assert not is_kept(broker)


@KINDS
def test_after_an_hour_a_new_coordinator_expires_what_is_old(
    tmp_path: Path, prepare: Prepare, is_kept: IsKept
) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("t")
        prepare(broker)
        later_ms = broker.services.clock.wall_ms() + MONTH_MS
    clock = ManualClock(wall_ms=later_ms)
    with broker_context(tmp_path, clock=clock) as broker:
        until_loaded(broker)
        clock.advance(HOUR_MS)
        sweep(broker)
        assert not is_kept(broker)
