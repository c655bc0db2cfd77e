"""The headers that tell a consumer how often a message was delivered before."""

from __future__ import annotations

from typing import Final

from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.properties import check_properties, decode_properties, encode_properties

DELIVERY_COUNT: Final = "x-delivery-count"
ACQUIRED_COUNT: Final = "x-acquired-count"


def with_delivery_counts(properties: bytes, *, failed: int, acquired: int) -> bytes:
    """Return the properties with both counts. They are left out where the headers have no room."""
    decoded = decode_properties(properties, 0, len(properties))
    counts = {DELIVERY_COUNT: ("l", failed), ACQUIRED_COUNT: ("l", acquired)}
    decoded.headers = {**(decoded.headers or {}), **counts}
    encoded = encode_properties(decoded)
    try:
        check_properties(encoded, 0, len(encoded))
    except AmqpError:
        return properties
    return encoded
