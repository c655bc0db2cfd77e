"""The offsets of a replay: cut into chunks, and the same whenever it is run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.raw_transactions import OffsetToCommit
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.replay_range import (
    Piece,
    decided,
    from_marks,
    mark,
    narrowed,
    next_chunk,
    parse_piece,
)
from penstock.spark.survey import Ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
RANGES = Ranges("cluster", {ZERO: 3, ONE: 7}, {ZERO: 9, ONE: 7})


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5), st.integers(1, 40))
def test_chunks_cover_every_offset_once_and_are_no_larger_than_asked(
    spans: list[tuple[int, int]], most: int
) -> None:
    first = {TopicPartition("t", n): start for n, (start, _) in enumerate(spans)}
    after = {TopicPartition("t", n): start + size for n, (start, size) in enumerate(spans)}
    at, seen = dict(first), []
    while True:
        start, end = next_chunk(at, after, most)
        if not end:
            break
        assert start == {place: at[place] for place in end}
        taken = [(p, offset) for p in end for offset in range(start[p], end[p])]
        assert 0 < len(taken) <= most
        seen += taken
        at |= end
    assert sorted(seen) == [(p, o) for p in first for o in range(first[p], after[p])]


def test_what_a_group_keeps_of_a_replay_is_what_was_decided() -> None:
    what = decided("wish", RANGES)
    assert what.first == {ZERO: 3}
    assert what.offsets == 6
    rows = {ZERO: OffsetToCommit(5, mark(what, ZERO))}
    assert from_marks(rows, "g") == what
    assert from_marks({}, "g") is None


@pytest.mark.parametrize("metadata", [None, "", "batch=3", "{}", "[]"])
def test_a_group_of_something_else_is_refused(metadata: str | None) -> None:
    with pytest.raises(JobError, match="not made by a replay; give another --id"):
        from_marks({ZERO: OffsetToCommit(5, metadata)}, "g")


def test_pieces_narrow_what_is_read() -> None:
    assert narrowed(RANGES, []) == RANGES
    assert narrowed(RANGES, [Piece(ZERO, 4, 6)]) == Ranges("cluster", {ZERO: 4}, {ZERO: 6})


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (Piece(TopicPartition("t", 2), 0, 1), "t-2 does not exist"),
        (Piece(ZERO, 2, 6), "holds offsets 3 up to 9, and not all of 2-6"),
        (Piece(ZERO, 4, 10), "holds offsets 3 up to 9, and not all of 4-10"),
    ],
)
def test_what_the_topics_do_not_hold_is_an_error(piece: Piece, said: str) -> None:
    with pytest.raises(JobError, match=said):
        narrowed(RANGES, [piece])


@pytest.mark.parametrize("text", ["", "t", "t:0", "t:0:5", "t:0:5-5", "t:0:6-5", "t:x:1-2"])
def test_what_is_no_piece_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected TOPIC:PARTITION:FIRST-AFTER"):
        parse_piece(text)
