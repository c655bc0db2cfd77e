"""Values to bytes and back: by name ('bytes', 'str', 'json') or by any callable. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from penstock.sdk import checks
from penstock.sdk.errors import ConfigurationError, DeserializationError, SerializationError

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]
Function = TypeVar("Function", Serializer, Deserializer)


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and infinity are refused: JSON has no word for them.

    >>> to_json({"name": "Zoë", "age": 7})
    b'{"name":"Zo\\xc3\\xab","age":7}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def from_str(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected str, not {type(value).__name__}")
    return value.encode()


def to_str(data: bytes) -> str:
    return data.decode()


_SERIALIZERS: Final[Mapping[str, Serializer | None]] = {
    "bytes": None,  # librdkafka takes bytes and str as they are
    "str": from_str,
    "json": to_json,
}
_DESERIALIZERS: Final[Mapping[str, Deserializer | None]] = {
    "bytes": None,
    "str": to_str,
    "json": json.loads,
}


def serializer(choice: str | Serializer | None) -> Serializer | None:
    """None means: bytes and str pass as they are."""
    return _chosen(choice, _SERIALIZERS, "serializer")


def deserializer(choice: str | Deserializer | None) -> Deserializer | None:
    """None means: bytes as they came."""
    return _chosen(choice, _DESERIALIZERS, "deserializer")


def _chosen(
    choice: str | Function | None, table: Mapping[str, Function | None], what: str
) -> Function | None:
    if not isinstance(choice, str):
        checks.function(f"a {what}", choice)
        return choice
    if choice not in table:
        raise ConfigurationError(
            f"no {what} is called {choice!r}",
            remedy=f"give one of {', '.join(table)}, or a function",
        )
    return table[choice]


def serialize(make: Serializer, value: Any, what: str) -> bytes | None:
    """None stays None: it is Kafka's tombstone. `what` is 'key' or 'value'."""
    if value is None:
        return None
    try:
        made = make(value)
    except Exception as error:
        raise SerializationError(
            f"{what} of type {type(value).__name__}: {error}",
            remedy=f"give what {what}_serializer takes",
        ) from error
    if made is not None and not isinstance(made, bytes | str):
        raise SerializationError(
            f"{what}_serializer made {type(made).__name__} of {type(value).__name__}",
            remedy="it has to return bytes",
        )
    return made


def deserialize(read: Deserializer, data: bytes | None, what: str, place: str) -> Any:
    """`place` says which message it is, such as "orders-0@17"."""
    if data is None:
        return None
    try:
        return read(data)
    except Exception as error:
        raise DeserializationError(
            f"{place}: {what} of {len(data)} bytes: {error}", remedy=f"check {what}_deserializer"
        ) from error
