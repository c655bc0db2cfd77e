"""A crash at any step of a round leaves the old log or the new one, and the next round goes on from it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from penstock.records.batch import BatchHeader
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import Record
from penstock.storage.compaction import assess, first_dirty
from penstock.storage.log import Log
from penstock.storage.recovery import Ending, Past
from penstock.storage.segment import Segment
from tests.unit.records.histories import History, Step
from tests.unit.storage.compacted import (
    NOW_MS,
    begin,
    config,
    extents,
    open_compacted,
    read_offsets,
    run,
    without_syncs,
    write,
)

CALLS = ("open", "rename", "replace", "unlink", "fsync")
BEFORE = [0, 1, 2, 3, 5, 6, 7, 8, 10]
AFTER = [2, 5, 6, 8, 10]


class Crash(BaseException):
    """Nothing may catch it, as nothing catches a kill."""


@contextmanager
def crash_at(number: int) -> Iterator[list[str]]:
    """Die instead of the call with that number that can change a directory or make it durable."""
    made: list[str] = []

    def deadly(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return call(*arguments, **options)
            if len(made) == number:
                raise Crash(f"{name}{arguments}")
            made.append(name)
            return call(*arguments, **options)

        return counted

    patches = [patch.object(os, name, deadly(name, getattr(os, name))) for name in CALLS]
    for each in patches:
        each.start()
    try:
        yield made
    finally:
        for each in patches:
            each.stop()


def _written(path: Path) -> Log:
    """Five closed segments, of which compaction makes two; one transaction is aborted, one committed."""
    log, history = open_compacted(str(path), topic_config=config()), History()
    segments: list[list[Step]] = [
        [_put(b"a", b"1"), Step(1, True, None, Codec.NONE, [(b"b", b"1", 1)])],
        [_put(b"a", None), _put(b"c", b"1"), Step(1, True, ControlType.ABORT, Codec.NONE, [])],
        [Step(2, True, None, Codec.GZIP, [(b"b", b"2", 1)]), _put(b"c", b"2")],
        [_put(b"d", bytes(600_000)), _put(b"d", bytes(600_000))],
        [Step(2, True, ControlType.COMMIT, Codec.NONE, []), _put(b"f", b"1")],
    ]
    for steps in segments:
        start = len(history.batches)
        for step in steps:
            history.append(step)
        write(log, history.batches[start:])
    log.flush()
    log.configure(config(segment_bytes=1 << 20))
    return log


def _put(key: bytes, value: bytes | None) -> Step:
    return Step(-1, False, None, Codec.NONE, [(key, value, 1)])


@pytest.mark.parametrize("ending", [Ending.PROCESS_CRASH, Ending.POWER_LOSS])
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, ending: Ending
) -> None:
    outcomes = []
    for number in range(1_000):
        path = tmp_path / str(number)
        with without_syncs():
            log = _written(path)
            assert read_offsets(log) == BEFORE
            with crash_at(number) as made:
                try:
                    run(begin(log))
                except Crash:
                    pass
            outcomes.append(_check(open_compacted(str(path), Past(ending, 11, 0))))
        if len(made) < number:
            break
    # each segment group is swapped on its own: from all old, over some new, to all new, and never back
    assert outcomes == sorted(outcomes)
    assert outcomes[0] == 0
    assert outcomes[-1] == len(BEFORE) - len(AFTER)
    assert len(outcomes) > 20


@pytest.mark.parametrize("ending", [Ending.PROCESS_CRASH, Ending.POWER_LOSS])
def test_readers_are_told_of_no_abort_whose_marker_is_gone(tmp_path: Path, ending: Ending) -> None:
    """They would leave out all that its producer has written since."""
    for number in range(1_000):
        path = tmp_path / str(number)
        with without_syncs():
            log = _aborted(path)
            with crash_at(number) as made:
                try:
                    run(begin(log, now_ms=NOW_MS + 1_000))
                except Crash:
                    pass
        log = open_compacted(str(path), Past(ending, 15, 0))
        told = log.aborted_transactions(0, log.next_offset)
        assert len(told) <= _markers_of_aborts(log), f"after {number} calls"
        if len(made) < number:
            break


@pytest.mark.parametrize("ending", [Ending.PROCESS_CRASH, Ending.POWER_LOSS])
def test_an_abort_is_forgotten_wherever_the_completion_of_a_swap_crashes(
    tmp_path: Path, ending: Ending
) -> None:
    """The start after a crash makes a swap that was prepared, and may crash itself."""
    past = Past(ending, 15, 0)
    for number in range(1_000):
        path = tmp_path / str(number)
        with without_syncs():
            log = _aborted(path)
            round_ = begin(log, now_ms=NOW_MS + 1_000)
            round_.clean()
            round_.prepare()
            with crash_at(number) as made:
                try:
                    open_compacted(str(path), past)
                except Crash:
                    pass
            for _ in range(2):  # neither of which makes anything durable
                again = open_compacted(str(path), past)
                assert _markers_of_aborts(again) == 0
                assert again.aborted_transactions(0, again.next_offset) == [], f"{number} calls"
        if len(made) < number:
            break
    assert number > 8


def test_a_start_after_a_crash_does_not_look_for_the_marker_of_every_abort(tmp_path: Path) -> None:
    """There may be many thousands, and the event loop waits."""
    count = 200
    log, history = open_compacted(str(tmp_path), topic_config=config()), History()
    for _ in range(count):
        history.append(Step(1, True, None, Codec.NONE, [(b"b", b"1", 1)]))
        history.append(Step(1, True, ControlType.ABORT, Codec.NONE, []))
    write(log, history.batches)
    history.append(_put(b"a", b"1"))
    write(log, history.batches[-1:])
    with without_syncs():
        run(begin(log))
        log.flush()
    found: list[int] = []
    find = Segment.find

    def counted(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
        found.append(offset)
        return find(segment, offset)

    with patch.object(Segment, "find", counted):
        again = open_compacted(str(tmp_path), Past(Ending.PROCESS_CRASH, log.next_offset, 0))
    assert len(again.aborted_transactions(0, again.next_offset)) == count
    assert len(found) < 20


def _aborted(path: Path) -> Log:
    """The next round, after a while, takes the marker of its aborted transaction."""
    log = _written(path)
    for round_ms in range(4):  # its records go, then it gets its horizon
        run(begin(log, now_ms=NOW_MS + round_ms))
        write(log, _more(log, round_ms))
    assert _markers_of_aborts(log) == len(log.aborted_transactions(0, log.next_offset)) == 1
    log.flush()
    return log


def _more(log: Log, number: int) -> list[bytearray]:
    """A record of the producer that aborted: now its aborted batch is not its last one."""
    return [
        build_batch(
            [Record(log.next_offset, 1, b"c", b"%d" % number)],
            base_offset=log.next_offset,
            leader_epoch=1,
            producer_id=1,
            producer_epoch=0,
            base_sequence=1 + number,
        )
    ]


def _markers_of_aborts(log: Log) -> int:
    count = 0
    for segment in log.segments:
        for position, header in segment.headers():
            batch = segment.read_batch(position, header)
            if header.is_control and header.record_count:
                marker = decode_marker(memoryview(batch), header)
                count += marker is not None and marker.type is ControlType.ABORT
    return count


def _check(log: Log) -> int:
    """How many records the first opening after the crash found gone."""
    found = read_offsets(log)
    assert set(AFTER) <= set(found) <= set(BEFORE)
    assert log.next_offset == 11
    leftovers = [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]
    assert leftovers == []
    for segment, following in zip(log.segments, list(log.segments)[1:], strict=False):
        assert segment.next_offset == following.base_offset
    if 1 in found:  # the aborted record is still there, and so must be the knowledge of it
        assert [aborted.producer_id for aborted in log.aborted_transactions(0, 11)] == [1]
    assert {pid: producer.next_sequence for pid, producer in log.producers} == {1: 1, 2: 1}
    assert log.first_unstable_offset is None
    if assess(log, log.next_offset, NOW_MS) is not None:
        assert first_dirty(log) == 0
        run(begin(log))
    assert read_offsets(log) == AFTER
    assert extents(log)[-1] == (11, 11)
    return len(BEFORE) - len(found)


def test_a_crash_in_the_middle_of_recovery_is_recovered_from(tmp_path: Path) -> None:
    for number in range(1_000):
        path = tmp_path / str(number)
        past = Past(Ending.PROCESS_CRASH, 11, 0)
        with without_syncs():
            round_ = begin(_written(path))
            round_.clean()
            round_.prepare()  # and no more: from here on it is recovery that installs
            with crash_at(number) as made:
                try:
                    open_compacted(str(path), past)
                except Crash:
                    pass
            again = open_compacted(str(path), past)
            assert read_offsets(again) == AFTER
            _check(again)
        if len(made) < number:
            break
    assert number > 8
