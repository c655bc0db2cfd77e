"""Hypothesis strategies for AMQP values, and a plain reader of frames."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from hypothesis import strategies as st

import penstock.wire.amqp.codec  # noqa: F401  # importing it fills METHODS
from penstock.wire.amqp.frames import Frame, FrameSplitter
from penstock.wire.amqp.method import METHODS, Method
from penstock.wire.amqp.properties import Properties
from penstock.wire.amqp.tables import FieldTable, Scaled

FRAME_MAX: Final = 131072
ALL_METHODS: Final = sorted(METHODS.values(), key=lambda method: method.index)


def _short(text: str, limit: int) -> str:
    """Cut a text to at most `limit` bytes of UTF-8."""
    return text.encode()[:limit].decode(errors="ignore")


short_strings: Final = st.text(max_size=80).map(lambda text: _short(text, 255))
raw_strings: Final = st.binary(max_size=20).map(lambda raw: raw.decode(errors="surrogateescape"))
_WIDTHS: Final = {"b": (8, True), "B": (8, False), "s": (16, True), "u": (16, False)} | {
    "I": (32, True),
    "i": (32, False),
    "l": (64, True),
    "T": (64, False),
}


def _integers(letter: str) -> st.SearchStrategy[tuple[str, Any]]:
    bits, signed = _WIDTHS[letter]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.tuples(st.just(letter), st.integers(low, high))


_scalars: Final = st.one_of(
    *(_integers(letter) for letter in _WIDTHS),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("f"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("d"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("D"), st.builds(Scaled, st.integers(0, 255), st.integers(0, (1 << 32) - 1))),
    st.tuples(st.just("S"), st.one_of(st.text(max_size=20), raw_strings)),
    st.tuples(st.just("x"), st.binary(max_size=20)),
    st.just(("V", None)),
)
_values: Final = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.tuples(st.just("A"), st.lists(inner, max_size=4)),
        st.tuples(st.just("F"), st.dictionaries(short_strings, inner, max_size=4)),
    ),
    max_leaves=12,
)
tables: Final[st.SearchStrategy[FieldTable]] = st.dictionaries(
    st.one_of(short_strings, raw_strings), _values, max_size=6
)

_FIELDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "Octet": st.integers(0, 0xFF),
    "Short": st.integers(0, 0xFFFF),
    "Long": st.integers(0, 0xFFFFFFFF),
    "LongLong": st.integers(0, (1 << 64) - 1),
    "Bit": st.booleans(),
    "ShortStr": short_strings,
    "LongStr": st.binary(max_size=300),
}


def methods_of(
    method: type[Method], table: st.SearchStrategy[FieldTable] = tables
) -> st.SearchStrategy[Method]:
    fields = dataclasses.fields(method)  # type: ignore[arg-type]  # the decorator makes each a dataclass
    kinds = {**_FIELDS, "Table": table}
    return st.builds(method, **{field.name: kinds[str(field.type)] for field in fields})


properties: Final = st.builds(
    Properties,
    **{
        field.name: st.none()
        | {
            "headers": tables,
            "delivery_mode": st.integers(0, 255),
            "priority": st.integers(0, 255),
            "timestamp": st.integers(0, (1 << 64) - 1),
        }.get(field.name, st.one_of(short_strings, raw_strings))
        for field in dataclasses.fields(Properties)
    },
)


def split(stream: bytes, frame_max_bytes: int = FRAME_MAX) -> list[Frame]:
    splitter = FrameSplitter(frame_max_bytes)
    splitter.feed(stream)
    return taken(splitter)


def taken(splitter: FrameSplitter) -> list[Frame]:
    frames = []
    while (frame := splitter.next()) is not None:
        frames.append(frame)
    return frames
