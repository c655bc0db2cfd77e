"""The map of a translated mirror is exact for every offset, whatever gaps and chunks there are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.jobs.mirror.translate import offset_map
from penstock.spark.jobs.mirror.translate.offset_map import (
    Chunk,
    OffsetMap,
    Row,
    decode,
    encode,
    joined,
    rows_of,
)

Batches = list[
    list[tuple[int, int]]
]  # of transactions: how many offsets are passed over at either end, before each record


class Copied:
    """What a link writes, micro-batch after micro-batch, and by hand what each offset must lead to."""

    def __init__(self, transactions: Batches) -> None:
        self.map = OffsetMap()
        self.places: list[tuple[int, int]] = []
        self.written: dict[int, bytes] = {}
        source = target = 0
        for transaction in transactions:
            pairs = []
            for source_gap, target_gap in transaction:
                source, target = source + source_gap, target + target_gap
                pairs.append((source, target))
                source, target = source + 1, target + 1
            source, target = source + 1, target + 1  # a marker at either end
            self._commit(pairs, source)
        self.source_end, self.target_end = source, target

    def _commit(self, pairs: Sequence[tuple[int, int]], next_offset: int) -> None:
        rows = joined(Row(at, there, 1) for at, there in pairs)
        for number, data in self.map.extended(rows, next_offset, {}).items():
            self.map.put(number, data)
            self.written[number] = data
        self.places += pairs
        assert self.map.position == next_offset

    def expected(self, offset: int) -> int | None:
        """The first record from there on; else just after the last."""
        for source, target in self.places:
            if source >= offset:
                return target
        return self.places[-1][1] + 1 if self.places else None


gaps = st.tuples(st.sampled_from([0, 0, 0, 1, 4]), st.sampled_from([0, 0, 0, 0, 2]))
histories = st.lists(st.lists(gaps, max_size=12), max_size=12)


@given(histories, st.integers(1, 5))
def test_every_offset_leads_to_the_next_record(transactions: Batches, chunk_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_map, "CHUNK_ROWS", chunk_rows)
        copied = Copied(transactions)
        again = OffsetMap()  # as another run reads it
        for number, data in copied.written.items():
            again.put(number, data)
        for offset in range(copied.source_end + 3):
            assert copied.map.lookup(offset) == again.lookup(offset) == copied.expected(offset)
        assert copied.map.position == again.position


@given(histories)
def test_there_are_as_few_rows_as_say_it(transactions: Batches) -> None:
    copied = Copied(transactions)
    breaks = sum(
        (after[0] - before[0], after[1] - before[1]) != (1, 1)
        for before, after in zip(copied.places, copied.places[1:], strict=False)
    )
    rows = [row for data in copied.written.values() for row in decode(data).rows]
    assert len(rows) == (breaks + 1 if copied.places else 0)
    assert sum(row.records for row in rows) == len(copied.places)


@given(st.lists(st.integers(0, 1 << 40), unique=True).map(sorted), st.integers(0, 1 << 40))
def test_offsets_with_gaps_become_runs(offsets: list[int], first: int) -> None:
    found = [
        (row.source + n, row.target + n)
        for row in rows_of(offsets, first)
        for n in range(row.records)
    ]
    assert found == [(offset, first + n) for n, offset in enumerate(offsets)]


@given(
    st.lists(st.tuples(*[st.integers(0, 1 << 50)] * 2, st.integers(1, 1 << 30)), max_size=5),
    st.integers(0, 1 << 60),
)
def test_a_chunk_is_read_as_it_was_written(rows: list[tuple[int, int, int]], end: int) -> None:
    """Also where targets go back, as they do when what came from the target lies between."""
    chunk = Chunk(end, tuple(Row(*row) for row in rows))
    assert decode(encode(chunk)) == chunk


def test_only_the_last_chunk_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "CHUNK_ROWS", 2)
    known = OffsetMap()
    numbers = []
    for n in range(5):
        chunks = known.extended([Row(10 * n, 20 * n, 3)], 10 * n + 5, {10 * n: n})
        numbers.append(list(chunks))
        for number, data in chunks.items():
            known.put(number, data)
    assert numbers == [[0], [0, 1], [1], [1, 2], [2]]


def test_last_chunk_has_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "CHUNK_ROWS", 1)
    known = OffsetMap()
    assert known.marks == {}
    for n in range(3):
        for number, data in known.extended([Row(2 * n, n, 1)], 2 * n + 1, {2 * n: n}).items():
            known.put(number, data)
            read = decode(data).marks
            assert read == (((2 * n, n),) if number == n + 1 else ())
        assert known.marks == {2 * n: n}


def test_chunk_of_a_link_without_marks_is_read() -> None:
    assert decode(b'{"next":9,"rows":[3,0,4]}') == Chunk(9, (Row(3, 0, 4),))


def test_what_retention_took_at_the_target_is_forgotten_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_map, "CHUNK_ROWS", 1)
    copied = Copied([[(0, 0)] * 3] * 6)
    assert copied.map.dead(0) == []
    assert copied.map.dead(8) == [0, 1]
    for number in copied.map.dead(10_000):
        copied.map.put(number, None)
    assert copied.map.position == copied.source_end
    assert copied.map.lookup(0) is None, "from where the copy begins"
