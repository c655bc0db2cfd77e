"""Unacknowledged deliveries and confirms against plain sets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.backend import Receiver, Session, Unrestricted
from penstock.amqp.confirms import Confirms
from penstock.amqp.consuming import Getter
from penstock.amqp.unacked import Run, Unacked
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.methods import BasicAck, BasicNack

SESSION = Session("s", Unrestricted("u"), "/")
RECEIVERS = [Getter(SESSION, name) for name in "ab"]

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(0, 40), st.integers(0, 3)),
        st.tuples(st.just("multiple"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("receiver"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("roll back"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(_steps)
def test_runs_agree_with_a_dict_of_tags(steps: list[tuple[str, int, int]]) -> None:
    unacked = Unacked()
    plain: dict[int, tuple[Receiver, int]] = {}
    taken_out: list[Run] = []
    positions = [0, 0]
    tag = 0
    for step, number, extra in steps:
        if step == "add":
            positions[number] += 1 + (extra == 2)  # a gap now and then
            tag += 1
            unacked.add(tag, RECEIVERS[number], positions[number])
            plain[tag] = RECEIVERS[number], positions[number]
        elif step == "roll back":
            unacked.restore(taken_out)
            plain.update(flat(taken_out))
            taken_out = []
        elif step == "receiver":
            gone = flat(unacked.take_receiver(RECEIVERS[number]))
            assert gone == {t: held for t, held in plain.items() if held[0] is RECEIVERS[number]}
            plain = {t: held for t, held in plain.items() if t not in gone}
        else:
            expected = expected_tags(plain, step, number, extra)
            try:
                runs = unacked.take(number, number + extra, multiple=step == "multiple")
            except AmqpError:
                assert expected is None
            else:
                assert expected is not None
                assert flat(runs) == {t: plain.pop(t) for t in expected}
                taken_out += runs
        assert unacked.count == len(plain)
    assert flat(unacked.take_all()) == plain


def expected_tags(plain: dict[int, Any], step: str, number: int, extra: int) -> list[int] | None:
    """Return the tags that are taken out, or `None` if one of them is unknown."""
    if step == "multiple":
        if not number:
            return list(plain)
        return [tag for tag in plain if tag <= number] if number in plain else None
    wanted = list(range(number, number + extra + 1))
    return wanted if all(tag in plain for tag in wanted) else None


def flat(runs: list[Run]) -> dict[int, tuple[Receiver, int]]:
    return {
        run.first_tag + at: (run.receiver, run.first_position + at)
        for run in runs
        for at in range(run.size)
    }


def test_acknowledging_in_order_keeps_one_run() -> None:
    unacked = Unacked()
    for tag in range(1, 1001):
        unacked.add(tag, RECEIVERS[0], tag)
        assert len(unacked._runs) - unacked._head == 1
        unacked.take(tag, tag)
    assert len(unacked._runs) < 200


@pytest.mark.parametrize("multiple", [True, False])
def test_an_empty_channel_knows_no_tag(multiple: bool) -> None:
    with pytest.raises(AmqpError, match="unknown delivery tag 1"):
        Unacked().take(1, 1, multiple=multiple)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), max_size=80))
def test_every_publish_is_confirmed_or_rejected_exactly_once(
    steps: list[tuple[int, int, bool]],
) -> None:
    confirms, number = Confirms(), 0
    outcomes: dict[int, str] = {}
    told: dict[int, str] = {}
    for kind, chosen, is_taken in steps:
        if kind <= 1:
            number += 1
            confirms.open(number)
        elif kind == 2 and chosen <= number:
            (confirms.confirm if is_taken else confirms.reject)(chosen)
            outcomes.setdefault(chosen, "ack" if is_taken else "nack")
        elif kind == 3:
            for method in confirms.take(number + 1):
                note(told, method, number)
            assert told == outcomes
            assert not confirms.has_news
    assert len(confirms) == number - len(outcomes)


def note(told: dict[int, str], method: object, number: int) -> None:
    assert isinstance(method, BasicAck | BasicNack)
    tag = method.delivery_tag
    assert tag <= number
    kind = "ack" if isinstance(method, BasicAck) else "nack"
    first = 1 if method.multiple else tag
    new = [each for each in range(first, tag + 1) if each not in told]
    assert tag in new
    for each in new:
        told[each] = kind
