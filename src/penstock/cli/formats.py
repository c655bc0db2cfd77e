"""How `consume` prints a message: kcat's format tokens, or one JSON object a line."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple


class Consumed(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # -1: none
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Part = Callable[[Consumed], bytes]

TOKEN_HELP: Final = (
    "%%t topic, %%p partition, %%o offset, %%T timestamp in ms, %%k key, %%K its length, %%s value, "
    "%%S its length (null: -1), %%h headers, %%%% percent, \\n \\t \\r \\xHH"
)

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _number(pick: Callable[[Consumed], int]) -> Part:
    return lambda message: b"%d" % pick(message)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(message: Consumed) -> bytes:
    return b",".join(
        key.encode() + b"=" + (b"NULL" if value is None else value)
        for key, value in message.headers
    )


_TOKENS: Final[dict[str, Part]] = {
    "t": lambda message: message.topic.encode(),
    "p": _number(lambda message: message.partition),
    "o": _number(lambda message: message.offset),
    "T": _number(lambda message: message.timestamp_ms),
    "k": lambda message: message.key or b"",
    "K": _number(lambda message: _length(message.key)),
    "s": lambda message: message.value or b"",
    "S": _number(lambda message: _length(message.value)),
    "h": _headers,
    "%": lambda message: b"%",  # noqa: ARG005  # the same shape as the others
}


def compile_format(text: str) -> Part:
    """A function from message to bytes; a ValueError names a token that does not exist."""
    parts: list[Part | bytes] = []
    at = 0
    while at < len(text):
        part, at = _next_part(text, at)
        parts.append(part)
    return lambda message: b"".join(
        part if isinstance(part, bytes) else part(message) for part in parts
    )


def _next_part(text: str, at: int) -> tuple[Part | bytes, int]:
    here = text[at]
    following = text[at + 1 : at + 2]
    if here == "%":
        if following not in _TOKENS:
            raise ValueError(f"unknown token {here + following!r}; there are %{' %'.join(_TOKENS)}")
        return _TOKENS[following], at + 2
    if here == "\\" and following == "x":
        try:
            return bytes.fromhex(text[at + 2 : at + 4]), at + 4
        except ValueError:
            raise ValueError(
                f"expected two hex digits after \\x, not {text[at + 2 : at + 4]!r}"
            ) from None
    if here == "\\" and following in _ESCAPES:
        return _ESCAPES[following], at + 2
    return here.encode(), at + 1


def as_json(message: Consumed) -> bytes:
    """One line; bytes that are no UTF-8 are shown in base64 under a name of their own."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        **readable("key", message.key),
        **readable("value", message.value),
        "headers": [{"key": key, **readable("value", value)} for key, value in message.headers],
    }
    return json.dumps(facts, ensure_ascii=False).encode() + b"\n"


def readable(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes for JSON: text under `name`, or `name`_base64 when they are no UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        assert data is not None
        return {f"{name}_base64": b64encode(data).decode()}
