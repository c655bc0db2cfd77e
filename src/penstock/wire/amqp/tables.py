"""Field tables and field arrays, with the types that RabbitMQ reads.

A value is a pair of its type letter and a Python value, so a table that is decoded and encoded again
has the same bytes. Three exceptions, as in RabbitMQ: `L` becomes `l`, every true `t` becomes 1, and
of two entries with one name the first counts.

| letter | value |
| --- | --- |
| t | bool |
| b B s u I i l | int of 8, 8, 16, 16, 32, 32 and 64 bits; B, u and i are unsigned |
| f d | float of 32 and 64 bits; not infinite, not NaN |
| D | `Scaled`: the number of decimal digits and the unsigned integer |
| S | str; bytes that are not UTF-8 become surrogates, as `surrogateescape` defines |
| x | bytes |
| T | int: seconds since the epoch |
| A F | list of values, dict of values |
| V | None |

Depth and element count are bounded, whatever the sizes in the bytes announce.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.wire.amqp.errors import AmqpError, syntax_error

MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 10_000  # in one table, with all that is nested in it
MAX_NAME_BYTES: Final = 255
_ESCAPE: Final = "surrogateescape"

FieldValue: TypeAlias = tuple[str, Any]
FieldTable: TypeAlias = dict[str, FieldValue]
FieldArray: TypeAlias = list[FieldValue]


class Scaled(NamedTuple):
    """A decimal: `unscaled` divided by ten to the power of `scale`."""

    scale: int
    unscaled: int


_VOID: Final[FieldValue] = ("V", None)
_S, _T, _F, _A, _X, _D, _V, _BOOL = b"STFAxDVt"
_UINT32: Final = struct.Struct(">I")
_SCALED: Final = struct.Struct(">BI")
_NUMBERS: Final = {
    letter: struct.Struct(">" + code)
    for letter, code in zip("bBsuIilfdT", "bBhHiIqfdQ", strict=True)
}
_READERS: Final = {
    ord(letter): (letter.replace("L", "l"), packing.unpack_from, packing.size)
    for letter, packing in {**_NUMBERS, "L": _NUMBERS["l"]}.items()
}
_COUNTED: Final = frozenset((_S, _X))
_CONTAINERS: Final = frozenset((_F, _A))
_FINITE_LIMIT: Final = {ord("f"): 0x7F80, ord("d"): 0x7FF0}  # of the first 16 bits, without sign


def decode_table(data: bytes, at: int, stop: int) -> tuple[FieldTable, int]:
    """Decode the table at `at`, whose bytes must end before or at `stop`. Return it and its end."""
    try:
        table, end, _ = _read_container(data, at, stop, MAX_DEPTH, MAX_ELEMENTS, 1)
    except (struct.error, IndexError):
        raise _overrun(at, stop) from None
    return table, end


def encode_table(table: Mapping[str, FieldValue]) -> bytes:
    entries = b"".join([_encode_name(name) + _encode_value(value) for name, value in table.items()])
    return _UINT32.pack(len(entries)) + entries


def check_table(data: bytes, at: int, stop: int) -> int:
    """Return the end of the table at `at`. Raise what `decode_table` raises, but build nothing."""
    try:
        at, _ = _check_container(data, at, stop, MAX_DEPTH, MAX_ELEMENTS, 1)
    except (struct.error, IndexError):
        raise _overrun(at, stop) from None
    return at


def as_table(values: Mapping[str, object]) -> FieldTable:
    """Choose the type letters for plain Python values."""
    return {name: as_value(value) for name, value in values.items()}


def as_value(value: object) -> FieldValue:
    match value:
        case None:
            return _VOID
        case bool():
            return "t", value
        case int():
            return "I" if -(1 << 31) <= value < 1 << 31 else "l", value
        case float():
            return "d", value
        case str():
            return "S", value
        case bytes():
            return "x", value
        case Mapping():
            return "F", as_table(value)
        case list():
            return "A", [as_value(element) for element in value]
        case _:
            raise TypeError(f"a field table holds no {type(value).__name__}")


def as_plain(value: FieldValue) -> Any:
    """Return the Python value without the type letters, at every level."""
    letter, content = value
    if letter == "F":
        return {name: as_plain(element) for name, element in content.items()}
    return [as_plain(element) for element in content] if letter == "A" else content


def _read_container(
    data: bytes, at: int, stop: int, depth: int, left: int, named: int
) -> tuple[Any, int, int]:
    """Return the table (`named` is 1) or the array (0), its end, and how many elements may follow."""
    end = _container_end(data, at, stop, depth)
    at += 4
    table: FieldTable = {}
    array: FieldArray = []
    name = ""
    while at < end:
        if named:
            name_at = at + 1
            at = name_at + data[at]
            name = str(data[name_at:at], "utf-8", _ESCAPE)
        letter = data[at]
        at += 1
        if letter == _S:
            start = at + 4
            at = start + _UINT32.unpack_from(data, at)[0]
            value: FieldValue = "S", str(data[start:at], "utf-8", _ESCAPE)
        elif letter in _READERS:
            if letter in _FINITE_LIMIT:
                _check_finite(data, at, letter)
            kind, unpack_from, size = _READERS[letter]
            value = kind, unpack_from(data, at)[0]
            at += size
        else:
            value, at, left = _read_rare(letter, data, at, end, depth, left)
        if at > end:
            raise _overrun(at, end)
        if not left:
            raise _too_many()
        left -= 1
        if not named:
            array.append(value)
        elif name not in table:
            table[name] = value
    return table if named else array, at, left


def _read_rare(
    letter: int, data: bytes, at: int, end: int, depth: int, left: int
) -> tuple[FieldValue, int, int]:
    if letter in _CONTAINERS:
        value, at, left = _read_container(data, at, end, depth - 1, left, int(letter == _F))
        return ("F" if letter == _F else "A", value), at, left
    if letter == _BOOL:
        return ("t", data[at] != 0), at + 1, left
    if letter == _X:
        start = at + 4
        at = start + _UINT32.unpack_from(data, at)[0]
        return ("x", bytes(data[start:at])), at, left
    if letter == _V:
        return _VOID, at, left
    if letter == _D:
        return ("D", Scaled(*_SCALED.unpack_from(data, at))), at + 5, left
    raise _unknown_type(letter)


def _check_container(
    data: bytes, at: int, stop: int, depth: int, left: int, named: int
) -> tuple[int, int]:
    """The twin of `_read_container` that builds nothing."""
    end = _container_end(data, at, stop, depth)
    at += 4
    while at < end:
        if named:
            at += 1 + data[at]
        letter = data[at]
        at += 1
        if letter in _COUNTED:
            at += 4 + _UINT32.unpack_from(data, at)[0]
        elif letter in _FIXED_BYTES:
            if letter in _FINITE_LIMIT:
                _check_finite(data, at, letter)
            at += _FIXED_BYTES[letter]
        elif letter in _CONTAINERS:
            at, left = _check_container(data, at, end, depth - 1, left, int(letter == _F))
        else:
            raise _unknown_type(letter)
        if at > end:
            raise _overrun(at, end)
        if not left:
            raise _too_many()
        left -= 1
    return at, left


_FIXED_BYTES: Final = {
    **{letter: size for letter, (_, _, size) in _READERS.items()},
    _BOOL: 1,
    _D: 5,
    _V: 0,
}


def _container_end(data: bytes, at: int, stop: int, depth: int) -> int:
    end: int = at + 4 + _UINT32.unpack_from(data, at)[0]
    if end > stop:
        raise syntax_error(
            f"table or array of {end - at - 4} bytes; {stop - at - 4} bytes are left"
        )
    if not depth:
        raise syntax_error(f"tables and arrays are nested deeper than {MAX_DEPTH} levels")
    return end


def _check_finite(data: bytes, at: int, letter: int) -> None:
    if (data[at] << 8 | data[at + 1]) & 0x7FFF >= _FINITE_LIMIT[letter]:
        raise syntax_error(f"a number of type '{letter:c}' in a table is infinite or NaN")


def _overrun(at: int, end: int) -> AmqpError:
    return syntax_error(f"a value in a table ends at byte {at}, beyond the table's end at {end}")


def _unknown_type(letter: int) -> AmqpError:
    return syntax_error(f"unknown type {letter:#04x} of a value in a table")


def _too_many() -> AmqpError:
    return syntax_error(f"a table has more than {MAX_ELEMENTS} elements")


def _encode_name(name: str) -> bytes:
    encoded = name.encode("utf-8", _ESCAPE)
    if len(encoded) > MAX_NAME_BYTES:
        raise ValueError(f"table name of {len(encoded)} bytes; the limit is {MAX_NAME_BYTES}")
    return bytes((len(encoded),)) + encoded


def _encode_value(value: FieldValue) -> bytes:
    letter, content = value
    packing = _NUMBERS.get(letter)
    if packing is not None:
        return letter.encode() + packing.pack(content)
    return _ENCODERS[letter](content)


def _encode_bytes(letter: bytes, content: bytes) -> bytes:
    return letter + _UINT32.pack(len(content)) + content


def _encode_array(content: FieldArray) -> bytes:
    return _encode_bytes(b"A", b"".join([_encode_value(value) for value in content]))


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "S": lambda content: _encode_bytes(b"S", content.encode("utf-8", _ESCAPE)),
    "x": lambda content: _encode_bytes(b"x", content),
    "t": lambda content: b"t\1" if content else b"t\0",
    "F": lambda content: b"F" + encode_table(content),
    "A": _encode_array,
    "D": lambda content: b"D" + _SCALED.pack(*content),
    "V": lambda _: b"V",
}
