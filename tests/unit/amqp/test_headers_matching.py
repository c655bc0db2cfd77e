"""Headers exchanges against brute force, and the rules of x-match one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.routing.bindings import Binding
from penstock.amqp.routing.headers import HeadersMatcher, check_headers_binding, comparable
from penstock.amqp.routing.messages import RoutedMessage
from penstock.amqp.routing.topology import queue_binding
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.tables import FieldTable

_values = st.one_of(
    st.tuples(st.sampled_from("bsIl"), st.integers(0, 2)),
    st.tuples(st.just("S"), st.sampled_from(["1", "x"])),
    st.tuples(st.just("x"), st.sampled_from([b"1", b"x"])),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("d"), st.sampled_from([1.0, 2.0])),
    st.just(("V", None)),
    st.just(("A", [("I", 1)])),
)
_names = st.sampled_from(["a", "b", "x-c"])
headers = st.dictionaries(_names, _values, max_size=3)
modes = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def message(table: FieldTable) -> RoutedMessage:
    return RoutedMessage("x", "", encode_properties(Properties(headers=table)))


def bound(name: str, mode: str | None, arguments: FieldTable) -> Binding:
    match = {} if mode is None else {"x-match": ("S", mode)}
    return queue_binding(name, "x", "", {**match, **arguments})


def expected(binding: Binding, table: FieldTable) -> bool:
    mode = binding.arguments.get("x-match", ("S", "all"))[1]
    results = []
    for name, value in binding.arguments.items():
        if name == "x-match" or (name.startswith("x-") and "with-x" not in mode):
            continue
        present = name in table
        same = present and comparable(table[name]) == comparable(value)
        results.append(present if value[0] == "V" else same)
    return any(results) if mode.startswith("any") else all(results)


@given(st.lists(st.tuples(modes, headers), max_size=8), st.lists(headers, min_size=1, max_size=4))
def test_the_index_finds_what_brute_force_finds(
    specified: list[tuple[str | None, FieldTable]], tables: list[FieldTable]
) -> None:
    matcher = HeadersMatcher()
    bindings = [bound(f"q{number}", *spec) for number, spec in enumerate(specified)]
    for binding in bindings:
        matcher.add(binding)
    for binding in bindings[::3]:
        matcher.remove(binding)
    left = [binding for number, binding in enumerate(bindings) if number % 3]
    for table in tables:
        names = sorted(destination.name for destination in matcher.match("", message(table)))
        assert names == sorted(b.destination.name for b in left if expected(b, table))


@pytest.mark.parametrize(
    ("mode", "arguments", "table", "is_match"),
    [
        (None, {"a": ("I", 1)}, {"a": ("l", 1)}, True),  # widths of integers do not count
        (None, {"a": ("I", 1)}, {"a": ("S", "1")}, False),
        (None, {"a": ("S", "1")}, {"a": ("x", b"1")}, True),
        (None, {"a": ("V", None)}, {"a": ("S", "any value")}, True),
        (None, {}, {}, True),
        ("any", {}, {"a": ("I", 1)}, False),
        ("all", {"a": ("I", 1), "b": ("I", 2)}, {"a": ("I", 1)}, False),
        ("any", {"a": ("I", 1), "b": ("I", 2)}, {"a": ("I", 1)}, True),
        ("all", {"x-c": ("I", 1)}, {}, True),  # arguments with x- are ignored
        ("all-with-x", {"x-c": ("I", 1)}, {}, False),
        ("any-with-x", {"x-c": ("I", 1)}, {"x-c": ("I", 1)}, True),
        ("any", {"x-c": ("I", 1)}, {"x-c": ("I", 1)}, False),
    ],
)
def test_rules_of_x_match(
    mode: str | None, arguments: FieldTable, table: FieldTable, is_match: bool
) -> None:
    matcher = HeadersMatcher()
    matcher.add(bound("q", mode, arguments))
    assert bool(list(matcher.match("", message(table)))) is is_match


def test_an_unknown_x_match_is_rejected() -> None:
    with pytest.raises(AmqpError, match="expected all, any, all-with-x, or any-with-x"):
        check_headers_binding(bound("q", "some", {}))
    with pytest.raises(AmqpError, match="Invalid x-match field type signedint"):
        check_headers_binding(queue_binding("q", "x", "", {"x-match": ("I", 1)}))
