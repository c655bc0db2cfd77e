"""Ours to theirs: run against the run beside it, the median of these ratios, and how far they spread."""

import statistics
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Spread(NamedTuple):
    """The median of some figures, and the least and the most of them."""

    median: float
    low: float
    high: float
    turns: int


def spread(values: Collection[float]) -> Spread | None:
    """None of nothing."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
    """Of each turn that both have; a turn in which they did nothing gives no ratio."""
    return spread([ours[turn] / theirs[turn] for turn in ours if theirs.get(turn)])
