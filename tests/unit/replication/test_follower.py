"""Where a follower cuts its log, told by the epochs of its leader's (KIP-101, KIP-279)."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.follower import Position, diverges, is_current, truncation_point
from penstock.storage.epochs import EpochEnd, Epochs


class Copy:
    """A log as the epochs of its records: one number per offset."""

    def __init__(self, records: list[int]) -> None:
        self.records = records

    @property
    def next_offset(self) -> int:
        return len(self.records)

    @next_offset.setter
    def next_offset(self, _: int) -> None:
        raise AssertionError("nobody moves the end of a log by hand")

    @property
    def epochs(self) -> Epochs:
        epochs = Epochs()
        for offset, epoch in enumerate(self.records):
            epochs.assign(epoch, offset)
        return epochs

    def end_offset_for(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, self.next_offset)

    def cut(self, offset: int) -> None:
        del self.records[offset:]


class Fetched(NamedTuple):
    offset: int
    last_epoch: int


def test_an_answer_counts_only_for_the_leader_and_the_end_it_was_asked_for() -> None:
    asked = Position(leader_epoch=3, offset=10)
    assert is_current(asked, 3, 10)
    assert not is_current(asked, 4, 10)
    assert not is_current(asked, 3, 9)


def test_a_prefix_of_the_leaders_log_does_not_diverge() -> None:
    leader = Copy([1, 1, 2, 2])
    assert not diverges(3, 2, leader.end_offset_for(2))
    assert not diverges(2, 1, leader.end_offset_for(1))


def test_a_longer_log_of_the_same_epoch_does() -> None:
    leader = Copy([1, 1, 3])
    assert diverges(4, 1, leader.end_offset_for(1))
    assert truncation_point(Copy([1, 1, 1, 1]), 1, 2) == 2


def test_an_epoch_that_the_leader_never_saw_is_cut_to_the_one_before() -> None:
    leader, follower = Copy([1, 1, 3]), Copy([1, 1, 2, 2])
    end = leader.end_offset_for(2)
    assert diverges(4, 2, end)
    assert truncation_point(follower, end.epoch, end.end_offset) == 2


def test_a_follower_that_knows_nothing_of_the_epoch_or_before_ends_where_the_leader_says() -> None:
    assert truncation_point(Copy([5, 5]), 3, 0) == 0


histories = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12)


@given(histories, st.data())
def test_however_leaders_came_and_went_the_follower_ends_with_a_prefix_of_its_leaders_log(
    history: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each leader in turn writes some records in its own epoch, and each of the others copies a part of them,
    or is away and keeps what it had."""
    logs = [Copy([]), Copy([]), Copy([])]
    leader = 0
    for epoch, (leader, count) in enumerate(history, start=1):
        logs[leader].records += [epoch] * count
        for number, log in enumerate(logs):
            if number != leader and data.draw(st.booleans()):
                follow(log, logs[leader], epoch)
                wanted = data.draw(st.integers(log.next_offset, logs[leader].next_offset))
                log.records += logs[leader].records[log.next_offset : wanted]
    for number, log in enumerate(logs):
        if number != leader:
            follow(log, logs[leader], len(history) + 1)
            assert log.records == logs[leader].records[: log.next_offset]


def follow(follower: Copy, leader: Copy, epoch: int) -> None:
    """Fetch until the leader is content, as brokers do; each answer makes the follower's log shorter or older."""
    for _ in range(100):
        last = follower.epochs.latest
        if last < 0:
            return
        begun = leader.epochs
        begun.assign(epoch, leader.next_offset)  # R1: a leader's epoch begins where it took over
        end = begun.end_offset_for(last, leader.next_offset)
        if not diverges(follower.next_offset, last, end):
            return
        before = follower.next_offset
        follower.cut(truncation_point(follower, end.epoch, end.end_offset))
        assert follower.next_offset < before
    raise AssertionError("they never agree")
