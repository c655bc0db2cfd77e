"""The CPU cost of an append is split into bytes and batches, and noise does not make either negative."""

import pytest

from benchmarks.calibrate import split_append
from benchmarks.raw import Outcome


def outcome(batches: int, batch_bytes: int, cpu_s: float) -> Outcome:
    return Outcome(1.0, cpu_s, 0.0, batches, 0, batches * batch_bytes, 0, 0, 0)


def test_bytes_and_batches_are_told_apart() -> None:
    cost = 1e-9, 20e-6
    small, large = (
        outcome(count, size, count * (size * cost[0] + cost[1]))
        for count, size in ((40_000, 8_000), (9_000, 64_000))
    )
    assert split_append(small, large) == pytest.approx((1.0, 20e-6))


@pytest.mark.parametrize("cpu_s", [0.1, 100.0])
def test_noise_is_not_taken_for_less_than_nothing(cpu_s: float) -> None:
    found = split_append(outcome(40_000, 8_000, cpu_s), outcome(9_000, 64_000, 0.576))
    assert found == pytest.approx((1.0, 0.0))
