import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.telemetry.instruments import Counter, Gauge, Histogram

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


def test_a_counter_and_a_gauge_start_at_zero_and_are_changed_in_place() -> None:
    counter, gauge = Counter(), Gauge()
    counter.value += 3
    gauge.set(-1.5)
    assert (counter.value, gauge.value) == (3, -1.5)


@given(st.lists(FINITE, min_size=1, max_size=8, unique=True), st.lists(FINITE, max_size=50))
def test_an_observation_is_counted_once_in_the_first_bucket_that_holds_it(
    bounds: list[float], values: list[float]
) -> None:
    histogram = Histogram(sorted(bounds))
    for value in values:
        histogram.observe(value)
    naive = [0] * (len(bounds) + 1)
    for value in values:
        naive[sum(bound < value for bound in bounds)] += 1
    assert histogram.counts == naive
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


def test_a_value_on_a_bound_belongs_to_that_bound() -> None:
    histogram = Histogram((1, 2))
    histogram.observe(1)
    assert histogram.counts == [1, 0, 0]


@pytest.mark.parametrize("bounds", [(), (1, 1), (2, 1)])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Histogram(bounds)
