"""Any history of elections, reloads and faults: one open shard at most, and what was told is never taken back."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.engine import running_engine
from tests.unit.broker.coordinators.shard_world import (
    BOTH,
    ME,
    OTHER,
    PARTITIONS,
    Answer,
    Quiet,
    ShardWorld,
    is_acknowledged,
    offset_in,
    outcome_of,
)
from tests.unit.storage.logs import scratch

_ROUNDS = 5  # of elections and loads until everything has settled
indexes = st.integers(0, PARTITIONS - 1)


class History(RuleBasedStateMachine):
    """Every commit has a greater offset than all before it, so the order of answers shows what was lost."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        engine = self._stack.enter_context(
            running_engine(Path(self._stack.enter_context(scratch())))
        )
        engine.replicas.replication = Quiet()
        self.world = ShardWorld(engine)
        self.last_offset = 0
        self.told = [-1] * PARTITIONS  # the greatest offset that was acknowledged or read
        self.commits: list[tuple[int, int, Answer]] = []  # not answered yet: partition, offset
        self.reads: list[tuple[int, int, Answer]] = []  # partition, what was told before it

    # What happens ------------------------------------------------------------------------------

    @rule(index=indexes)
    def commit(self, index: int) -> None:
        self._commit(self.world.commit, index)

    @rule(index=indexes)
    def commit_as_the_disk_fills_up(self, index: int) -> None:
        self._commit(self.world.commit_as_the_disk_fills_up, index)

    @precondition(lambda self: self.world.partition.is_leader)
    @rule(index=indexes)
    def commit_as_the_isr_shrinks(self, index: int) -> None:
        self._commit(self.world.commit_as_the_isr_shrinks, index)

    def _commit(self, made: Callable[[int, int], Answer], index: int) -> None:
        self.last_offset += 1
        self.commits.append((index, self.last_offset, made(self.last_offset, index)))

    @rule(index=indexes)
    def read(self, index: int) -> None:
        self.reads.append((index, self.told[index], self.world.fetch(index)))

    @rule(isr=st.sampled_from([BOTH, BOTH, (ME,)]))
    def elect_this_broker(self, isr: tuple[int, ...]) -> None:
        self.world.elect(ME, isr=isr)

    @rule(keeps_tail=st.booleans())
    def elect_the_other(self, keeps_tail: bool) -> None:
        self.world.elect(OTHER, keeps_tail=keeps_tail)

    @rule(comes_back=st.booleans())
    def lose_session(self, comes_back: bool) -> None:
        leads = self.world.partition.is_leader
        self.world.give_up_session()
        if leads and comes_back:
            self.world.take_up_session()

    @rule(isr=st.sampled_from([BOTH, (ME,)]))
    def change_isr(self, isr: tuple[int, ...]) -> None:
        self.world.set_isr(isr)

    @rule()
    def replicate(self) -> None:
        self.world.replicate()

    @rule()
    def let_time_pass(self) -> None:
        self.world.let_time_pass()

    @rule()
    def read_some(self) -> None:
        self.world.read_some()

    @rule()
    def finish_reads(self) -> None:
        self.world.finish_reads()

    @rule(fail=st.booleans())
    def loads_fail(self, fail: bool) -> None:
        self.world.loads_fail = fail

    # What must hold ----------------------------------------------------------------------------

    @invariant()
    def at_most_one_shard_is_open(self) -> None:
        assert self.world.open_count <= 1

    @invariant()
    def nothing_told_is_taken_back(self) -> None:
        for index, told, answer in self.reads:
            offset = offset_in(answer)
            if offset is not None:
                assert told <= offset <= self.last_offset, f"partition {index}"
                self.told[index] = max(self.told[index], offset)
        for index, offset, answer in self.commits:
            if is_acknowledged(answer):
                self.told[index] = max(self.told[index], offset)
        self.reads = [asked for asked in self.reads if outcome_of(asked[2]) is None]
        self.commits = [asked for asked in self.commits if outcome_of(asked[2]) is None]

    def teardown(self) -> None:
        try:
            self._settle()
            self.nothing_told_is_taken_back()
            assert not self.reads + self.commits, "somebody was left without an answer"
            for index, told in enumerate(self.told):
                offset = offset_in(self.world.fetch(index))
                assert offset is not None
                assert offset >= told, f"partition {index}"
        finally:
            self.world.close()
            self._stack.close()

    def _settle(self) -> None:
        self.world.loads_fail = False
        self.world.elect(ME)
        for _ in range(_ROUNDS):
            self.world.let_time_pass()
            self.world.finish_reads()
            self.world.replicate()
        assert self.world.open_count == 1


TestShardHistories = History.TestCase
TestShardHistories.settings = settings(max_examples=40, stateful_step_count=30)
