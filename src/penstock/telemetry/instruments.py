"""What is counted. One loop owns an instrument and adds to it in place; whoever exports it only reads."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

LATENCY_BOUNDS_MS: Final = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 5_000.0, 30_000.0,
)  # fmt: skip


class Counter:
    """Only grows: `counter.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """Goes both ways: `gauge.set(n)`, `gauge.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """How many observations were at most each bound, and their sum. The bounds never change.

    `counts[i]` counts what fell in (bounds[i - 1], bounds[i]]; its last entry, what lies above all bounds.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"histogram bounds must rise strictly: {tuple(bounds)}")
        self.bounds: Final = tuple(bounds)
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)
