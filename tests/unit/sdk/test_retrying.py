"""Every failure ends somewhere: again, later, aside, or with the run."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.errors import DeserializationError
from penstock.sdk.retrying import (
    MAX_BACKOFF_S,
    Again,
    Aside,
    Later,
    Policy,
    RetryTopics,
    Stop,
    delay_s,
)


def outcomes(policy: Policy, error: Exception) -> list[str]:
    """What happens to a message that always fails."""
    told: list[str] = []
    attempt, step = 1, 0
    while True:
        decision = policy.decide(error, attempt, step)
        told.append(type(decision).__name__)
        match decision:
            case Again():
                attempt += 1
            case Later():
                attempt, step = 1, step + 1
            case Aside() | Stop():
                return told


def test_a_poison_message_is_tried_then_put_off_then_put_aside() -> None:
    policy = Policy(2, 0.1, RetryTopics((10, 60)), has_dead_letter=True)
    assert outcomes(policy, RuntimeError()) == [
        *["Again", "Again", "Later"] * 2,
        "Again",
        "Again",
        "Aside",
    ]


def test_without_anywhere_to_put_it_the_run_ends() -> None:
    assert outcomes(Policy(1, 0.1, None, has_dead_letter=False), RuntimeError()) == [
        "Again",
        "Stop",
    ]


def test_what_cannot_get_better_is_not_tried_again() -> None:
    policy = Policy(5, 0.1, RetryTopics((10,)), has_dead_letter=True)
    assert outcomes(policy, DeserializationError("bad")) == ["Aside"]


@given(st.floats(0, 100), st.integers(1, 10_000))
def test_delays_grow_and_are_bounded(first_s: float, attempt: int) -> None:
    assert delay_s(first_s, attempt) <= delay_s(first_s, attempt + 1) <= MAX_BACKOFF_S


def test_a_function_says_the_delay() -> None:
    assert delay_s(lambda attempt: attempt * 2.0, 3) == 6.0
    assert delay_s((), 3) == 0.0
