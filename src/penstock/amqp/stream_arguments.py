"""Ages and start positions of streams, as arguments spell them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.wire.amqp.tables import FieldValue

_AGE: Final = re.compile(r"([0-9]{1,12})([YMDhms])", re.ASCII)
_SECOND_MS: Final = 1000
_UNITS_MS: Final = {
    "s": _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "h": 3600 * _SECOND_MS,
    "D": 24 * 3600 * _SECOND_MS,
    "M": 30 * 24 * 3600 * _SECOND_MS,
    "Y": 365 * 24 * 3600 * _SECOND_MS,
}


def parse_max_age(text: str) -> int | None:
    """Return the milliseconds of an age such as `7D` or `1h`, or `None` if it is malformed."""
    found = _AGE.fullmatch(text)
    if found is None or not int(found[1]):
        return None
    return int(found[1]) * _UNITS_MS[found[2]]


def is_max_age(value: Any) -> bool:
    return isinstance(value, str) and parse_max_age(value) is not None


class StreamStart(StrEnum):
    FIRST = "first"
    LAST = "last"
    NEXT = "next"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    INTERVAL = "interval"  # so long before now


class StreamOffset(NamedTuple):
    """Where a consumer of a stream begins. `value` is an offset, or milliseconds."""

    start: StreamStart
    value: int = 0


def parse_stream_offset(value: FieldValue | None) -> StreamOffset | None:
    """Return what the consumer argument `x-stream-offset` means, or `None` if it is malformed."""
    if value is None:
        return StreamOffset(StreamStart.NEXT)
    letter, content = value
    if letter == "T":
        return StreamOffset(StreamStart.TIMESTAMP, content * _SECOND_MS)
    if letter in "bBsuIil":
        return StreamOffset(StreamStart.OFFSET, content) if content >= 0 else None
    if letter != "S":
        return None
    if content in ("first", "last", "next"):
        return StreamOffset(StreamStart(content))
    age_ms = parse_max_age(content)
    return StreamOffset(StreamStart.INTERVAL, age_ms) if age_ms is not None else None
