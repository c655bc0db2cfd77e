"""The offsets of a replay are cut into chunks, and are the same in every run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.raw_transactions import OffsetToCommit
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.record_times import Times
from penstock.spark.jobs.replay.range import (
    Piece,
    check_ids,
    decided,
    from_marks,
    kept,
    mark,
    parse_piece,
)
from penstock.spark.survey import Ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
RANGES = Ranges("cluster", {ZERO: 3, ONE: 7}, {ZERO: 9, ONE: 7})


def test_what_a_group_keeps_of_a_replay_is_what_was_decided() -> None:
    for times in (Times(), Times(since_ms=17), Times(until_ms=19), Times(17, 19)):
        what = decided("wish", RANGES, times=times)
        assert what.first == {ZERO: 3}
        assert what.offsets == 6
        rows = {ZERO: OffsetToCommit(5, mark(what, ZERO))}
        assert from_marks(rows, "g", ["t"]) == what
    assert from_marks({}, "g", ["t"]) is None


def test_a_replay_begun_before_times_were_kept_goes_on_without_them() -> None:
    rows = {ZERO: OffsetToCommit(5, '{"wish":"wish","first":3,"after":9}')}
    assert from_marks(rows, "g", ["t"]) == decided("wish", RANGES)


@pytest.mark.parametrize("metadata", [None, "", "batch=3", "{}", "[]"])
def test_a_group_of_something_else_is_refused(metadata: str | None) -> None:
    with pytest.raises(JobError, match="not made by a replay; give another --id"):
        from_marks({ZERO: OffsetToCommit(5, metadata)}, "g", ["t"])


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 9)), min_size=1),
    st.integers(1, 20),
)
def test_all_pieces_of_a_partition_are_taken_in_order_and_no_offset_twice(
    spans: list[tuple[int, int, int]], most: int
) -> None:
    asked = [Piece(TopicPartition("t", n), first, first + size) for n, first, size in spans]
    what = decided("wish", Ranges("cluster", {ZERO: 0, ONE: 0}, {ZERO: 50, ONE: 50}), asked)
    at, seen = dict(what.first), []
    while True:
        start, end = what.next_chunk(at, most)
        if not end:
            break
        seen += [(p, offset) for p in end for offset in range(start[p], end[p])]
        at |= end
        assert what.done(at) == len(seen)
        rows = {p: OffsetToCommit(o, mark(what, p)) for p, o in at.items()}
        assert from_marks(rows, "g", ["t"], asked) == what, "a run that is started again has others"
    wanted = {(p, offset) for p, first, after in asked for offset in range(first, after)}
    assert len(seen) == what.offsets
    for place in (ZERO, ONE):
        assert [o for p, o in seen if p == place] == sorted(o for p, o in wanted if p == place)


def test_what_was_decided_stays_though_the_topic_has_changed() -> None:
    asked = [Piece(ZERO, 7, 9), Piece(ZERO, 4, 5)]
    what = decided("wish", RANGES, asked)
    assert what.pieces == (Piece(ZERO, 4, 5), Piece(ZERO, 7, 9))
    assert kept("wish", what.first, what.after, asked) == what
    assert kept("wish", {ZERO: 3}, {ZERO: 9}, []) == decided("wish", RANGES)


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
        decided("wish", RANGES, [piece])


@pytest.mark.parametrize("text", ["", "t", "t:0", "t:0:5", "t:0:5-5", "t:0:6-5", "t:x:1-2"])
def test_what_is_no_piece_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected TOPIC:PARTITION:FIRST-AFTER"):
        parse_piece(text)


A0, B0, B1 = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)
BOTH = Ranges("cluster", dict.fromkeys((A0, B0, B1), 0), {A0: 5, B0: 5, B1: 5})
IDS = {"a": "id of a", "b": "id of b"}


def test_topic_that_was_deleted_is_missed() -> None:
    """Its offsets have left the group; the other partitions alone are not the replay."""
    what = decided("wish", BOTH, topic_ids=IDS)
    rows = {p: OffsetToCommit(5, mark(what, p)) for p in what.first}
    assert from_marks(rows, "g", ["a", "b"]) == what
    left = {A0: rows[A0]}
    with pytest.raises(
        JobError, match=r"offsets of 1 partitions, and the replay has 3: 'b' was deleted"
    ):
        from_marks(left, "g", ["a", "b"])
    with pytest.raises(JobError, match="has 3: some were deleted"):
        from_marks({A0: rows[A0], B0: rows[B0]}, "g", ["a", "b"])


def test_partitions_that_were_empty_when_it_began_are_not_missed() -> None:
    what = decided("wish", BOTH._replace(after={A0: 5, B0: 0, B1: 0}), topic_ids=IDS)
    rows = {A0: OffsetToCommit(5, mark(what, A0))}
    found = from_marks(rows, "g", ["a", "b"])
    assert found is not None
    assert found.pieces == what.pieces


def test_topic_that_was_created_again_is_another() -> None:
    what = decided("wish", BOTH, topic_ids=IDS)
    check_ids(what, IDS)
    check_ids(what, {"a": "id of a"})
    check_ids(decided("wish", BOTH), IDS)  # begun by an earlier version
    with pytest.raises(JobError, match="topic 'b' was deleted and created again since this replay"):
        check_ids(what, {**IDS, "b": "another"})
