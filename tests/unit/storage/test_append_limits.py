"""Where segments end, and what an append that fails leaves behind, whichever way the batches come."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import Struct

import pytest

from penstock.model.configs import TopicConfig
from penstock.model.errors import CorruptBatch, DiskFull, StorageFault
from penstock.records.batch import CONTROL_BIT, CRC_START, HEADER_SIZE, renew_checksum, stamp
from penstock.records.record import decode_records
from penstock.storage.log import Log
from tests.unit.storage.logs import (
    EIO,
    ENOSPC,
    NOW_MS,
    FaultyDisk,
    batch,
    failing,
    new_log,
    put,
    raw,
    reopened,
)
from tests.unit.storage.test_append_paths import (
    INDEX_ENTRY_BYTES,
    SIZE,
    Made,
    known_to,
    lead_one_by_one,
    lead_together,
)

FARTHEST = (1 << 31) - 1  # the largest offset in a segment that begins at 0
_ATTRIBUTES = Struct(">h")
ROOMY = TopicConfig(segment_bytes=100_000, index_interval_bytes=0)


def lead_then_follow(log: Log, groups: list[Made]) -> None:
    """The follower fetches all at once."""
    leader = new_log(f"{log.path}-of-the-leader", log.config)
    lead_one_by_one(leader, groups)
    log.append_as_follower(memoryview(bytearray(raw(leader))))


WAYS: dict[str, Callable[[Log, list[Made]], object]] = {
    "one by one": lead_one_by_one,
    "together": lead_together,
    "from the leader": lead_then_follow,
}


def plain(count: int, *, apart_ms: int = 0) -> list[bytes]:
    times = [NOW_MS + number * apart_ms for number in range(count)]
    return [bytes(batch(b"v" * 30, time_ms=time_ms)) for time_ms in times]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("limits", "begins"),
    [
        ({"segment_bytes": 3 * SIZE - 1}, [0, 2, 4, 6]),
        ({"segment_bytes": 3 * SIZE}, [0, 3, 6]),
        ({"segment_bytes": 4 * SIZE - 1}, [0, 3, 6]),
        ({"segment_bytes": 4 * SIZE}, [0, 4]),
        ({"segment_bytes": 1}, [0, 1, 2, 3, 4, 5, 6]),
        ({"segment_ms": 199}, [0, 2, 4, 6]),
        ({"segment_ms": 200}, [0, 3, 6]),
        ({"segment_ms": 299}, [0, 3, 6]),
        ({"segment_ms": 300}, [0, 4]),
        ({"segment_index_bytes": 2 * INDEX_ENTRY_BYTES - 1}, [0, 2, 4, 6]),
        ({"segment_index_bytes": 2 * INDEX_ENTRY_BYTES}, [0, 3, 6]),
        ({"segment_index_bytes": 3 * INDEX_ENTRY_BYTES - 1}, [0, 3, 6]),
        ({"segment_index_bytes": 3 * INDEX_ENTRY_BYTES}, [0, 4]),
        ({"segment_index_bytes": 4}, [0, 2, 4, 6]),
    ],
    ids=str,
)
def test_a_segment_ends_where_the_settings_say(
    tmp_path: Path,
    way: Callable[[Log, list[Made]], object],
    limits: dict[str, int],
    begins: list[int],
) -> None:
    """The first batch of a segment gets no index entry, each later one does."""
    log = new_log(tmp_path, replace(ROOMY, **limits))  # type: ignore[arg-type] # all are numbers
    batches = plain(7, apart_ms=100)
    way(log, [Made(batches[at : at + 2], rolls=False, epoch=1) for at in range(0, 7, 2)])
    assert [segment.base_offset for segment in log.segments] == begins


def test_batches_that_fit_are_one_write(tmp_path: Path) -> None:
    log = new_log(tmp_path / "together", ROOMY, FaultyDisk())
    groups = [Made(plain(1), rolls=False, epoch=1), Made(plain(20), rolls=False, epoch=1)]
    assert lead_together(log, groups) == 1
    follower = new_log(tmp_path / "followed", ROOMY, disk := FaultyDisk())
    follower.append_as_follower(memoryview(bytearray(raw(log)[:SIZE])))
    disk.calls.clear()
    follower.append_as_follower(memoryview(bytearray(raw(log)[SIZE:])))
    assert disk.calls == ["write"]
    assert raw(follower) == raw(log)


def test_more_batches_than_a_call_takes_are_all_written(tmp_path: Path) -> None:
    leader, follower = new_log(tmp_path / "leader", ROOMY), new_log(tmp_path / "follower", ROOMY)
    lead_one_by_one(leader, [Made([bytes(batch(b""))] * 2500, rolls=False, epoch=1)])
    whole = raw(leader)
    follower.append_as_follower(memoryview(bytearray(whole[: len(whole) // 2500])))
    follower.append_as_follower(memoryview(bytearray(whole[len(whole) // 2500 :])))
    assert raw(follower) == whole


def _one(log: Log, batches: list[memoryview]) -> object:
    return log.append_as_leader(batches[0], leader_epoch=2, now_ms=NOW_MS)


def _run(log: Log, batches: list[memoryview]) -> object:
    return log.append_run(batches, leader_epoch=2, now_ms=NOW_MS)


def _fetched(log: Log, batches: list[memoryview]) -> None:
    for offset, records in enumerate(batches, log.next_offset):
        stamp(records, offset, 2)
    log.append_as_follower(memoryview(bytearray(b"".join(batches))))


@pytest.mark.parametrize("append", [_one, _run, _fetched])
@pytest.mark.parametrize("taken", [0, 1, SIZE - 1])
@pytest.mark.parametrize(("code", "error"), [(ENOSPC, DiskFull), (EIO, StorageFault)])
def test_an_append_that_fails_leaves_nothing_behind(
    tmp_path: Path,
    append: Callable[[Log, list[memoryview]], object],
    taken: int,
    code: int,
    error: type[Exception],
) -> None:
    """Neither bytes nor state, also when the kernel has taken a part."""
    log = new_log(tmp_path, ROOMY, disk := FaultyDisk())
    put(log, b"first", producer_id=7, producer_epoch=0, base_sequence=0)
    before, content = known_to(log), raw(log)
    written: list[int] = []

    def fault(call: str, size: int) -> int | None:
        if call != "write":
            return None
        written.append(size)
        if not taken or len(written) > 1:
            raise OSError(code, "it failed")
        return taken

    disk.fault = fault
    batches = [
        batch(b"v" * 30, producer_id=7, producer_epoch=0, base_sequence=number)
        for number in (1, 2, 3)
    ]
    with pytest.raises(error):
        append(log, batches)
    assert (known_to(log), raw(log)) == (before, content)
    assert Path(log.segments[-1].file.path).read_bytes() == content


def test_a_follower_keeps_what_was_written_before_the_disk_was_full(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=4 * SIZE, index_interval_bytes=0)
    leader = new_log(tmp_path / "leader", config)
    lead_one_by_one(leader, [Made(plain(10), rolls=False, epoch=1)])
    written: list[int] = []

    def fault(call: str, size: int) -> None:
        if call == "write" and size >= SIZE:  # of batches; an index gets less
            written.append(size)
            if len(written) == 3:
                raise OSError(ENOSPC, "full")

    follower = new_log(tmp_path / "follower", config, FaultyDisk(fault))
    with pytest.raises(DiskFull):
        follower.append_as_follower(memoryview(bytearray(raw(leader))))
    kept = follower.next_offset
    assert 0 < kept < 10
    assert raw(follower) == raw(leader)[: kept * SIZE]
    assert follower.size_bytes == follower.unflushed_bytes == kept * SIZE
    follower.append_as_follower(memoryview(bytearray(raw(leader)[kept * SIZE :])))
    assert raw(follower) == raw(leader)


def test_a_follower_keeps_a_control_batch_that_it_cannot_decode(tmp_path: Path) -> None:
    """Its checksum holds: some other broker wrote it. The bytes are in the file, and the log knows of them."""
    odd = batch(b"v", b"w")
    _ATTRIBUTES.pack_into(odd, CRC_START, CONTROL_BIT)
    odd[HEADER_SIZE + 3] = 9  # the first record's offset delta
    renew_checksum(odd)
    with pytest.raises(CorruptBatch):
        decode_records(odd)
    follower = new_log(tmp_path, ROOMY)
    follower.append_as_follower(odd)
    after = batch(b"after")
    stamp(after, 2, 1)
    follower.append_as_follower(after)
    assert raw(follower) == bytes(odd) + bytes(after)
    assert raw(reopened(tmp_path, config=ROOMY)) == raw(follower)


def far_log(path: Path, offset: int) -> Log:
    """A log of one segment that begins at 0, whose next batch gets the offset."""
    log = new_log(path, ROOMY)
    put(log, b"first")
    far = batch(b"v")
    stamp(far, offset - 1, 1)
    with pytest.raises(Exception, match="leave out the offsets"):
        log.append_as_follower(far)
    log.append_as_follower(far)
    assert (log.next_offset, len(log.segments)) == (offset, 1)
    return log


@pytest.mark.parametrize("way", [lead_one_by_one, lead_together])
def test_a_segment_takes_the_farthest_offset_that_an_index_can_name(
    tmp_path: Path, way: Callable[[Log, list[Made]], object]
) -> None:
    log = far_log(tmp_path, FARTHEST - 2)
    way(log, [Made(plain(3), rolls=False, epoch=1)])
    assert len(log.segments) == 1
    way(log, [Made(plain(2), rolls=False, epoch=1)])
    assert [segment.base_offset for segment in log.segments] == [0, FARTHEST + 1]
    follower = far_log(tmp_path / "follower", FARTHEST - 2)
    follower.append_as_follower(memoryview(bytearray(raw(log, FARTHEST - 2))))
    assert [segment.base_offset for segment in follower.segments] == [0, FARTHEST + 1]


def test_a_batch_that_could_not_be_written_does_not_age_the_segment(tmp_path: Path) -> None:
    config = TopicConfig(segment_ms=1000)
    log = new_log(tmp_path, config, disk := FaultyDisk())
    put(log, b"a")
    log.roll()
    disk.fault = failing("write", ENOSPC)
    with pytest.raises(DiskFull):
        put(log, b"lost", time_ms=NOW_MS + 100_000)
    disk.fault = FaultyDisk().fault
    put(log, b"b", time_ms=NOW_MS)
    put(log, b"c", time_ms=NOW_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_a_full_index_stays_full_when_settings_change(tmp_path: Path) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=2 * INDEX_ENTRY_BYTES)
    log = new_log(tmp_path, config)
    lead_one_by_one(log, [Made(plain(3), rolls=False, epoch=1)])
    log.configure(config)
    lead_one_by_one(log, [Made(plain(1), rolls=False, epoch=1)])
    assert [segment.base_offset for segment in log.segments] == [0, 3]
