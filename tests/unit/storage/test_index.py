"""An index answers as a plain list would, from memory and from its file, and its file is Kafka's."""

from bisect import bisect_right
from pathlib import Path
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.files import OpenFiles
from penstock.storage.index import OFFSETS, TIMES, Layout, SparseIndex
from tests.unit.storage.logs import scratch

growing = st.lists(st.integers(0, 1 << 31 - 1), unique=True, max_size=40).map(sorted)
layouts = st.sampled_from((OFFSETS, TIMES))


@st.composite
def entry_lists(draw: st.DrawFn) -> list[tuple[int, int]]:
    keys, values = draw(growing), draw(growing)
    return list(zip(keys, values, strict=False))


def filled(path: str, layout: Layout, entries: list[tuple[int, int]]) -> SparseIndex:
    index = SparseIndex(OpenFiles(10), path, 0, layout)
    for key, value in entries:
        index.add(key, value)
    return index


def floor(entries: list[tuple[int, int]], field: int, wanted: int) -> tuple[int, int] | None:
    number = bisect_right([entry[field] for entry in entries], wanted) - 1
    return entries[number] if number >= 0 else None


@given(entry_lists(), layouts, st.integers(0, 1 << 31), st.booleans(), st.booleans())
def test_the_nearest_entry_at_or_below_is_found_in_memory_and_in_the_file(
    entries: list[tuple[int, int]], layout: Layout, wanted: int, sealed: bool, opened: bool
) -> None:
    with scratch() as path:
        index = filled(path, layout, entries)
        if sealed or opened:
            index.seal()
        if opened:
            index = SparseIndex.open(OpenFiles(10), path, 0, layout)

        assert index.floor(wanted) == floor(entries, 0, wanted)
        assert index.floor_value(wanted) == floor(entries, 1, wanted)
        assert index.last() == (entries[-1] if entries else None)
        assert len(index) == len(entries)


@given(
    st.integers(1, 520),
    st.integers(1, 5),
    layouts,
    st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3000)), min_size=1, max_size=20),
    st.integers(0, 3000),
    st.integers(0, 300),
)
def test_of_a_long_index_what_is_kept_in_memory_of_its_file_is_never_out_of_date(
    count: int,
    step: int,
    layout: Layout,
    searches: list[tuple[int, int]],
    limit: int,
    more: int,
) -> None:
    """Searches in any order, before and after its end was cut off and it grew again."""
    with scratch() as path:
        entries = [(number * step, number * (step + 1)) for number in range(count)]
        index = filled(path, layout, entries)
        index.seal()
        for _ in range(2):
            for field, wanted in searches:
                search = index.floor_value if field else index.floor
                assert search(wanted) == floor(entries, field, wanted)
            index.truncate(limit)
            entries = [entry for entry in entries if entry[1] <= limit]
            for _ in range(more):
                key, value = entries[-1] if entries else (0, 0)
                entries.append((key + 3, value + 5))
                index.add(*entries[-1])
            index.seal()


@given(entry_lists(), st.integers(0, 1 << 31), entry_lists(), st.booleans(), layouts)
def test_what_was_cut_off_is_gone_and_the_file_follows(
    entries: list[tuple[int, int]],
    limit: int,
    more: list[tuple[int, int]],
    saved: bool,
    layout: Layout,
) -> None:
    with scratch() as path:
        index = filled(path, layout, entries)
        if saved:
            index.save()
        index.truncate(limit)
        kept = [entry for entry in entries if entry[1] <= limit]
        last = kept[-1] if kept else (-1, -1)
        added = [(last[0] + 1 + key, last[1] + 1 + value) for key, value in more]
        added = [entry for entry in added if max(entry) < 1 << 31]
        for entry in added:
            index.add(*entry)
        index.save()

        reread = SparseIndex.open(OpenFiles(10), path, 0, layout)
        assert [reread[number] for number in range(len(reread))] == kept + added


def test_the_offset_index_has_kafkas_entries(tmp_path: Path) -> None:
    filled(str(tmp_path), OFFSETS, [(7, 4100), (19, 8300)]).save()

    data = (tmp_path / "00000000000000000000.index").read_bytes()
    assert unpack(">iiii", data) == (7, 4100, 19, 8300)


def test_the_time_index_has_kafkas_entries(tmp_path: Path) -> None:
    filled(str(tmp_path), TIMES, [(1_700_000_000_000, 7)]).save()

    data = (tmp_path / "00000000000000000000.timeindex").read_bytes()
    assert unpack(">qi", data) == (1_700_000_000_000, 7)


def test_an_index_without_entries_has_no_file(tmp_path: Path) -> None:
    filled(str(tmp_path), OFFSETS, []).seal()

    assert list(tmp_path.iterdir()) == []


def test_half_an_entry_at_the_end_is_left_out(tmp_path: Path) -> None:
    filled(str(tmp_path), OFFSETS, [(1, 100), (2, 200)]).save()
    file = tmp_path / "00000000000000000000.index"
    file.write_bytes(file.read_bytes() + b"\0\0\0")

    index = SparseIndex.open(OpenFiles(10), str(tmp_path), 0, OFFSETS)
    assert index.last() == (2, 200)
    index.add(3, 300)
    index.save()
    assert unpack(">6i", file.read_bytes()) == (1, 100, 2, 200, 3, 300)


@pytest.mark.parametrize("layout", [OFFSETS, TIMES])
def test_what_a_crash_left_under_the_same_name_is_replaced(tmp_path: Path, layout: Layout) -> None:
    file = tmp_path / f"{0:020d}{layout.suffix}"
    file.write_bytes(b"\xff" * 240)
    filled(str(tmp_path), layout, [(5, 6)]).save()

    assert len(file.read_bytes()) == layout.entry_bytes
