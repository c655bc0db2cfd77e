"""A throttle holds its rate on average, however large the pieces are."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.throttle import NO_LIMIT, Throttle


def test_without_a_rate_nothing_waits() -> None:
    throttle = Throttle()
    throttle.spent(10**12, 0)
    assert throttle.pause_ms(0) == 0
    throttle.set_rate(1000, 0)
    throttle.spent(5000, 0)
    throttle.set_rate(NO_LIMIT, 0)
    assert throttle.pause_ms(0) == 0


@given(
    st.integers(1000, 10_000_000), st.lists(st.integers(1, 4_000_000), min_size=50, max_size=100)
)
def test_the_rate_is_held(rate: int, pieces: list[int]) -> None:
    throttle, now_ms, sent = Throttle(), 0, 0
    throttle.set_rate(rate, now_ms)
    for piece in pieces:
        now_ms += throttle.pause_ms(now_ms)
        throttle.spent(piece, now_ms)
        sent += piece
    now_ms += throttle.pause_ms(now_ms)
    assert sent <= rate * (now_ms / 1000 + 0.3)
    assert sent >= rate * (now_ms / 1000 - 0.3 - len(pieces) / 1000)
