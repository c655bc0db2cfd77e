"""A message as routing sees it. Its properties are decoded only when an exchange needs them."""

from __future__ import annotations

from typing import Final

from penstock.amqp.failures import TYPE_NAMES, precondition_failed
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.tables import FieldTable

CC, BCC = "CC", "BCC"
_CC_NAME: Final = b"\x02CC"  # as a table names it; cheap to search for, rarely there
_BCC_NAME: Final = b"\x03BCC"
_PRIORITY_OR_EXPIRATION: Final = 1 << 11 | 1 << 8  # among the flags of the properties
_LONG_NUMBERS: Final = frozenset("bBsuIil")
_MAX_DELAY_MS: Final = (1 << 63) - 1


class RoutedMessage:
    """An exchange name, routing keys and properties. `random_number` chooses among the bindings of
    an `x-random` exchange."""

    __slots__ = ("_properties", "exchange", "properties_bytes", "random_number", "routing_key")

    def __init__(
        self, exchange: str, routing_key: str, properties: bytes, random_number: int = 0
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties_bytes = properties
        self.random_number = random_number
        self._properties: Properties | None = None

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            data = self.properties_bytes
            self._properties = decode_properties(data, 0, len(data))
        return self._properties

    @property
    def headers(self) -> FieldTable:
        return self.properties.headers or {}

    @property
    def has_extra_keys(self) -> bool:
        """True if the properties may hold a CC or BCC header."""
        return _CC_NAME in self.properties_bytes or _BCC_NAME in self.properties_bytes

    def routing_keys(self) -> list[str]:
        """Return the routing key, then the keys of the headers CC and BCC."""
        if not self.has_extra_keys:
            return [self.routing_key]
        headers = self.headers
        return [self.routing_key, *extra_keys(headers, CC), *extra_keys(headers, BCC)]

    def visible_routing_keys(self) -> list[str]:
        """Return the routing keys without those of the BCC header."""
        if not self.has_extra_keys:
            return [self.routing_key]
        return [self.routing_key, *extra_keys(self.headers, CC)]

    def priority_and_expiration(self) -> tuple[int | None, str | None]:
        """Return both properties. They are decoded only if one of them is there."""
        if not (self.properties_bytes[0] << 8) & _PRIORITY_OR_EXPIRATION:
            return None, None
        return self.properties.priority, self.properties.expiration

    def without_bcc(self) -> bytes:
        """Return the properties that receivers see: without the BCC header."""
        if _BCC_NAME not in self.properties_bytes or BCC not in self.headers:
            return self.properties_bytes
        properties = decode_properties(self.properties_bytes, 0, len(self.properties_bytes))
        assert properties.headers is not None
        del properties.headers[BCC]
        return encode_properties(properties)

    def delay_ms(self) -> int:
        """Return the header `x-delay`; 0 when it is absent, not positive or not a number."""
        if b"\x07x-delay" not in self.properties_bytes:
            return 0
        letter, value = self.headers.get("x-delay", ("V", None))
        if letter == "S" and value.isascii() and value.isdigit() and len(value) < 20:
            delay_ms = int(value)
        else:
            delay_ms = value if letter in _LONG_NUMBERS else 0
        return min(max(0, delay_ms), _MAX_DELAY_MS)


def extra_keys(headers: FieldTable, name: str) -> list[str]:
    """Return the routing keys in the header CC or BCC, which must be an array."""
    if name not in headers:
        return []
    letter, content = headers[name]
    if letter != "A":
        raise _unacceptable(name, letter)
    return [value for kind, value in content if kind == "S"]


def _unacceptable(name: str, letter: str) -> AmqpError:
    kind = TYPE_NAMES[letter]
    return precondition_failed(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
