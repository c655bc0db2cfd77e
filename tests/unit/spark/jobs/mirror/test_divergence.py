"""The comparison of a mirror with its source finds a lost tail.

Compaction, retention and empty logs are no difference.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record
from penstock.spark.cluster import Location
from penstock.spark.errors import JobError
from penstock.spark.fetching import Fetched
from penstock.spark.jobs.mirror import copy as mirror_copy
from penstock.spark.jobs.mirror.copy import Span, copy_span
from penstock.spark.jobs.mirror.divergence import (
    Comparison,
    IdleChecks,
    Overlap,
    at_once,
    check_marks,
    compare,
    find_difference,
    fingerprints,
    joined_marks,
    new_marks,
)
from penstock.spark.options import parse_batch

Log = Mapping[int, int]  # fingerprints by offset
ORDERS = TopicPartition("orders", 0)
FETCHED = 3  # records that a read returns


def reads(log: Log) -> Callable[[int], Awaitable[Log]]:
    async def read(offset: int) -> Log:
        found = [at for at in sorted(log) if at >= offset][:FETCHED]
        return {at: log[at] for at in found}

    return read


def difference(source: Log, mirror: Log, start: int, end: int) -> int | None:
    return asyncio.run(find_difference(reads(source), reads(mirror), start, end))


def history(count: int, salt: int = 0, start: int = 0) -> dict[int, int]:
    return {offset: offset * 1000 + salt for offset in range(start, start + count)}


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 60), st.integers(0, 20))
def test_lost_tail_is_found_at_its_first_offset(
    common: int, lost: int, more: int, start: int
) -> None:
    """`lost` records of the source are gone, and at least as many others are at their offsets."""
    mirror = history(common + lost)
    source = history(common) | history(lost + more, salt=1, start=common)
    retained = {offset: mark for offset, mark in source.items() if offset >= start}
    expected = max(common, start) if start < common + lost else None
    assert difference(retained, mirror, start, common + lost) == expected


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sets(st.integers(0, 120)),
    st.sets(st.integers(0, 60)),
)
def test_beginning_of_the_source_is_no_difference(
    copied: int, more: int, removed: set[int], removed_here: set[int]
) -> None:
    """Whatever compaction and retention removed from either."""
    source = {o: mark for o, mark in history(copied + more).items() if o not in removed}
    mirror = {o: mark for o, mark in history(copied).items() if o not in removed_here}
    assert difference(source, mirror, 0, copied) is None


@given(st.integers(1, 60), st.integers(1, 60), st.sets(st.integers(0, 120), max_size=100))
def test_compacted_source_is_known_by_what_it_still_has(
    common: int, lost: int, removed: set[int]
) -> None:
    """The last record that both have is always compared if a read reaches as far as the next one does."""
    mirror = history(common + lost)
    source = history(common) | history(lost, salt=1, start=common)
    source = {offset: mark for offset, mark in source.items() if offset not in removed}
    found = difference(source, mirror, 0, common + lost)
    if common + lost - 1 not in removed:
        assert found is not None
    assert found is None or (found >= common and found in source)


def test_what_was_removed_from_both_ends_proves_nothing() -> None:
    assert compare({1: 1}, {2: 1}, 10).proves_nothing
    assert compare({1: 1, 2: 2, 9: 1}, {1: 1, 2: 2, 9: 9}, 9) == Comparison(2, None)
    assert compare({1: 1, 2: 2}, {1: 1, 2: 3}, 9) == Comparison(1, 2)
    assert difference({}, history(5), 0, 5) is None
    assert difference(history(5), {}, 0, 5) is None
    assert difference(history(5, salt=1), history(5), 5, 5) is None


def _batch(*records: Record, attributes: dict[str, Any] | None = None) -> bytes:
    return bytes(build_batch(list(records), base_offset=records[0].offset, **(attributes or {})))


def test_records_are_known_by_their_contents_and_not_by_their_batches() -> None:
    one, two = Record(5, 7, b"k", b"v", (("h", None),)), Record(6, 8, None, b"w")
    together = fingerprints(memoryview(_batch(one, two)))
    apart = fingerprints(memoryview(_batch(one) + _batch(two)))
    assert together == apart
    assert together.keys() == {5, 6}
    for other in (
        one._replace(timestamp_ms=6),
        one._replace(key=b"K"),
        one._replace(key=None),
        one._replace(value=None),
        one._replace(value=b""),
        one._replace(headers=()),
        one._replace(headers=(("h", b""),)),
        one._replace(headers=(("H", None),)),
    ):
        assert fingerprints(memoryview(_batch(other)))[5] != together[5]


def test_transaction_that_ended_in_another_way_is_a_difference() -> None:
    def ended(kind: ControlType) -> dict[int, int]:
        marker = build_marker(
            EndMarker(kind, 0), producer_id=7, producer_epoch=0, timestamp_ms=1, base_offset=3
        )
        return fingerprints(memoryview(marker))

    commit, abort = ended(ControlType.COMMIT), ended(ControlType.ABORT)
    assert commit.keys() == abort.keys() == {3}
    assert commit != abort


# Marks -------------------------------------------------------------------------------------------


def marks_of(log: Log, end: int) -> dict[int, int]:
    return asyncio.run(new_marks(reads(log), 0, end))


def check(log: Log, marks: Log, start: int = 0) -> None:
    asyncio.run(check_marks(reads(log), marks, start, (ORDERS, ORDERS)))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 100), st.data())
def test_marks_find_a_lost_tail_and_nothing_else(
    rounds: list[int], more: int, data: st.DataObject
) -> None:
    source = history(sum(rounds))
    marks: dict[int, int] = {}
    end = 0
    for copied in rounds:
        end += copied
        marks = joined_marks(marks, marks_of(source, end))
    assert max(marks) == end - 1
    removed = data.draw(st.sets(st.integers(0, end)))
    compacted = {o: mark for o, mark in history(end + more).items() if o not in removed}
    check(compacted, marks)
    lost_at = data.draw(st.integers(0, end - 1))
    other = history(lost_at) | history(end - lost_at + more, salt=1, start=lost_at)
    with pytest.raises(JobError, match="the source has lost records that the copy has"):
        check(other, marks)
    check(other, marks, start=end)  # retention took all that was copied


def test_older_marks_serve_where_compaction_removed_the_newest() -> None:
    marks = joined_marks(marks_of(history(10), 10), marks_of(history(20), 20))
    assert marks.keys() == {9, 19}
    with pytest.raises(JobError, match="at offset 9 "):
        check({9: 1}, marks)
    assert len(joined_marks(history(30), history(4, start=30))) == 16
    assert marks_of(history(10), 0) == {}


# When a check is made ----------------------------------------------------------------------------


def test_idle_partitions_are_checked_first_and_then_each_minute() -> None:
    checks = IdleChecks()
    assert [checks.are_due(at) for at in (5.0, 6.0, 64.0, 65.0, 66.0, 200.0)] == [
        *(True, False, False, True, False, True)
    ]


def test_first_failed_check_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise JobError("no")

    with pytest.raises(JobError, match="no"):
        asyncio.run(at_once(fail() for _ in range(40)))


def test_what_another_leader_sent_is_written_after_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """By fetches: from which connection, and the leader epoch of each batch."""
    fetches = [(1, [3]), (1, [3, 3]), (2, [3]), (2, [4, 5]), (2, [5]), (2, [6])]
    done: list[str] = []

    def fetched() -> Iterator[Fetched]:
        offset = 0
        for connection, epochs in fetches:
            start, data = offset, b""
            for epoch in epochs:
                data += bytes(
                    build_batch(
                        [Record(offset, 0, None, b"")], base_offset=offset, leader_epoch=epoch
                    )
                )
                offset += 1
            yield Fetched(memoryview(data), start, [], connection)

    @contextmanager
    def reader(*_: object) -> Iterator[Iterator[Fetched]]:
        yield fetched()

    async def check(_: Pool, __: Pool, overlap: Overlap) -> None:
        done.append(f"check up to {overlap.end}")

    async def append(*_: object, continues_at: int, **__: object) -> None:
        done.append(f"append {continues_at}")

    monkeypatch.setattr(mirror_copy, "RangeReader", reader)
    monkeypatch.setattr(mirror_copy, "check_copy", check)
    monkeypatch.setattr(mirror_copy, "append", append)
    fetching = parse_batch({"kafka.bootstrap.servers": "none:1", "subscribe": "orders"}).fetching
    location = Location(None, bytes(16))
    copied = copy_span(fetching, "none:2", (Span(ORDERS, ORDERS, b"", 0, 0, 8), location))
    assert (copied.next_offset, copied.batches) == (8, 8)
    assert done == [
        *("check up to 0", "append 0", "append 1"),
        *("check up to 3", "append 3"),  # another connection
        *("check up to 4", "append 4", "append 6"),  # another epoch than before
        *("check up to 7", "append 7"),
    ]
