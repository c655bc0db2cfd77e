"""The files of a log do not depend on how its batches come: one by one, several together, or from the leader."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.model.errors import DiskFull
from penstock.records.batch import BatchHeader
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
    raw,
    scratch,
)
from tests.unit.storage.test_producers import described

SIZE = len(batch(b"v" * 30))  # of most batches here: some segments are filled to the last byte
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", "leader-epochs")
INDEX_ENTRY_BYTES = 12


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


PLAIN = Item(30, 1, -1, 0)
ODD = st.builds(
    Item,
    st.sampled_from([30, 30, 1, 200, 900]),
    st.sampled_from([1, 1, 3]),
    st.sampled_from([-1, 7, 8]),
    st.sampled_from([0, 0, 59_999, 60_000, 60_001, 130_000, None]),
)
ITEMS = st.one_of(st.just(PLAIN), st.just(PLAIN), ODD)
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


def known_to(log: Log) -> object:
    epochs = log.epochs.entries()
    return log.next_offset, log.size_bytes, log.unflushed_bytes, epochs, described(log)


def succeeds(log: Log, action: Callable[[], object]) -> bool:
    """Whether there was room. If not, the log knows of nothing."""
    before = known_to(log)
    try:
        action()
    except DiskFull:
        assert known_to(log) == before
        return False
    return True


def append_alone(log: Log, records: bytes, epoch: int) -> None:
    """As a client that tries again while the disk is full."""

    def attempt() -> None:
        copy = memoryview(bytearray(records))
        appended = log.append_as_leader(copy, leader_epoch=epoch, now_ms=NOW_MS)
        assert not appended.duplicate

    while not succeeds(log, attempt):
        pass


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
        end = log.next_offset
        append_run = partial(log.append_run, copies, leader_epoch=group.epoch, now_ms=NOW_MS)
        if succeeds(log, append_run) and log.next_offset > end:
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
    while log.next_offset < end:
        if log.next_offset in leader.rolled_at:
            log.roll()  # nothing, if it is done already
        with suppress(DiskFull):  # what was written before stays
            log.append_as_follower(leader.fetched(log.next_offset, next(counts)))


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
