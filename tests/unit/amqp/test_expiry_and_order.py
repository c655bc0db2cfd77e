"""Time to live, overflow and the order of ready messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.expiry import MAX_EXPIRY_MS, is_expired, message_ttl_ms, parse_expiration
from penstock.amqp.overflow import LengthLimits, Overflow
from penstock.amqp.priorities import ReadyOrder, classic_priority, quorum_priority
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from tests.support.amqp_errors import refusal

_ttls = st.none() | st.integers(0, 10)


@given(st.text(max_size=5))
def test_any_expiration_is_a_number_or_an_error(text: str) -> None:
    try:
        found = parse_expiration(text)
    except AmqpError:
        return
    assert found == int(text)


@pytest.mark.parametrize("text", ["0", "+5", "007", str(MAX_EXPIRY_MS)])
def test_valid_expirations(text: str) -> None:
    assert parse_expiration(text) == int(text)


def test_ten_years_are_the_limit() -> None:
    text = str(MAX_EXPIRY_MS + 1)
    with refusal(
        ReplyCode.PRECONDITION_FAILED, f"invalid expiration '{text}': {{value_too_large,{text}}}"
    ):
        parse_expiration(text)


@given(_ttls, _ttls, st.integers(0, 20))
def test_the_smaller_time_to_live_counts(
    queue: int | None, message: int | None, age_ms: int
) -> None:
    limits = [ttl for ttl in (queue, message) if ttl is not None]
    expected = any(age_ms >= ttl for ttl in limits)
    assert is_expired(message_ttl_ms(queue, message), 1000, 1000 + age_ms) is expected


@given(
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 50),
    st.lists(st.integers(0, 20), max_size=10),
)
def test_dropping_heads_is_enough_and_not_too_much(
    max_length: int | None, max_bytes: int | None, sizes: list[int]
) -> None:
    limits = LengthLimits(max_length, max_bytes)
    dropped = limits.heads_to_drop(len(sizes), sum(sizes), sizes)
    left = sizes[dropped:]
    assert not limits.is_over(len(left), sum(left))
    if dropped:
        assert limits.is_over(len(left) + 1, sum(left) + sizes[dropped - 1])


def test_only_rejecting_queues_reject() -> None:
    for overflow, rejects in ((Overflow.DROP_HEAD, False), (Overflow.REJECT_PUBLISH, True)):
        limits = LengthLimits(max_length=2, overflow=overflow)
        assert limits.rejects(2, 0, 1) is rejects
        assert not limits.rejects(1, 0, 1)
        assert limits.heads_to_drop(3, 3, [1, 1, 1]) == (not rejects)
    assert LengthLimits(None, 10, Overflow.REJECT_PUBLISH_DLX).rejects(1, 8, 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60))
def test_ready_messages_come_by_priority_then_position(steps: list[tuple[int, int]]) -> None:
    order, plain, taken = ReadyOrder(), [], []
    position = 0
    for kind, priority in steps:
        if kind == 0:
            order.add(position, priority)
            plain.append((-priority, position))
            position += 1
        elif kind == 1 and plain:
            plain.sort()
            assert order.first() == plain[0][1]
            taken.append(plain.pop(0))
            assert order.pop() == taken[-1][1]
        elif kind == 2 and taken:
            entry = taken.pop(priority % len(taken))
            order.give_back(entry[1], -entry[0])
            plain.append(entry)
        assert len(order) == len(plain)
    assert list(order) == [entry[1] for entry in sorted(plain)]


def test_no_message_is_ready() -> None:
    order = ReadyOrder()
    assert order.first() is None
    with pytest.raises(IndexError):
        order.pop()


def test_levels_of_priority() -> None:
    assert [classic_priority(given, 5) for given in (None, 0, 3, 5, 200)] == [0, 0, 3, 5, 5]
    assert [quorum_priority(given) for given in (None, 0, 31, 32, 255)] == [4, 0, 31, 31, 31]
