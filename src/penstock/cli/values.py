"""What people type for times, sizes, durations and places in a log; numbers mean what Kafka means by them.

Parsers raise ValueError with a sentence that names what was expected; the clock is an argument.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from penstock.model.units import LONG_MAX, Unit, parse_quantity

_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Start(NamedTuple):
    """The first offset that is still there."""


class End(NamedTuple):
    """One past the newest record."""


class Offset(NamedTuple):
    value: int


class Instant(NamedTuple):
    """The first record of this time or later."""

    timestamp_ms: int


Position = Start | End | Offset | Instant


def parse_duration_ms(text: str) -> int:
    """`7d`, `500ms`, or milliseconds as a bare number."""
    return _bounded(parse_quantity(text, Unit.MS), text)


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """`2026-11-15T08:00:00Z`, `-2h` (ago), `@1731657600000` (epoch ms) or `now`; no zone means UTC."""
    if text == "now":
        return now_ms
    if text.startswith("@") and _DIGITS.fullmatch(text, 1):
        return _bounded(int(text[1:]), text)
    if text.startswith("-"):
        return max(0, now_ms - _ago_ms(text))
    return _iso_ms(text)


def parse_position(text: str, *, now_ms: int) -> Position:
    """`start`, `end`, a bare integer (an offset), or any time."""
    if text.lower() in ("start", "earliest", "beginning"):
        return Start()
    if text.lower() in ("end", "latest"):
        return End()
    if _DIGITS.fullmatch(text):
        return Offset(_bounded(int(text), text))
    try:
        return Instant(parse_time_ms(text, now_ms=now_ms))
    except ValueError:
        raise ValueError(
            f"expected start, end, an offset, or a time such as 2026-11-15T08:00:00Z, -2h or "
            f"@1731657600000, not {text!r}"
        ) from None


def parse_assignment(text: str) -> tuple[str, str]:
    """`key=value`; the value may be empty and may hold further `=`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"expected key=value, not {text!r}")
    return key.strip(), value


def config_value(key: str, text: str) -> str:
    """A setting as Kafka takes it: `7d` for a key in ms and `1GB` for one in bytes become numbers.

    What is no amount is left as it is: the broker owns the rules and says what it expects.
    """
    unit = Unit.of(key)
    if unit is Unit.NONE:
        return text
    try:
        return str(parse_quantity(text, unit))
    except ValueError:
        return text


def format_size(size_bytes: int) -> str:
    """Short, for people: `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; `-` for Kafka's "no timestamp" (-1)."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"@{timestamp_ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ago_ms(text: str) -> int:
    if _DIGITS.fullmatch(text, 1):
        raise ValueError(
            f"expected a time ago with its unit, such as -30s, -2h or -7d, not {text!r}"
        )
    return parse_duration_ms(text[1:])


def _bounded(value: int, text: str) -> int:
    if not 0 <= value <= LONG_MAX:
        raise ValueError(f"{text!r} is out of range: 0 to {LONG_MAX}")
    return value


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expected a time such as 2026-11-15T08:00:00Z, -2h or @1731657600000, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    timestamp_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if timestamp_ms < 0:
        raise ValueError(f"{text!r} is before 1970")
    return timestamp_ms
