"""Patterns over topic names: what RE2 matches, and never more than linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.patterns import MAX_STEPS, InvalidPattern, Pattern
from penstock.model.errors import ErrorCode

LETTERS = "abAB01._-"
names = st.text(LETTERS, max_size=8)
atoms = st.sampled_from(
    [
        "a",
        "b",
        "A",
        "0",
        r"\.",
        "-",
        "_",
        ".",
        "[ab]",
        "[^a]",
        "[a-b0-1]",
        r"\d",
        r"\w",
        r"\W",
        "^",
        "$",
    ]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
        st.builds(
            lambda part, repeat: f"(?:{part}){repeat}",
            inner,
            st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "+?"]),
        ),
    ),
    max_leaves=8,
)


@given(pattern=patterns, name=names)
def test_it_matches_what_a_backtracking_engine_matches(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == bool(re.fullmatch(pattern, name))


@given(pattern=patterns, name=names)
def test_it_says_the_same_when_asked_again(pattern: str, name: str) -> None:
    compiled = Pattern(pattern)

    assert compiled.matches(name) == compiled.matches(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(?i)ORDERS-[a-c]", "orders-B"),
        ("(?i:a)b", "Ab"),
        ("[[:alpha:]]+[[:^digit:]]", "abc-"),
        (r"\Qa.b\E-.*", "a.b-x"),
        ("(?P<name>a)(?<other>b)", "ab"),
        (r"\Aa\z", "a"),
        ("[]a-]+", "a-a"),
    ],
)
def test_what_is_particular_to_re2(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name)


UNKNOWN = [
    *("(", "a)", "*a", "a**+", "[a", "[b-a]", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1"),
    *("(?>a)", "a{1001}", "a{3,2}", r"\b", r"\pL", "[[:nope:]]", "(?P<1>a)", "(?x)a", "a++", "\\"),
]


@pytest.mark.parametrize("pattern", UNKNOWN)
def test_what_re2_does_not_know_is_refused_with_the_place(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="position") as refusal:
        Pattern(pattern)

    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["((a{100}){100}){100}", "(" * 200 + ")" * 200])
def test_a_pattern_that_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match=f"{MAX_STEPS}|nested"):
        Pattern(pattern)


def test_a_pattern_that_would_take_others_years_is_answered_at_once() -> None:
    assert not Pattern("(a+)+(a+)+(a|aa)*b").matches("a" * 249)


def test_an_automaton_that_grows_too_large_is_begun_anew() -> None:
    pattern = Pattern("(a|b)*a(a|b){12}")  # needs 2^13 states
    for number in range(1 << 13):
        name = "".join("ab"[number >> bit & 1] for bit in range(13))
        assert pattern.matches(name) == (name[0] == "a")


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        (r"orders:\d+", ["orders:1"]),
        (r"[^:]+", ["plain", "über", "with space"]),
        (r".*[[:space:]].*", ["with space"]),
        (r"\S+", ["orders:1", "plain", "über"]),
        (r"[[:punct:][:alnum:]]+", ["orders:1", "plain"]),
        (r"ü.*", ["über"]),
    ],
)
def test_names_of_other_characters_are_matched_where_those_are_named(
    text: str, matching: list[str]
) -> None:
    names = ["orders:1", "plain", "über", "with space"]
    pattern = Pattern(text, frozenset("".join(names)))
    assert [name for name in names if pattern.matches(name)] == matching
