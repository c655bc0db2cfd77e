"""Shards of a coordinator through elections, reloads and refused writes: what was acknowledged is what is read."""

from collections.abc import Iterator

import pytest

from penstock.broker.coordinators.shard import LogShard
from penstock.model.errors import BrokerError, ErrorCode
from tests.support.engine import Engine
from tests.unit.broker.coordinators.shard_world import (
    BOTH,
    ME,
    OTHER,
    Quiet,
    ShardWorld,
    code_of,
    is_acknowledged,
    offset_in,
    outcome_of,
)

E = ErrorCode


@pytest.fixture
def world(engine: Engine) -> Iterator[ShardWorld]:
    engine.replicas.replication = Quiet()
    made = ShardWorld(engine)
    yield made
    made.close()


def acknowledged(world: ShardWorld, offset: int) -> None:
    answer = world.commit(offset)
    world.replicate()
    assert is_acknowledged(answer)


def offset_read(world: ShardWorld) -> int | None:
    answer = world.fetch()
    world.replicate()
    return offset_in(answer)


def test_reload_timer_of_an_earlier_epoch_does_not_load_the_shard_again(world: ShardWorld) -> None:
    acknowledged(world, 1)
    assert code_of(world.commit_as_the_disk_fills_up(2)) is E.NOT_COORDINATOR
    world.elect(ME)
    world.replicate()
    world.let_time_pass()  # while the load of the new epoch is under way
    world.read_some()
    acknowledged(world, 3)
    world.finish_reads()

    assert offset_read(world) == 3
    assert world.open_count == 1
    assert len(world.opened) == 2, "one for each epoch"


def test_a_shard_that_is_lost_twice_is_loaded_by_one_timer(world: ShardWorld) -> None:
    acknowledged(world, 1)
    for offset in (2, 3):
        world.commit_as_the_disk_fills_up(offset)
        world.let_time_pass()
        world.finish_reads()
    assert world.loop.delayed_count == 0
    acknowledged(world, 4)
    assert (offset_read(world), world.open_count) == (4, 1)


def test_a_load_that_ends_after_its_epoch_opens_nothing(world: ShardWorld) -> None:
    acknowledged(world, 1)
    world.elect(ME)  # a load begins
    world.elect(OTHER)
    world.elect(ME)
    world.finish_reads()
    world.replicate()

    assert offset_read(world) == 1
    assert (len(world.opened), world.open_count) == (2, 1)


def test_a_broker_that_is_given_the_same_epoch_again_loads_anew(world: ShardWorld) -> None:
    """As after the loss of a session: it follows for a while, and the epoch stays."""
    acknowledged(world, 1)
    world.give_up_session()
    assert code_of(world.fetch()) is E.NOT_COORDINATOR
    world.take_up_session()
    world.give_up_session()
    world.take_up_session()
    world.finish_reads()
    world.replicate()

    assert offset_read(world) == 1
    assert (len(world.opened), world.open_count) == (2, 1)


def test_a_failed_load_is_tried_again_only_in_its_own_epoch(world: ShardWorld) -> None:
    acknowledged(world, 1)
    world.loads_fail = True
    world.elect(ME)
    world.finish_reads()
    assert world.loop.delayed_count == 1
    world.loads_fail = False
    world.elect(ME)
    assert world.loop.delayed_count == 0
    world.finish_reads()
    world.replicate()
    assert (offset_read(world), world.open_count) == (1, 1)


def test_a_shard_that_fails_as_it_starts_is_closed_and_keeps_no_other_from_loading(
    world: ShardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged(world, 1)

    def fail(_: object) -> None:
        raise BrokerError("it cannot begin")

    with monkeypatch.context() as patch:
        patch.setattr(LogShard, "begin", fail)
        world.elect(ME)
        world.finish_reads()
    assert world.open_count == 0
    assert code_of(world.fetch()) is E.COORDINATOR_LOAD_IN_PROGRESS
    world.let_time_pass()
    world.finish_reads()
    world.replicate()
    assert (offset_read(world), world.open_count) == (1, 1)


def test_nothing_is_loaded_after_the_end(world: ShardWorld) -> None:
    acknowledged(world, 1)
    world.commit_as_the_disk_fills_up(2)
    world.close()
    assert (world.open_count, world.loop.delayed_count) == (0, 0)
    assert code_of(world.fetch()) is E.NOT_COORDINATOR


# While too few replicas are in sync -------------------------------------------------------------


def test_writes_are_refused_before_memory_changes_and_reads_go_on(world: ShardWorld) -> None:
    acknowledged(world, 1)
    world.set_isr((ME,))
    for offset in (2, 3):
        assert code_of(world.commit(offset)) is E.COORDINATOR_NOT_AVAILABLE
        assert offset_in(world.fetch()) == 1
    assert (len(world.opened), world.loop.delayed_count) == (1, 0), "the log was not read again"
    world.set_isr(BOTH)
    acknowledged(world, 4)
    assert offset_read(world) == 4


def test_a_write_that_was_taken_before_is_acknowledged_once_there_are_enough(
    world: ShardWorld,
) -> None:
    acknowledged(world, 1)
    answer = world.commit_as_the_isr_shrinks(2)
    world.let_time_pass()
    assert outcome_of(answer) is None
    assert len(world.opened) == 1, "the shard is not lost"
    world.set_isr(BOTH)
    world.replicate()
    assert is_acknowledged(answer)
    assert offset_read(world) == 2


def test_reads_do_not_wait_for_what_cannot_be_committed(world: ShardWorld) -> None:
    acknowledged(world, 1)
    answers = [world.commit(offset) for offset in (2, 3)]
    assert offset_in(world.fetch()) == 1
    world.set_isr((ME,))
    assert [outcome_of(answer) for answer in answers] == [None, None]
    assert offset_in(world.fetch()) == 1
    world.set_isr(BOTH)
    world.replicate()
    assert all(map(is_acknowledged, answers))
    assert offset_in(world.fetch()) == 3


def test_reads_wait_until_what_was_read_back_is_committed(world: ShardWorld) -> None:
    """A new leader cannot know yet which of it was acknowledged."""
    acknowledged(world, 1)
    world.commit(2)
    world.elect(ME)
    world.finish_reads()
    answer = world.fetch()
    assert outcome_of(answer) is None
    later = world.commit(3)
    world.replicate_upto_read_back()
    assert offset_in(answer) == 2
    assert outcome_of(later) is None
    assert offset_in(world.fetch()) == 2


def test_fetch_of_a_tail_that_cannot_be_committed_is_refused_and_kept_by_nobody(
    world: ShardWorld,
) -> None:
    acknowledged(world, 1)
    world.commit(2)  # in both logs, not committed
    world.elect(OTHER)
    world.elect(ME, isr=(ME,))  # too few are in sync: the tail stays uncommitted
    world.finish_reads()
    shard = world.opened[-1]
    assert code_of(world.fetch()) is E.COORDINATOR_NOT_AVAILABLE
    assert shard.waiting_count == 0
    world.elect(ME, isr=BOTH)
    world.finish_reads()
    assert offset_read(world) == 2
