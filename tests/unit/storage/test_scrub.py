"""Closed segments are read again now and then, and damage is found before a reader finds it."""

from pathlib import Path

import pytest

from penstock.storage.log import Log
from penstock.storage.recovery import Ending
from penstock.storage.segment import DamagedLog
from tests.unit.storage.logs import NOW_MS, fill, flip, new_log, paths, put, reopened


def scrub_all(log: Log, step_bytes: int = 100) -> int:
    """Every closed segment, in steps; the bytes that were read."""
    after, total = log.start_offset, 0
    while (scrub := log.scrub(after)) is not None:
        while not scrub.done:
            total += scrub.step(step_bytes)
        log.scrubbed(scrub)
        after = scrub.next_offset
    return total


@pytest.mark.parametrize("step_bytes", [1, 100, 1 << 20])
def test_every_closed_byte_is_read(tmp_path: Path, step_bytes: int) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    assert scrub_all(log, step_bytes) == log.size_bytes - log.segments[-1].size_bytes
    assert new_log(tmp_path / "other").scrub(0) is None


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    second = log.segments[1]
    flip(paths(log)[1], 150)

    with pytest.raises(DamagedLog, match=rf"{second.base_offset:020d}\.log: damaged at byte \d+"):
        scrub_all(log)


def test_a_segment_that_lost_its_end_is_found(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    log.close()
    second = paths(log)[1]
    count = log.segments[2].base_offset - log.segments[1].base_offset
    second.write_bytes(second.read_bytes()[: -second.stat().st_size // count])
    found = reopened(tmp_path, Ending.CLEAN, 30)

    with pytest.raises(DamagedLog, match="it should reach to offset"):
        scrub_all(found)


def test_a_log_that_is_cut_meanwhile_is_not_damaged(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    scrub = log.scrub(0)
    assert scrub is not None
    scrub.step(1)
    log.truncate_to(2)
    fill(log, 10)
    while not scrub.done:
        scrub.step(1)


def test_a_segment_that_is_deleted_meanwhile_is_still_read(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    scrub = log.scrub(0)
    assert scrub is not None
    log.delete_records_before(30)
    while not scrub.done:
        scrub.step(64)
    log.scrubbed(scrub)


def test_a_time_index_that_lost_an_entry_is_put_right(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"a" * 150, time_ms=NOW_MS)
    put(log, b"b" * 150, time_ms=NOW_MS + 9)
    put(log, b"c" * 10, time_ms=NOW_MS + 1)
    put(log, b"d" * 400, time_ms=NOW_MS + 2)
    log.close()
    index = paths(log, ".timeindex")[0]
    index.write_bytes(b"".join([NOW_MS.to_bytes(8, "big"), bytes(4)]))
    found = reopened(tmp_path, Ending.CLEAN, 4)
    scrub_all(found)

    assert found.segments[0].newest()[0] == NOW_MS + 9
