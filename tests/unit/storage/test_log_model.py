"""A log behaves as a list of batches does, through cuts, rolls, deletions, restarts, crashes and power losses."""

import shutil
from bisect import bisect_right
from dataclasses import replace
from tempfile import mkdtemp
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.errors import OffsetOutOfRange
from penstock.records.record import Record
from penstock.storage.files import OpenFiles
from penstock.storage.log import Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past
from tests.unit.storage.logs import (
    _FAST,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    ForgetfulDisk,
    headers,
    put,
    records,
)

times = st.integers(NOW_MS, NOW_MS + 50)
fractions = st.floats(0, 1)


class Batch(NamedTuple):
    base_offset: int
    epoch: int
    records: list[tuple[int, bytes]]  # time, value

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: what the log must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.root = mkdtemp(dir=_FAST)
        self.runs = 0
        self.disk = ForgetfulDisk()
        self.path = f"{self.root}/0"
        self.log = Log(OpenFiles(3, self.disk), f"{self.path}/t", 0, TOPIC_ID, SMALL)
        self.batches: list[Batch] = []
        self.start = self.next = 0
        self.epoch = 1
        self.saved = (0, 0)  # recovery point and start, as a checkpoint has them
        self.synced = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # What happens to it ------------------------------------------------------------------------

    @rule(data=st.lists(st.tuples(times, st.binary(max_size=60)), min_size=1, max_size=4))
    def append(self, data: list[tuple[int, bytes]]) -> None:
        appended = put(
            self.log,
            *[value for _, value in data],
            times=[time for time, _ in data],
            epoch=self.epoch,
        )
        assert appended.base_offset == self.next
        self.batches.append(Batch(self.next, self.epoch, data))
        self.next += len(data)
        assert appended.last_offset == self.next - 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.synced = self.log.recovery_point
        assert self.synced == self.next

    @rule()
    def checkpoint(self) -> None:
        self.saved = (self.log.recovery_point, self.log.start_offset)
        self.log.checkpointed(self.log.truncations, self.log.start_offset)
        self.log.flush()
        self.synced = self.log.recovery_point

    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        target = self.start + round(fraction * (self.next - self.start))
        self.log.truncate_to(target)
        self.batches = [batch for batch in self.batches if batch.next_offset <= target]
        if target < self.next:
            self.next = self.batches[-1].next_offset if self.batches else self._base_left()
        self.start = min(self.start, self.next)
        self.epoch += 1
        self.synced = min(self.synced, self.next)

    def _base_left(self) -> int:
        """An empty log goes on where its segment begins."""
        return self.log.segments[-1].base_offset if self.log.segments else 0

    @rule(fraction=fractions)
    def delete_records(self, fraction: float) -> None:
        target = self.start + round(fraction * (self.next - self.start))
        self.log.delete_records_before(target)
        self.start = target

    @rule(bytes_kept=st.integers(0, 2000))
    def retain(self, bytes_kept: int) -> None:
        self.log.configure(replace(SMALL, retention_bytes=bytes_kept))
        self.log.apply_retention(NOW_MS, upto_offset=self.next)
        self.log.configure(SMALL)
        assert self.log.start_offset >= self.start
        assert self.log.size_bytes <= bytes_kept + 600 or len(self.log.segments) == 1
        self.start = self.log.start_offset

    # How it ends -------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.saved = (self.log.recovery_point, self.log.start_offset)
        self._open(Ending.CLEAN)
        assert self.log.next_offset == self.next

    @rule(torn=st.binary(max_size=100))
    def crash(self, torn: bytes) -> None:
        """The process dies in the middle of a write; the machine goes on."""
        if self.log.segments:
            with open(self.log.segments[-1].file.path, "ab") as file:
                file.write(torn)
        self._open(Ending.PROCESS_CRASH)
        assert self.log.next_offset == self.next

    @precondition(lambda self: self.synced >= self.saved[0] and self.log.state.truncated_to is None)
    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        self.runs += 1
        target = f"{self.root}/{self.runs}"
        self.disk.after_power_loss(self.path, target, lambda size: data.draw(st.integers(0, size)))
        self.path = target
        self._open(Ending.POWER_LOSS)
        assert self.saved[0] <= self.log.next_offset <= self.next
        self.next = self.log.next_offset
        self.batches = [batch for batch in self.batches if batch.next_offset <= self.next]
        self.synced = self.log.recovery_point

    def _open(self, ending: Ending) -> None:
        point, start = self.saved
        self.disk = ForgetfulDisk(self.path) if ending is Ending.POWER_LOSS else self.disk
        files = OpenFiles(3, self.disk)
        past = Past(ending, point, start)
        self.log = open_log(files, f"{self.path}/t", 0, TOPIC_ID, SMALL, past)
        self.start = self.log.start_offset
        assert self.start <= self.log.next_offset

    # What must be true -------------------------------------------------------------------------

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert (self.log.start_offset, self.log.next_offset) == (self.start, self.next)
        first = self._first_of(self.start)
        held = [
            Record(batch.base_offset + number, time, b"k", value)
            for batch in self.batches[first:]
            for number, (time, value) in enumerate(batch.records)
        ]
        assert records(self.log, self.start) == held

    @invariant()
    def epochs_begin_where_their_batches_begin(self) -> None:
        for batch in self.batches[self._first_of(self.start) :]:
            assert self.log.epochs.epoch_at(max(batch.base_offset, self.start)) == batch.epoch

    @rule(
        fraction=fractions,
        limits=st.lists(st.integers(1, 1000), min_size=1, max_size=4),
        upto_fraction=fractions,
    )
    def read(self, fraction: float, limits: list[int], upto_fraction: float) -> None:
        """From anywhere, and on from where that ended."""
        offset = self.start + round(fraction * (self.next - self.start))
        upto = self.start + round(upto_fraction * (self.next - self.start))
        for limit in limits:
            offset = self._read_one(offset, limit, upto)

    def _read_one(self, offset: int, limit: int, upto: int) -> int:
        found = self.log.read(offset, limit, upto_offset=upto)
        data = b"".join(piece.read() for piece in found.slices)
        first = self._first_of(offset)
        visible = [batch for batch in self.batches[first:] if batch.next_offset <= upto]
        got = headers(data)
        expected = [batch.base_offset for batch in visible[: len(got)]]
        assert [header.base_offset for header in got] == expected
        assert bool(got) == bool(visible and offset < upto)
        assert found.size_bytes == len(data) <= max(limit, got[0].size_bytes if got else 0)
        return found.next_offset

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.start - beyond, self.next + beyond):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, 100, upto_offset=self.next)

    @rule(time=times)
    def look_up(self, time: int) -> None:
        found = self.log.offset_for_timestamp(time)
        expected = next(
            (
                (when, batch.base_offset + number)
                for batch in self.batches
                for number, (when, _) in enumerate(batch.records)
                if when >= time and batch.base_offset + number >= self.start
            ),
            None,
        )
        assert (found[:2] if found else None) == expected

    def _first_of(self, offset: int) -> int:
        ends = [batch.next_offset for batch in self.batches]
        return bisect_right(ends, offset)


LogMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLog = LogMachine.TestCase
