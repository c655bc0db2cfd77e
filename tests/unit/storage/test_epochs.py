"""Leader epochs answer where each one ended, as OffsetForLeaderEpoch asks (KIP-101, KIP-279)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import epochs as epochs_file
from penstock.storage.checksummed_json import Damaged
from penstock.storage.epochs import EpochEnd, Epochs
from penstock.storage.recovery import Ending
from tests.unit.storage.logs import fill, new_log, put, reopened

THREE = [(2, 0), (5, 100), (7, 150)]


@pytest.mark.parametrize(
    ("epoch", "end"),
    [(-1, (-1, -1)), (1, (1, 0)), (2, (2, 100)), (4, (2, 100)), (5, (5, 150)), (6, (5, 150)), (7, (7, 180)), (8, (-1, -1))],
)  # fmt: skip
def test_an_epoch_ends_where_the_next_begins(epoch: int, end: tuple[int, int]) -> None:
    assert Epochs(THREE).end_offset_for(epoch, log_end=180) == EpochEnd(*end)


def test_nothing_is_known_of_an_empty_log() -> None:
    assert Epochs().end_offset_for(3, log_end=0) == EpochEnd(-1, -1)
    assert (Epochs().latest, Epochs().epoch_at(5)) == (-1, -1)


def test_an_epoch_without_records_gives_way_to_the_next() -> None:
    epochs = Epochs(THREE)
    epochs.assign(9, 180)
    epochs.assign(11, 180)
    assert epochs.entries() == [*THREE, (11, 180)]


@pytest.mark.parametrize(
    ("start", "left"),
    [(0, THREE), (50, [(2, 50), (5, 100), (7, 150)]), (100, THREE[1:]), (149, [(5, 149), (7, 150)]), (500, [(7, 500)])],
)  # fmt: skip
def test_epochs_below_the_log_start_are_forgotten(start: int, left: list[tuple[int, int]]) -> None:
    epochs = Epochs(THREE)
    epochs.truncate_start(start)
    assert epochs.entries() == left


@pytest.mark.parametrize(("end", "left"), [(151, 3), (150, 2), (100, 1), (1, 1), (0, 0)])
def test_epochs_past_the_log_end_are_forgotten(end: int, left: int) -> None:
    epochs = Epochs(THREE)
    epochs.truncate_end(end)
    assert epochs.entries() == THREE[:left]
    assert epochs.latest == (THREE[left - 1][0] if left else -1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), max_size=20))
def test_epochs_and_offsets_always_grow_together(given_: list[tuple[int, int]]) -> None:
    epochs = Epochs()
    for epoch, offset in given_:
        epochs.assign(epoch, offset)
    entries = epochs.entries()
    assert entries == sorted(entries)
    assert len({e for e, _ in entries}) == len({o for _, o in entries}) == len(entries)
    assert epochs_file.decode(epochs.encode(None))[0].entries() == entries


def test_the_file_carries_how_far_the_log_was_cut() -> None:
    found, cut = epochs_file.decode(Epochs(THREE).encode(77))
    assert (found.entries(), cut) == (THREE, 77)


def test_the_file_carries_where_the_log_starts_if_that_was_moved() -> None:
    epochs = Epochs([(2, 50), (5, 100)])
    assert epochs_file.decode(epochs.encode(None))[0].log_start == 0, "compaction may leave a gap"
    epochs.truncate_start(120)
    assert epochs_file.decode(epochs.encode(None))[0].log_start == 120
    epochs.truncate_end(110)
    assert epochs_file.decode(epochs.encode(None))[0].log_start == 110


@given(st.data())
def test_a_damaged_file_is_never_believed(data: st.DataObject) -> None:
    whole = Epochs(THREE).encode(None)
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), whole[:position], b""):
        with pytest.raises(Damaged):
            epochs_file.decode(damaged)


def test_a_new_leader_s_epoch_begins_at_the_end_of_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    log.begin_epoch(4)
    assert log.end_offset_for(1) == EpochEnd(1, 3)
    put(log, b"x", epoch=4)
    log.flush()
    assert reopened(tmp_path, Ending.POWER_LOSS, 4).epochs.entries() == [(1, 0), (4, 3)]
