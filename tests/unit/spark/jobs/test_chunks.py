"""Chunks cover every offset once."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import TopicPartition
from penstock.spark.jobs.chunks import next_chunk


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
