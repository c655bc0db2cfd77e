"""Policies: which one applies, how they merge, and how long their patterns may take."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.arguments import QueueType
from penstock.amqp.name_patterns import NamePattern
from penstock.amqp.policies import ApplyTo, Policy, PolicySet, effective_value
from penstock.wire.amqp.errors import AmqpError

CLASSIC, QUORUM, STREAM = QueueType


def policy(
    name: str = "p", pattern: str = "", priority: int = 0, apply_to: str = "all", **definition: Any
) -> Policy:
    named = {key.replace("_", "-"): value for key, value in definition.items()} or {"expires": 1}
    return Policy(name, pattern, named, apply_to=ApplyTo(apply_to), priority=priority)


def test_the_highest_priority_counts_and_others_not_at_all() -> None:
    found = PolicySet(
        [
            policy("low", priority=1, max_length=1, expires=5),
            policy("high", priority=2, max_length=9),
        ]
    ).effective("q", CLASSIC)
    assert (found.policy, dict(found.definition)) == ("high", {"max-length": 9})


def test_the_name_decides_between_equals() -> None:
    assert PolicySet([policy("b"), policy("a")]).effective("q", CLASSIC).policy == "a"


def test_nothing_applies() -> None:
    found = PolicySet([policy(pattern="^x")]).effective("q", CLASSIC)
    assert found == (None, None, {})


@pytest.mark.parametrize(
    ("apply_to", "applies"),
    [
        ("all", [True, True, True, True]),
        ("queues", [True, True, True, False]),
        ("classic_queues", [True, False, False, False]),
        ("quorum_queues", [False, True, False, False]),
        ("streams", [False, False, True, False]),
        ("exchanges", [False, False, False, True]),
    ],
)
def test_policies_apply_to_kinds(apply_to: str, applies: list[bool]) -> None:
    made = policy(apply_to=apply_to)
    assert [made.applies("q", kind) for kind in (CLASSIC, QUORUM, STREAM, None)] == applies


def test_operator_policies_lower_limits() -> None:
    found = PolicySet(
        [policy(max_length=10, message_ttl=5, dead_letter_exchange="x")],
        [policy("o", max_length=5, message_ttl=50, expires=9)],
    ).effective("q", CLASSIC)
    assert dict(found.definition) == {
        "max-length": 5,
        "message-ttl": 5,
        "expires": 9,
        "dead-letter-exchange": "x",
    }
    assert (found.policy, found.operator_policy) == ("p", "o")


@pytest.mark.parametrize(
    ("key", "argument", "definition", "value"),
    [
        ("max-length", 5, {"max-length": 9}, 5),
        ("max-length", 9, {"max-length": 5}, 5),
        ("max-length", None, {"max-length": 5}, 5),
        ("max-length", 9, {}, 9),
        ("max-length", None, {}, None),
        ("dead-letter-exchange", "a", {"dead-letter-exchange": "b"}, "a"),
        ("delivery-limit", -1, {"delivery-limit": 5}, 5),
        ("delivery-limit", 5, {"delivery-limit": -1}, 5),
    ],
)
def test_arguments_win_except_that_limits_are_the_smaller(
    key: str, argument: Any, definition: dict[str, Any], value: Any
) -> None:
    assert effective_value(key, argument, definition) == value


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length": True}, "True is not a valid maximum length"),
        ({"message-ttl": "5"}, "'5' is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"overflow": "explode"}, "'explode' is not a valid overflow value"),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"max-age": "1w"}, "'1w' is not a valid max age"),
        ({"ha-mode": "all"}, r"\['ha-mode'\] are not recognised policy settings"),
        ({}, "policy 'p' has an empty definition"),
    ],
)
def test_definitions_are_checked(definition: dict[str, Any], text: str) -> None:
    with pytest.raises(AmqpError, match=text):
        Policy("p", "", definition)


def test_operator_policies_are_for_limits() -> None:
    with pytest.raises(AmqpError, match="are not recognised operator policy settings"):
        PolicySet([], [policy(dead_letter_exchange="x")])


def test_settings_of_our_own_are_accepted() -> None:
    assert Policy("p", "", {"penstock-delay-until-header": "eta"}).definition


# Patterns ---------------------------------------------------------------------------------------------

_names = st.text(alphabet="aq.-é1", max_size=8)


@pytest.mark.parametrize(
    "pattern",
    ["", "a", "^a", "a$", "^a.q$", "a|q", "^(a|q)\\.", "[^a]", "^(?!a).*", "^(?!a|q)", "^(?=.*q)a", "^(?!amq\\.).*$", "\\d+", "é", "^(?!a)(?!q).*\\.", "(?i)A", "^$", "a{2,3}", "^[é-ü]"],
)  # fmt: skip
@given(names=st.lists(_names, max_size=20))
@settings(max_examples=30)
def test_patterns_agree_with_the_backtracking_matcher(pattern: str, names: list[str]) -> None:
    made = NamePattern(pattern)
    for name in names:
        if pattern == "^[é-ü]" and name.startswith("é"):
            assert made.matches(name)
            continue
        assert made.matches(name) is (re.search(pattern, name) is not None)


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "[", "a(?!b)", "^(?!a)b|c", "(?<=a)b", "\\1", "a**", "x" * 2000]
)
def test_patterns_that_cannot_be_bounded_are_refused(pattern: str) -> None:
    with pytest.raises(AmqpError, match="is not supported"):
        NamePattern(pattern)


def test_a_pattern_cannot_stop_the_broker() -> None:
    start = time.perf_counter()
    made = NamePattern("^(a+)+$")
    for _ in range(20):
        assert not made.matches("a" * 254 + "!")
    assert time.perf_counter() - start < 1
