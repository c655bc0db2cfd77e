"""Patterns over topic names: what RE2 matches, and never more than linear time."""

import re
import sys
from contextlib import suppress
from random import Random
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups import patterns as patterns_module
from penstock.groups.patterns import ALPHABET, MAX_LENGTH, MAX_STEPS, InvalidPattern, Pattern
from penstock.model.errors import ErrorCode

LETTERS = "abAB01._-"
names = st.text(LETTERS, min_size=1, max_size=8)  # no topic and no transactional id is empty
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
        "()",
        "(|a)",
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
            st.sampled_from(["*", "+", "?", "{0}", "{2}", "{1,3}", "{0,}", "*?", "+?"]),
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
        ("a{0003}", "aaa"),
        ("((){1000}){1000}", ""),
        ("(|)", ""),
        ("(a||b)", ""),
        ("(a||b){2}", "ab"),
        (r"a\Q\E{5}b()*", "ab"),
    ],
)
def test_what_is_particular_to_re2(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name)


UNKNOWN = [
    *("(", "a)", "*a", "a**+", "[a", "[b-a]", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1"),
    *("a**", "a+*", "a{2}{3}", "a*?*", "a" + "*" * 2000, "a{" + "9" * 5000 + "}"),
    *("(?>a)", "a{1001}", "a{3,2}", r"\b", r"\pL", "[[:nope:]]", "(?P<1>a)", "(?x)a", "a++", "\\"),
]


@pytest.mark.parametrize("pattern", UNKNOWN)
def test_what_re2_does_not_know_is_refused_with_the_place(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="position") as refusal:
        Pattern(pattern)

    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@given(pattern=patterns, some=st.lists(names, max_size=5))
def test_it_says_the_same_when_it_remembers_next_to_nothing(pattern: str, some: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns_module, "_MAX_WAYS", 2)
        compiled = Pattern(pattern)
        for name in some:
            assert compiled.matches(name) == bool(re.fullmatch(pattern, name)), name


@pytest.mark.parametrize(
    "pattern",
    ["((a{100}){100}){100}", "(" * 200 + ")" * 200, "(a?b?){0,1000}(.*a){0,900}", "a?" * 501],
)
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


@pytest.mark.parametrize("text", ["(a?b?){0,99}(.*a){0,99}", "(a.{0,230}|b.{0,200})*"])
def test_the_largest_patterns_take_little_memory_whatever_they_are_asked(text: str) -> None:
    pattern, dice = Pattern(text), Random(1)
    most_bytes = 0
    for _ in range(50):
        pattern.matches("".join(dice.choices("ab", k=249)))
        remembered: list[object] = [*pattern._members, *pattern._rows]
        most_bytes = max(most_bytes, sum(map(sys.getsizeof, remembered)))
    assert most_bytes < 2_500_000


def test_a_list_of_many_topics_is_no_large_pattern() -> None:
    topics = [f"team-{number}.orders.v1" for number in range(50)]
    pattern = Pattern("|".join(map(re.escape, topics)))
    assert all(map(pattern.matches, topics))
    assert not pattern.matches("team-50.orders.v1")


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


def repeated(unit: str, start: str = "", end: str = "") -> str:
    """Return a pattern of the largest length."""
    return start + unit * ((MAX_LENGTH - len(start) - len(end)) // len(unit)) + end


HOSTILE = [
    *("((){1000}){1000}", "(" * 90 + "a{0}" + "){1000}" * 90, "(" * 90 + ")*" * 90),
    *(repeated("()", "(a", "){1000}"), repeated("|", "(a", "){400}"), repeated("|a|", "(", ")")),
    *(repeated("a|", "", "|" * 4000), repeated("(?i)", "(a", "){1000}"), repeated("\\Q\\E")),
    *(repeated(unit) for unit in ("{", "(", "|", "a", "[[:", "[a-", "[^", "(?P<", "(?i)", "a?")),
    *(repeated(unit) for unit in ("(a*)*", "a{9}", "^*", "[^a]", r"\W", "[[:^alpha:]]", "a{999}")),
    *(repeated("[a-z]"), repeated("a-z", "[", "]"), repeated("9", "a{", "}"), repeated("*", "a")),
    *("(" * 99 + "a?b?" + "|c?d?)*" * 99, "(" * 99 + "a" + ")*" * 99),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("alphabet", [ALPHABET, frozenset(map(chr, range(1, 50_000)))], ids=len)
def test_a_pattern_is_compiled_or_rejected_in_a_moment(text: str, alphabet: frozenset[str]) -> None:
    """Names of topics have 65 characters; transactional ids, those that clients have put in them."""

    def work_s() -> float:
        start_s = thread_time()
        with suppress(InvalidPattern):
            Pattern(text, alphabet)
        return thread_time() - start_s

    assert any(work_s() < 0.2 for _ in range(3))


def test_a_pattern_that_is_too_long_is_rejected() -> None:
    Pattern("[" + "a" * (MAX_LENGTH - 2) + "]")
    with pytest.raises(InvalidPattern, match=f"at most {MAX_LENGTH}"):
        Pattern("a" * (MAX_LENGTH + 1))
