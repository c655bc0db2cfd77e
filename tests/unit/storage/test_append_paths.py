"""The files of a log do not depend on how its batches come: one by one, several together, or from the leader."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.model.errors import CorruptBatch, DiskFull
from penstock.records.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    BatchHeader,
    renew_checksum,
    stamp,
)
from penstock.records.record import decode_records
from penstock.storage.limits import jitter_ms
from penstock.storage.log import Log
from tests.unit.storage.logs import (
    ENOSPC,
    NOW_MS,
    TOPIC_ID,
    FaultyDisk,
    batch,
    headers,
    new_log,
    put,
    raw,
    reopened,
    scratch,
)
from tests.unit.storage.test_producers import described

SIZE = len(
    batch(b"v" * 30)
)  # of most batches here, so that some segments are filled to the last byte
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", "leader-epochs")
INDEX_ENTRY_BYTES = 12
_ATTRIBUTES = Struct(">h")
FARTHEST = (1 << 31) - 1  # the largest offset in a segment that begins at 0


class Item(NamedTuple):
    """One batch."""

    value_bytes: int
    records: int
    producer: int  # -1: none
    later_ms: int | None  # None: it has no timestamp


class Group(NamedTuple):
    """Batches that arrive together."""

    items: list[Item]
    rolls: bool  # before them
    begins_epoch: bool


class Made(NamedTuple):
    """A group as its producers send it."""

    batches: list[bytes]
    rolls: bool
    epoch: int


ITEMS = st.builds(
    Item,
    st.sampled_from([30, 30, 30, 1, 200, 900]),
    st.sampled_from([1, 1, 1, 3]),
    st.sampled_from([-1, -1, 7, 8]),
    st.sampled_from([0, 0, 0, 0, 59_999, 60_000, 60_001, 130_000, None]),
)
GROUPS = st.lists(
    st.builds(
        Group,
        st.lists(ITEMS, min_size=1, max_size=12),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=6,
)
CONFIGS = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from([50, 3 * SIZE - 1, 3 * SIZE, 3 * SIZE + 1, 20 * SIZE, 100_000]),
    segment_ms=st.just(60_000),
    segment_jitter_ms=st.sampled_from([0, 0, 30_000, 90_000]),
    index_interval_bytes=st.sampled_from([0, 0, SIZE, 300, 4096]),
    segment_index_bytes=st.sampled_from([4, 24, 59, 60, 100_000]),
)
FAULTS = st.lists(st.sampled_from(["well", "well", "short", "full"]), max_size=25)


def made_of(groups: list[Group]) -> list[Made]:
    sequences: dict[int, int] = {}
    found, epoch = [], 1
    for group in groups:
        epoch += group.begins_epoch
        found.append(Made([built(item, sequences) for item in group.items], group.rolls, epoch))
    return found


def built(item: Item, sequences: dict[int, int]) -> bytes:
    fields: dict[str, Any] = {}
    if item.producer >= 0:
        sequence = sequences.get(item.producer, 0)
        sequences[item.producer] = sequence + item.records
        fields = {
            "producer_id": item.producer,
            "producer_epoch": 0,
            "base_sequence": sequence,
        }
    time_ms = -1 if item.later_ms is None else NOW_MS + item.later_ms
    return bytes(batch(*[b"v" * item.value_bytes] * item.records, time_ms=time_ms, **fields))


def faulty(outcomes: list[str]) -> FaultyDisk:
    """A disk whose next writes end like that, and all later ones well."""
    left = iter(outcomes)

    def fault(call: str, size: int) -> int | None:
        outcome = next(left, "well") if call == "write" else "well"
        if outcome == "full":
            raise OSError(ENOSPC, "full")
        return size // 2 if outcome == "short" and size > 1 else None

    return FaultyDisk(fault)


# The ways into a log ---------------------------------------------------------------------------


def persistently(action: Callable[[], object]) -> object:
    """As a client or a follower that tries again while the disk is full."""
    while True:
        try:
            return action()
        except DiskFull:
            continue


def append_alone(log: Log, records: bytes, epoch: int) -> None:
    def attempt() -> object:
        copy = memoryview(bytearray(records))
        appended = log.append_as_leader(copy, leader_epoch=epoch, now_ms=NOW_MS)
        assert not appended.duplicate
        return appended

    persistently(attempt)


def lead_one_by_one(log: Log, groups: list[Made]) -> None:
    for group in groups:
        if group.rolls:
            log.roll()
        for records in group.batches:
            append_alone(log, records, group.epoch)


def lead_together(log: Log, groups: list[Made]) -> int:
    """How many of the groups were one write."""
    together = 0
    for group in groups:
        if group.rolls:
            log.roll()
        copies = [memoryview(bytearray(records)) for records in group.batches]
        try:
            appended = log.append_run(copies, leader_epoch=group.epoch, now_ms=NOW_MS)
        except DiskFull:
            appended = None
        if appended is not None:
            together += 1
            continue
        assert [bytes(copy) for copy in copies] == group.batches
        for records in group.batches:
            append_alone(log, records, group.epoch)
    return together


class Leaders(NamedTuple):
    """A log as followers fetch it."""

    batches: list[tuple[BatchHeader, bytes]]
    rolled_at: set[int]  # offsets

    def fetched(self, offset: int, count: int) -> memoryview:
        """At most `count` batches, and none past the next roll."""
        found = b""
        for header, records in self.batches:
            if header.base_offset < offset:
                continue
            if count == 0 or (found and header.base_offset in self.rolled_at):
                break
            found += records
            count -= 1
        return memoryview(bytearray(found))


def leaders(log: Log, groups: list[Made]) -> Leaders:
    data, found, position = raw(log), [], 0
    for header in headers(data):
        found.append((header, data[position : position + header.size_bytes]))
        position += header.size_bytes
    rolled_at, number = set(), 0
    for group in groups:
        if group.rolls:
            rolled_at.add(found[number][0].base_offset)
        number += len(group.batches)
    return Leaders(found, rolled_at)


def follow(log: Log, leader: Leaders, counts: Iterator[int], end: int) -> None:
    def attempt(count: int) -> None:
        log.append_as_follower(leader.fetched(log.next_offset, count))

    while log.next_offset < end:
        if log.next_offset in leader.rolled_at:
            log.roll()
        persistently(partial(attempt, next(counts)))


# What must come of it --------------------------------------------------------------------------


def segments_begin(leader: Leaders, config: TopicConfig) -> list[int]:
    """Where segments must begin, by the settings and the batches alone."""
    begins: list[int] = []
    size = after_ms = unindexed = entries = 0
    for header, records in leader.batches:
        if (
            not begins
            or header.base_offset in leader.rolled_at
            or size + len(records) > config.segment_bytes
            or header.max_timestamp_ms > after_ms
            or entries >= max(config.segment_index_bytes // INDEX_ENTRY_BYTES, 1)
        ):
            begins.append(header.base_offset)
            jitter = jitter_ms(config, TOPIC_ID, 0, header.base_offset)
            is_timed = header.max_timestamp_ms >= 0
            after_ms = header.max_timestamp_ms + config.segment_ms - jitter if is_timed else 1 << 62
            size = unindexed = entries = 0
        size += len(records)
        if unindexed > config.index_interval_bytes:
            entries, unindexed = entries + 1, 0
        unindexed += len(records)
    return begins


def files_of(log: Log) -> dict[str, bytes]:
    disk = log._files.disk
    assert isinstance(disk, FaultyDisk)
    disk.fault = FaultyDisk().fault
    log.close()
    return {
        path.name: path.read_bytes()
        for path in Path(log.path).iterdir()
        if path.name.endswith(SUFFIXES)
    }


@settings(max_examples=120, deadline=None)
@given(config=CONFIGS, groups=GROUPS, data=st.data())
def test_the_files_of_a_log_do_not_depend_on_how_its_batches_came(
    config: TopicConfig, groups: list[Group], data: st.DataObject
) -> None:
    made = made_of(groups)
    with scratch() as path:
        alone, together, followed = (
            new_log(f"{path}/{name}", config, faulty(data.draw(FAULTS, name)))
            for name in ("alone", "together", "followed")
        )
        lead_one_by_one(alone, made)
        lead_together(together, made)
        leader = leaders(alone, made)
        counts = iter(lambda: data.draw(st.integers(1, 20), "fetched"), None)
        follow(followed, leader, counts, alone.next_offset)

        expected = segments_begin(leader, config)
        for log in (alone, together, followed):
            assert [segment.base_offset for segment in log.segments] == expected
            assert log.unflushed_bytes == log.size_bytes
            assert described(log) == described(alone)
        files = files_of(alone)
        assert files_of(together) == files
        assert files_of(followed) == files


# Some cases by name ----------------------------------------------------------------------------

ROOMY = TopicConfig(segment_bytes=100_000, index_interval_bytes=0)
WAYS: dict[str, Callable[[Log, list[Made]], object]] = {
    "one by one": lead_one_by_one,
    "together": lead_together,
}


def plain(count: int) -> list[bytes]:
    return [bytes(batch(b"v" * 30)) for _ in range(count)]


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


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_segment_takes_the_farthest_offset_that_an_index_can_name(
    tmp_path: Path, way: Callable[[Log, list[Made]], object]
) -> None:
    log = far_log(tmp_path, FARTHEST - 2)
    way(log, [Made(plain(5), rolls=False, epoch=1)])
    assert [segment.base_offset for segment in log.segments] == [0, FARTHEST + 1]
    follower = far_log(tmp_path / "follower", FARTHEST - 2)
    follower.append_as_follower(memoryview(bytearray(raw(log, FARTHEST - 2))))
    assert [segment.base_offset for segment in follower.segments] == [0, FARTHEST + 1]


def test_a_batch_that_could_not_be_written_does_not_age_the_segment(tmp_path: Path) -> None:
    config = TopicConfig(segment_ms=1000)
    log = new_log(tmp_path, config, disk := FaultyDisk())
    put(log, b"a")
    log.roll()
    disk.fault = faulty(["full"]).fault
    with pytest.raises(DiskFull):
        put(log, b"lost", time_ms=NOW_MS + 100_000)
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
