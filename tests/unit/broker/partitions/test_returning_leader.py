"""A leader that comes back under one that was copied from a compacted log keeps what is committed, and no more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.replication.follower import truncation_point
from penstock.storage.epochs import EpochEnd
from tests.support.engine import Engine, running_engine
from tests.unit.broker.partitions.test_replication import ANN, BOB, ME, Keeper, copy, fetched, state
from tests.unit.storage.compacted import begin, run, without_syncs
from tests.unit.storage.logs import values


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Engine]]:
    with (
        running_engine(tmp_path / "me") as me,
        running_engine(tmp_path / "ann") as ann,
        running_engine(tmp_path / "bob") as bob,
    ):
        for engine in (me, ann, bob):
            engine.replicas.replication = Keeper()
        yield [me, ann, bob]


def fetch(leader: Partition, follower: Partition, broker: int) -> None:
    """Until both have the same, as a fetcher goes about it."""
    while True:
        log = follower.log
        answer = fetched(leader, broker, log.next_offset, log.epochs.latest)
        if isinstance(answer, EpochEnd):
            follower.cut(truncation_point(log, *answer))
            continue
        before = log.next_offset
        copy(leader, follower, broker)
        if log.next_offset == before:
            return


@pytest.mark.parametrize("uncommitted", [0, 3])
def test_a_leader_that_comes_back_goes_on_under_a_copy_of_a_compacted_log(
    brokers: list[Engine], uncommitted: int
) -> None:
    me, ann, bob = brokers
    first, second, third = (engine.partition(cleanup_policy="compact") for engine in brokers)
    first.lead(ME, state(5, (ME, ANN)))
    second.follow(state(5, (ME, ANN)))
    for number in range(10):
        me.append(first, b"%d" % number)
    fetch(first, second, ANN)
    fetch(first, second, ANN)
    assert first.high_watermark == second.high_watermark == 10
    for _ in range(uncommitted):
        me.append(first, b"lost")

    second.lead(ANN, state(6, (ANN,), leader=ANN))
    third.follow(state(6, (ANN,), leader=ANN))
    for _ in range(6):
        ann.append(second, b"new")
        second.log.roll()
    with without_syncs():
        run(begin(second.log))
    fetch(second, third, BOB)
    third.lead(BOB, state(7, (BOB,), leader=BOB))
    bob.append(third, b"newest")

    first.follow(state(7, (BOB,), leader=BOB))
    fetch(third, first, ME)
    assert first.failure is None
    assert first.log.next_offset == third.log.next_offset == 17
    assert first.log.epochs.entries() == third.log.epochs.entries() == [(5, 0), (6, 10), (7, 16)]
    assert values(first.log)[:10] == [b"%d" % number for number in range(10)]
    assert b"lost" not in values(first.log)
