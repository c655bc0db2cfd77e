"""A process may die before any call that changes a file: what it leaves opens as before the step or after it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.model.configs import TopicConfig
from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from tests.unit.storage.logs import (
    COMPACTED,
    FaultyDisk,
    fill,
    headers,
    new_log,
    put,
    raw,
    reopened,
    scratch,
    values,
)

CHANGING = ("rename", "replace", "unlink", "mkdir")


class Died(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


@contextmanager
def dying_at(limit: int, disk: FaultyDisk) -> Iterator[list[int]]:
    """The call number `limit` that changes a file is not made, nor any after it."""
    done = [0]

    def count() -> None:
        if done[0] >= limit:
            raise Died
        done[0] += 1

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            count()
            return real(*arguments, **options)

        return call

    def opened(path: str, flags: int, mode: int = 0o777, **options: int) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            count()
        return real_open(path, flags, mode, **options)

    def fault(call: str, _size: int) -> None:
        if call != "sync":
            count()

    real_open, real = os.open, {name: getattr(os, name) for name in CHANGING}
    disk.fault = fault
    for name, function in real.items():
        setattr(os, name, counted(function))
    os.open = opened  # type: ignore[assignment] # put back below
    try:
        yield done
    finally:
        os.open = real_open
        for name, function in real.items():
            setattr(os, name, function)


def append_and_roll(log: Log) -> None:
    put(log, b"new" * 150)


def truncate(log: Log) -> None:
    log.truncate_to(8)


def delete(log: Log) -> None:
    log.delete_records_before(17)


def delete_all(log: Log) -> None:
    log.delete_records_before(30)


def restart(log: Log) -> None:
    log.truncate_fully_and_start_at(100)


def close(log: Log) -> None:
    log.close()


def retain(log: Log) -> None:
    log.configure(TopicConfig(segment_bytes=600, index_interval_bytes=100, retention_bytes=900))
    log.apply_retention(0, upto_offset=30)


STEPS = (append_and_roll, truncate, delete, delete_all, restart, close, retain)


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_cut_short_anywhere_leaves_a_log_that_is_whole(
    step: Callable[[Log], None], flushed: bool
) -> None:
    for limit in range(200):
        with scratch() as path:
            disk = FaultyDisk()
            log = new_log(path, disk=disk)
            fill(log, 30)
            if flushed:
                log.flush()
            before, point = values(log), log.recovery_point
            try:
                with dying_at(limit, disk):
                    step(log)
                finished = True
            except Died:
                finished = False

            found = reopened(path, Ending.PROCESS_CRASH, point, start=0)
            _check(found, before, step, finished)
            again = reopened(path, Ending.PROCESS_CRASH, point, start=0)
            assert (again.start_offset, again.next_offset) == (
                found.start_offset,
                found.next_offset,
            )
            base = found.next_offset
            assert put(found, b"goes on").base_offset == base
            assert values(found, base) == [b"goes on"]
        if finished:
            assert limit > 0
            return
    pytest.fail("it never came to its end")


def test_a_cut_behind_a_gap_that_is_cut_short_anywhere_leaves_a_log_that_is_whole() -> None:
    """It ends before the cut, behind the gap, or before it: nowhere else, and never as if it were damaged."""
    for limit in range(200):
        with scratch() as path:
            disk = FaultyDisk()
            leader, log = new_log(f"{path}/leader"), new_log(path, COMPACTED, disk)
            fill(leader, 30)
            whole = bytearray(raw(leader))
            size = len(whole) // 30
            log.append_as_follower(memoryview(whole[: 5 * size]))
            log.append_as_follower(memoryview(whole[20 * size :]))
            log.flush()
            try:
                with dying_at(limit, disk):
                    log.truncate_to(20)
                finished = True
            except Died:
                finished = False
            found = reopened(path, Ending.PROCESS_CRASH, 30, start=0, has_copies=True)
            left = [header.base_offset for header in headers(raw(found)) if header.record_count]
            expected = [*range(5), *range(20, 30)]
            assert left == expected[: len(left)]
            assert len(left) >= 5
            assert found.next_offset in ((20,) if finished else (5, 20, *range(21, 31)))
        if finished:
            return
    pytest.fail("it never came to its end")


def _check(
    found: Log, before: list[bytes | None], step: Callable[[Log], None], finished: bool
) -> None:
    left = values(found, found.start_offset)
    if step is append_and_roll:
        assert left[:30] == before
        assert len(left) == 31 if finished else len(left) in (30, 31)
    elif step is truncate:
        assert left == before[: found.next_offset]
        assert found.next_offset == 8 if finished else found.next_offset >= 8
    elif step is restart and found.start_offset == found.next_offset:
        assert found.next_offset in (0, 30, 100)
    elif step is restart:
        assert left == before[: found.next_offset]
    else:
        assert found.next_offset == 30
        assert left == before[found.start_offset :]
        assert found.start_offset == 0 or step is not close


def test_the_first_append_ever_may_be_cut_short_anywhere(tmp_path: Path) -> None:
    for limit in range(50):
        path, disk = tmp_path / str(limit), FaultyDisk()
        path.mkdir()
        try:
            with dying_at(limit, disk):
                put(new_log(path, disk=disk), b"first")
            finished = True
        except Died:
            finished = False
        found = reopened(path)
        assert values(found) == ([b"first"] if finished else [])
        assert put(found, b"next").base_offset == finished
        if finished:
            return
    pytest.fail("it never came to its end")
