"""A log rejects every change once it is being closed: its size stays the one that the clean stop writes down."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import BrokerError, StorageFault
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.storage.directory import DataDirectory
from penstock.storage.log import Log, Origin
from penstock.storage.recovery import Ending
from penstock.storage.swap import Swap
from tests.unit.storage.logs import (
    NOW_MS,
    SMALL,
    TOPIC_ID,
    batch,
    fill,
    new_log,
    put,
    raw,
    reopened,
    values,
)


def _own(log: Log) -> object:
    marker = EndMarker(ControlType.COMMIT, 1)
    built = build_marker(marker, producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS)
    return log.append_as_leader(
        memoryview(built), leader_epoch=1, now_ms=NOW_MS, origin=Origin.COORDINATOR
    )


def _run(log: Log) -> object:
    """`append_run` returns None when the batches must be appended one by one."""
    appended = log.append_run([batch(b"a"), batch(b"b")], leader_epoch=1, now_ms=NOW_MS)
    return put(log, b"a") if appended is None else appended


CHANGES: dict[str, Callable[[Log], object]] = {
    "a client's batch": lambda log: put(log, b"late"),
    "a run of batches": _run,
    "a marker": _own,
    "the leader's batch": lambda log: log.append_as_follower(
        batch(b"late", base_offset=log.next_offset)
    ),
    "the leader's batch, after a hole": lambda log: log.append_as_follower(
        batch(b"late", base_offset=log.next_offset + 5)
    ),
    "a mirrored batch": lambda log: log.append_mirrored(
        batch(b"late", base_offset=log.next_offset), log.next_offset, 1
    ),
    "a promotion": lambda log: log.promote(1, leader_epoch=1, now_ms=NOW_MS),
    "a cut": lambda log: log.truncate_to(1),
    "a cut to nothing": lambda log: log.truncate_fully_and_start_at(100),
    "deleted records": lambda log: log.delete_records_before(log.next_offset),
    "retention": lambda log: log.apply_retention(1 << 60, upto_offset=log.next_offset),
    "a roll": lambda log: log.roll(),
    "a compaction": lambda log: log.replace_segments(Swap((0,), (0,))),
}
ENDS: dict[str, Callable[[Log], object]] = {
    "about to be closed": lambda log: log.stop_writes(),
    "being closed": lambda log: log.close_begin(),
    "closed": lambda log: log.close(),
    "abandoned": lambda log: log.abandon(),
}


def _bytes(path: Path) -> dict[str, bytes]:
    return {str(found): found.read_bytes() for found in path.rglob("*") if found.is_file()}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_a_log_that_is_being_closed_rejects_every_change(
    tmp_path: Path, change: Callable[[Log], object], end: Callable[[Log], object], count: int
) -> None:
    log = new_log(tmp_path)
    fill(log, count)
    next_offset = log.next_offset
    end(log)
    before = _bytes(tmp_path)
    with pytest.raises(BrokerError, match="is closed"):
        change(log)
    assert _bytes(tmp_path) == before
    assert log.next_offset == next_offset
    log.close()
    again = reopened(tmp_path, Ending.PROCESS_CRASH, None)
    assert again.next_offset == next_offset
    assert len(values(again)) == count


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("end", ["about to be closed", "being closed", "closed"])
def test_a_log_that_is_being_closed_can_be_read(tmp_path: Path, count: int, end: str) -> None:
    log = new_log(tmp_path)
    fill(log, count)
    before = raw(log)
    ENDS[end](log)
    assert raw(log) == before


def test_a_sealed_segment_rejects_a_batch_before_it_writes_a_byte(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"first")
    segment = log.segments[-1]
    segment.seal()
    size_bytes = segment.file.size
    with pytest.raises(AssertionError, match="does not grow"):
        segment.append(((batch(b"late"), 1, 1, NOW_MS),), 80)
    assert segment.file.size == size_bytes


def test_a_directory_that_is_being_closed_opens_and_deletes_no_log(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), boot_id="b")
    log = directory.log_for("t", TOPIC_ID, 0, SMALL)
    put(log, b"v")
    directory.stop_writes()
    for change in (
        lambda: put(log, b"late"),
        lambda: directory.log_for("t", TOPIC_ID, 1, SMALL),
        lambda: directory.give_up("t", TOPIC_ID, 0),
        lambda: directory.delete_topic("t", TOPIC_ID),
    ):
        with pytest.raises(BrokerError, match="clos"):
            change()
    assert directory.log_for("t", TOPIC_ID, 0, SMALL) is log
    directory.close()
    again = DataDirectory(str(tmp_path), boot_id="b")
    assert again.ending is Ending.CLEAN
    assert again.is_as_left("t", TOPIC_ID, 0)
    assert values(again.log_for("t", TOPIC_ID, 0, SMALL)) == [b"v"]
    again.close()


def test_a_directory_can_be_abandoned_after_its_writes_were_stopped(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), boot_id="b")
    put(directory.log_for("t", TOPIC_ID, 0, SMALL), b"v")
    directory.stop_writes()
    directory.abandon()
    again = DataDirectory(str(tmp_path), boot_id="b")
    assert again.ending is Ending.PROCESS_CRASH
    assert values(again.log_for("t", TOPIC_ID, 0, SMALL)) == [b"v"]
    with pytest.raises(StorageFault):
        DataDirectory(str(tmp_path), boot_id="b")
    again.close()
