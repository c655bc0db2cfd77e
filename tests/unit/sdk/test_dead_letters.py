"""A dead letter keeps what it was, and says where it came from and why it is here."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk import dead_letters
from penstock.sdk.dead_letters import Failure, Header


@dataclass
class Given:
    topic: str = "orders"
    partition: int = 3
    offset: int = 42
    timestamp_ms: int = 1000
    headers: list[Header] = field(default_factory=list)


own = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4)
failures = st.builds(
    Failure,
    st.builds(ValueError, st.text()),
    st.integers(1, 9),
    st.just("g"),
    st.integers(0, 2**40),
)


@given(own, failures)
def test_a_letter_says_where_it_came_from_and_keeps_its_own_headers(
    headers: list[Header], failure: Failure
) -> None:
    written = dead_letters.put_aside(Given(headers=headers), failure)
    letter = dead_letters.read(written)
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp_ms) == (
        "orders",
        3,
        42,
        1000,
    )
    assert (letter.error_type, letter.attempts, letter.failed_at_ms) == (
        "ValueError",
        failure.attempts,
        failure.now_ms,
    )
    assert dead_letters.own_headers(written) == headers


@given(own, failures, failures)
def test_after_retry_topics_the_first_coordinates_stay_and_attempts_add_up(
    headers: list[Header], first: Failure, second: Failure
) -> None:
    put_off = dead_letters.put_off(Given(headers=headers), first, step=0, delay_s=1.5)
    assert dead_letters.retry_at_ms(put_off) == first.now_ms + 1500
    assert dead_letters.retry_step(put_off) == 1
    again = dead_letters.put_aside(Given("orders.retry.1", 0, 7, 2000, put_off), second)
    letter = dead_letters.read(again)
    assert (letter.topic, letter.partition, letter.offset) == ("orders", 3, 42)
    assert letter.attempts == first.attempts + second.attempts
    assert dead_letters.retry_at_ms(again) is None


@given(own, failures)
def test_a_letter_that_goes_back_is_as_it_was_but_for_the_count(
    headers: list[Header], failure: Failure
) -> None:
    once = dead_letters.redriven(dead_letters.put_aside(Given(headers=headers), failure))
    assert once == [*headers, (dead_letters.REDRIVEN, b"1")]
    twice = dead_letters.redriven(dead_letters.put_aside(Given(headers=once), failure))
    assert twice == [*headers, (dead_letters.REDRIVEN, b"2")]


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(dead_letters._OURS)), st.none() | st.binary(max_size=6))
    )
)
def test_headers_that_others_wrote_under_our_names_do_no_harm(headers: list[Header]) -> None:
    dead_letters.read(headers)
    assert dead_letters.retry_step(headers) >= 0


def test_a_plain_message_is_no_letter() -> None:
    assert dead_letters.read([("a", b"b")]).topic is None
