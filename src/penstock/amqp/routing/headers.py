"""The matcher of headers exchanges.

Values are equal as in RabbitMQ: integers of all widths are one type, and so are text and bytes. An
argument without a value (void) requires only that the header exists. Arguments that begin with
`x-` count only with `all-with-x` and `any-with-x`.

An index from (name, value) to bindings finds the candidates, so a message costs about as much as the
bindings that share a header with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.amqp.failures import TYPE_NAMES, precondition_failed
from penstock.amqp.routing.bindings import Binding, Destination
from penstock.amqp.routing.messages import RoutedMessage
from penstock.wire.amqp.tables import FieldTable, FieldValue

_MODES: Final = frozenset({"all", "any", "all-with-x", "any-with-x"})
_INTEGERS: Final = frozenset("bBsuIil")
_Pair: TypeAlias = tuple[str, Hashable]
_PRESENT: Final = object()  # stands for any value of a header


class _Compiled(NamedTuple):
    destination: Destination
    match_any: bool
    pairs: tuple[_Pair, ...]


class HeadersMatcher:
    by_key_only = False

    def __init__(self) -> None:
        self._by_pair: dict[_Pair, dict[object, _Compiled]] = {}
        self._unconditional: dict[object, _Compiled] = {}

    def add(self, binding: Binding) -> None:
        compiled = _compile(binding)
        for bindings in self._index_entries(compiled):
            bindings[binding.identity] = compiled

    def remove(self, binding: Binding) -> None:
        compiled = _compile(binding)
        for bindings in self._index_entries(compiled):
            del bindings[binding.identity]
        for pair in compiled.pairs:
            if not self._by_pair.get(pair, True):
                del self._by_pair[pair]

    def match(self, routing_key: str, message: RoutedMessage) -> Iterable[Destination]:  # noqa: ARG002
        found = {compiled.destination: None for compiled in self._unconditional.values()}
        if not self._by_pair:
            return found
        pairs: set[_Pair] = set()
        for name, value in message.headers.items():
            pairs.add((name, comparable(value)))
            pairs.add((name, _PRESENT))
        for pair in pairs:
            for compiled in self._by_pair.get(pair, {}).values():
                if compiled.match_any or pairs.issuperset(compiled.pairs):
                    found[compiled.destination] = None
        return found

    def _index_entries(self, compiled: _Compiled) -> list[dict[object, _Compiled]]:
        """Return the dicts that hold the binding: one pair is enough to find an `all`."""
        if not compiled.pairs:
            return [] if compiled.match_any else [self._unconditional]
        pairs = compiled.pairs if compiled.match_any else compiled.pairs[:1]
        return [self._by_pair.setdefault(pair, {}) for pair in pairs]


def _compile(binding: Binding) -> _Compiled:
    mode = _mode(binding.arguments)
    with_x = mode.endswith("-with-x")
    pairs = tuple(
        (name, _PRESENT if value[0] == "V" else comparable(value))
        for name, value in binding.arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return _Compiled(binding.destination, mode.startswith("any"), pairs)


def _mode(arguments: FieldTable) -> str:
    letter, mode = arguments.get("x-match", ("S", "all"))
    assert letter == "S"
    return str(mode)


def check_headers_binding(binding: Binding) -> None:
    letter, mode = binding.arguments.get("x-match", ("S", "all"))
    if letter != "S":
        raise precondition_failed(
            f"Invalid x-match field type {TYPE_NAMES[letter]} (value {mode}); expected longstr"
        )
    if mode not in _MODES:
        raise precondition_failed(
            f'Invalid x-match field value <<"{mode}">>; '
            "expected all, any, all-with-x, or any-with-x"
        )


def comparable(value: FieldValue) -> Hashable:
    """Return a key that is equal for values that a headers exchange treats as equal."""
    letter, content = value
    if letter in _INTEGERS or letter == "T":
        return "int", content
    if letter == "S":
        return "bytes", content.encode("utf-8", "surrogateescape")
    if letter == "x":
        return "bytes", content
    if letter in "fd":
        return "float", content
    return letter, _frozen(letter, content)


def _frozen(letter: str, content: Any) -> Hashable:
    if letter == "A":
        return tuple((kind, _frozen(kind, inner)) for kind, inner in content)
    if letter == "F":
        return tuple(
            sorted((name, kind, _frozen(kind, inner)) for name, (kind, inner) in content.items())
        )
    frozen: Hashable = content
    return frozen
