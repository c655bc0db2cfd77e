"""Topic matching against a slow matcher that is obviously right, and its time with many bindings."""

from __future__ import annotations

import time
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.routing.bindings import Binding
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.topic import TopicMatcher, split_words
from penstock.amqp.routing.topology import queue_binding

NO_MESSAGE = RoutedMessage("x", "", b"\0\0")
_words = st.sampled_from(["a", "b", "c", "", "*", "#"])
patterns = st.lists(_words, max_size=6).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=7).map(".".join)


def matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


def found(matcher: TopicMatcher, key: str) -> list[str]:
    return sorted(destination.name for destination in matcher.match(key, NO_MESSAGE))


@given(
    st.lists(patterns, max_size=12, unique=True), st.lists(keys, min_size=1, max_size=5), st.data()
)
def test_the_trie_finds_what_the_slow_matcher_finds(
    bound: list[str], routing_keys: list[str], data: st.DataObject
) -> None:
    matcher = TopicMatcher()
    bindings = [queue_binding(f"q{number}", "x", key) for number, key in enumerate(bound)]
    for binding in bindings:
        matcher.add(binding)
    removed = _some(data, bindings)
    for binding in removed:
        matcher.remove(binding)
    left = [binding for binding in bindings if binding not in removed]
    for key in routing_keys:
        expected = [
            binding.destination.name
            for binding in left
            if matches(split_words(binding.routing_key), split_words(key))
        ]
        assert found(matcher, key) == sorted(expected)


def _some(data: st.DataObject, bindings: list[Binding]) -> list[Binding]:
    return [binding for binding in bindings if data.draw(st.booleans())]


def test_removing_all_bindings_leaves_an_empty_trie() -> None:
    matcher = TopicMatcher()
    bindings = [queue_binding("q", "x", key) for key in ("a.b", "a.#", "#.a.*", "a", "", "#")]
    for binding in bindings:
        matcher.add(binding)
    for binding in bindings:
        matcher.remove(binding)
    assert matcher._root.is_empty


def test_many_hashes_take_no_exponential_time() -> None:
    matcher = TopicMatcher()
    matcher.add(queue_binding("q", "x", ".".join(["#", "a"] * 60)))
    start = time.perf_counter()
    assert found(matcher, ".".join(["a"] * 120)) == ["q"]
    assert found(matcher, ".".join(["a"] * 119 + ["b"])) == []
    assert time.perf_counter() - start < 1


def test_a_hundred_thousand_bindings_match_fast() -> None:
    random = Random(7)
    matcher = TopicMatcher()
    for number in range(100_000):
        words = [
            random.choice("*#") if random.random() < 0.05 else f"w{random.randrange(300)}"
            for _ in range(4)
        ]
        matcher.add(queue_binding(f"q{number}", "x", ".".join(words)))
    routing_keys = [".".join(f"w{random.randrange(300)}" for _ in range(4)) for _ in range(300)]
    start = time.perf_counter()
    for key in routing_keys:
        matcher.match(key, NO_MESSAGE)
    assert (time.perf_counter() - start) / len(routing_keys) < 0.002
