"""The content properties of class basic: a word of flags, then the properties that it announces.

Text may hold bytes that are not UTF-8; they become surrogates, so that decoding and encoding again
gives the same bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

from penstock.wire.amqp.errors import AmqpError, syntax_error
from penstock.wire.amqp.tables import FieldTable, check_table, decode_table, encode_table

USER_ID_FLAG: Final = 1 << 4
_UNUSED_FLAGS: Final = 0x3  # a second word of flags, and one that has no property
_FLAGS: Final = struct.Struct(">H")
_TIMESTAMP: Final = struct.Struct(">Q")
_ESCAPE: Final = "surrogateescape"
_TABLE, _OCTET, _SECONDS, _TEXT = range(4)


@dataclass(slots=True)
class Properties:
    """The properties of a message, in wire order. `None` means absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: FieldTable | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None  # seconds since the epoch
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_KINDS: Final = {
    "headers": _TABLE,
    "delivery_mode": _OCTET,
    "priority": _OCTET,
    "timestamp": _SECONDS,
}
_ALL: Final = tuple(
    (1 << (15 - position), described.name, _KINDS.get(described.name, _TEXT))
    for position, described in enumerate(fields(Properties))
)


def decode_properties(data: bytes, at: int, end: int) -> Properties:
    """Decode the flags and the properties in `data[at:end]`."""
    properties = Properties()
    start = at
    try:
        layout = _layout(_FLAGS.unpack_from(data, at)[0])
        at += 2
        for name, kind in layout:
            value, at = _read(kind, data, at, end)
            setattr(properties, name, value)
    except (struct.error, IndexError):
        raise _wrong_size(at - start, end - start) from None
    if at != end:
        raise _wrong_size(at - start, end - start)
    return properties


def check_properties(data: bytes, at: int, end: int) -> None:
    """Raise what `decode_properties` raises, but build nothing."""
    start = at
    try:
        layout = _layout(data[at] << 8 | data[at + 1])
        at += 2
        for _, kind in layout:
            if kind == _TEXT:
                at += 1 + data[at]
            elif kind == _TABLE:
                at = check_table(data, at, end)
            else:
                at += 1 if kind == _OCTET else 8
    except (struct.error, IndexError):
        raise _wrong_size(at - start, end - start) from None
    if at != end:
        raise _wrong_size(at - start, end - start)


def encode_properties(properties: Properties) -> bytes:
    flags = 0
    pieces = [b""]
    for flag, name, kind in _ALL:
        value = getattr(properties, name)
        if value is not None:
            flags |= flag
            pieces.append(_write(name, kind, value))
    pieces[0] = _FLAGS.pack(flags)
    return b"".join(pieces)


@lru_cache(maxsize=256)
def _layout(flags: int) -> tuple[tuple[str, int], ...]:
    """Return the name and the kind of each property that the flags announce."""
    if flags & _UNUSED_FLAGS:
        raise syntax_error(f"content properties have unknown flags {flags & _UNUSED_FLAGS:#x}")
    return tuple((name, kind) for flag, name, kind in _ALL if flags & flag)


def _read(kind: int, data: bytes, at: int, end: int) -> tuple[Any, int]:
    if kind == _TEXT:
        stop = at + 1 + data[at]
        return str(data[at + 1 : stop], "utf-8", _ESCAPE), stop
    if kind == _TABLE:
        return decode_table(data, at, end)
    if kind == _OCTET:
        return data[at], at + 1
    return _TIMESTAMP.unpack_from(data, at)[0], at + 8


def _write(name: str, kind: int, value: Any) -> bytes:
    if kind == _TEXT:
        encoded: bytes = value.encode("utf-8", _ESCAPE)
        if len(encoded) > 255:
            raise ValueError(f"{name} has {len(encoded)} bytes; the limit is 255")
        return bytes((len(encoded),)) + encoded
    if kind == _TABLE:
        return encode_table(value)
    return bytes((value,)) if kind == _OCTET else _TIMESTAMP.pack(value)


def _wrong_size(needed: int, announced: int) -> AmqpError:
    return syntax_error(f"content properties need {needed} bytes; the frame has {announced}")
