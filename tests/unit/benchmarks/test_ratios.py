"""Turns are interleaved; ratios are those of runs beside each other, with their spread."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.ratios import Spread, ratio, spread
from benchmarks.comparison.samples import Results, Sample, chosen, interleaved

POSITIVE = st.floats(1e-6, 1e6)


def test_turns_go_around() -> None:
    assert list(interleaved("AB", 2)) == [(0, "A"), (0, "B"), (1, "A"), (1, "B")]


def test_a_ratio_is_of_runs_of_the_same_turn() -> None:
    ours, theirs = {0: 10.0, 1: 30.0, 2: 8.0}, {0: 5.0, 1: 10.0, 2: 2.0}
    assert ratio(ours, theirs) == Spread(3.0, 2.0, 4.0, 3)


def test_turns_that_one_side_lacks_or_did_nothing_in_give_no_ratio() -> None:
    assert ratio({0: 1.0, 1: 4.0, 2: 3.0}, {1: 2.0, 2: 0.0}) == Spread(2.0, 2.0, 2.0, 1)
    assert ratio({0: 1.0}, {1: 1.0}) is None
    assert spread([]) is None


@given(st.dictionaries(st.integers(0, 9), st.tuples(POSITIVE, POSITIVE), min_size=1))
def test_the_median_lies_within_the_spread(pairs: dict[int, tuple[float, float]]) -> None:
    found = ratio(
        {turn: mine for turn, (mine, _) in pairs.items()},
        {turn: theirs for turn, (_, theirs) in pairs.items()},
    )
    assert found is not None
    assert found.low <= found.median <= found.high
    assert found.turns == len(pairs)


def test_results_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    samples = [
        Sample("raw", "w", "kafka", 0, {"messages_s": 1.5}),
        Sample("raw", "w", "x", 0, {}, "no"),
    ]
    results = Results(machine="m", quick=True, missing={"x": "why"}, samples=samples)
    results.save(path)
    assert Results.load(path) == results


def test_who_leaves_a_tenth_of_its_core_waits_for_its_client() -> None:
    shares = {"busy": (0.95, 0.97, 0.5), "idle": (0.3, 0.99, 0.2)}
    samples = [
        Sample("raw", "w", system, turn, {"share": share})
        for system, three in shares.items()
        for turn, share in enumerate(three)
    ]
    results = Results(samples=samples)
    assert results.is_client_bound("raw", "w", "busy") is False
    assert results.is_client_bound("raw", "w", "idle") is True
    assert results.is_client_bound("raw", "w", "nobody") is None


def test_names_are_chosen_by_any_word() -> None:
    names = ["produce, 1 KB", "consume, 1 KB", "latency"]
    assert chosen(names, "") == names
    assert chosen(names, "produce, LAT") == ["produce, 1 KB", "latency"]
