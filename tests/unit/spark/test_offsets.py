"""Ranges, limits and splits keep every offset, once; what is missing is said."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import TopicPartition
from penstock.spark.offsets import (
    OffsetRange,
    all_named,
    available,
    batch_ranges,
    from_json,
    limited,
    names,
    parse_offsets,
    parse_partitions,
    split,
    stream_ranges,
    to_json,
)

T0, T1, T2, T10 = (TopicPartition("t", index) for index in (0, 1, 2, 10))
partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 12))
offsets = st.dictionaries(partitions, st.integers(0, 10**6))


@given(offsets)
def test_json_gives_back_what_was_written(given_offsets: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(given_offsets)) == given_offsets


def test_json_is_in_the_order_of_numbers_however_it_came() -> None:
    value = to_json({T10: 3, T2: 1, TopicPartition("a", 0): 5})

    assert list(value) == ["a", "t"]
    assert list(value["t"]) == ["2", "10"]


def test_json_of_options_is_sparks() -> None:
    assert parse_offsets('{"t":{"0":23,"1":-1}}') == {T0: 23, T1: -1}
    assert parse_partitions('{"t":[1,0,1]}') == [T0, T1]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_offsets, "{"),
        (parse_offsets, '{"t":5}'),
        (parse_offsets, '{"t":{"x":5}}'),
        (parse_offsets, '{"t":{"0":1.5}}'),
        (parse_offsets, '{"t":{"0":true}}'),
        (parse_offsets, "[]"),
        (parse_partitions, '{"t":5}'),
        (parse_partitions, '{"t":[[]]}'),
        (parse_partitions, "7"),
    ],
)
def test_other_json_is_refused_with_an_example(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="expected JSON such as"):
        parse(text)


def test_a_stream_reads_on_where_it_was_and_new_partitions_from_their_start() -> None:
    planned = stream_ranges({T0: 5, T1: 9}, {T0: 8, T1: 9, T2: 4}, {T2: 0})

    assert planned.ranges == [OffsetRange(T0, 5, 8), OffsetRange(T2, 0, 4)]
    assert planned.losses == []


def test_what_a_stream_cannot_read_any_more_is_a_loss() -> None:
    planned = stream_ranges({T0: 5, T1: 9}, {T0: 3, T2: 10, T10: 4}, {T2: 7})

    assert planned.ranges == [OffsetRange(T2, 7, 10)]
    unknown, trimmed, gone, back = planned.losses
    assert unknown.startswith("t-10 came and went")
    assert trimmed.startswith("new partition t-2 starts at offset 7, not 0")
    assert gone.startswith("t-1 is gone")
    assert back.startswith("t-0 now ends at offset 3, and was to be read from 5 on")


def test_a_batch_whose_start_is_past_the_end_is_a_loss() -> None:
    planned = batch_ranges({T0: 9, T1: 2, T2: 4}, {T0: 5, T1: 6, T2: 4})

    assert planned.ranges == [OffsetRange(T1, 2, 6)]
    assert len(planned.losses) == 1


ranges = st.lists(
    st.builds(
        lambda partition, start, size: OffsetRange(partition, start, start + size),
        partitions,
        st.integers(0, 10**9),
        st.integers(0, 10**5),
    ),
    unique_by=lambda range_: range_.partition,
    max_size=8,
)
some = st.none() | st.integers(1, 300)


@given(ranges, some, st.none() | st.integers(50, 10**6))
def test_pieces_cover_every_offset_once_and_in_order(
    whole: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)

    assert all(piece.size > 0 for piece in pieces)
    for range_ in whole:
        own = [piece for piece in pieces if piece.partition == range_.partition]
        if range_.size:
            assert own[0].start == range_.start
            assert own[-1].end == range_.end
            assert all(a.end == b.start for a, b in itertools.pairwise(own))
        else:
            assert own == []
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)


def test_a_partition_is_one_task_unless_more_are_asked_for() -> None:
    whole = [OffsetRange(T0, 0, 100), OffsetRange(T1, 50, 50), OffsetRange(T2, 3, 4)]

    assert split(whole) == [whole[0], whole[2]]
    assert split(whole, min_partitions=2) == [whole[0], whole[2]]


def test_large_partitions_are_split_and_small_ones_are_not() -> None:
    whole = [OffsetRange(T0, 0, 1000), OffsetRange(T1, 0, 10)]

    pieces = split(whole, min_partitions=5)

    assert [piece.size for piece in pieces] == [250, 250, 250, 250, 10]


def test_no_task_has_more_offsets_than_allowed() -> None:
    pieces = split([OffsetRange(T0, 0, 10)], max_records=4)

    assert [(p.start, p.end) for p in pieces] == [(0, 3), (3, 6), (6, 10)]


def test_a_limit_is_shared_out_by_what_there_is() -> None:
    end = limited(100, {T0: 0, T1: 10}, {T0: 900, T1: 110}, {})

    assert end == {T0: 90, T1: 20}


def test_no_partition_starves_under_a_limit() -> None:
    end = limited(10, {T0: 0, T1: 0}, {T0: 10**6, T1: 1}, {})

    assert end == {T0: 9, T1: 1}


def test_a_limit_counts_new_partitions_from_their_start() -> None:
    assert limited(10, {T0: 0}, {T0: 100, T1: 100}, {T1: 0}) == {T0: 5, T1: 5}


def test_a_partition_that_went_back_is_left_for_the_verdict_to_find() -> None:
    assert limited(10, {T0: 50, T1: 0}, {T0: 40, T1: 5}, {}) == {T0: 40, T1: 5}


@given(offsets, offsets, st.integers(1, 10**6))
def test_a_limited_end_is_never_past_the_latest_and_always_gets_on(
    start: dict[TopicPartition, int], sizes: dict[TopicPartition, int], limit: int
) -> None:
    latest = {p: start.get(p, 0) + size for p, size in sizes.items()}
    earliest = dict.fromkeys(latest.keys() - start.keys(), 0)

    end = limited(limit, start, latest, earliest)

    assert end.keys() == latest.keys()
    assert all(start.get(p, 0) <= end[p] <= latest[p] for p in end)
    if any(sizes.values()):
        assert available(start, end, earliest) >= 1
        assert available(start, end, earliest) <= limit + len(latest)


def test_what_is_available_counts_no_partition_backwards() -> None:
    assert available({T0: 50, T1: 0}, {T0: 40, T1: 5, T2: 3}, {T2: 1}) == 7


def test_every_partition_must_be_named() -> None:
    all_named({T0: 1}, [T0], "startingOffsets")
    with pytest.raises(ValueError, match="t-1 is not named; t-2 is not read by this query"):
        all_named({T0: 1, T2: 1}, [T0, T1], "startingOffsets")


def test_a_message_names_a_few_partitions() -> None:
    many = [TopicPartition("t", index) for index in range(9)]

    assert names(many) == "t-0, t-1, t-2, t-3, t-4 and 4 more"
