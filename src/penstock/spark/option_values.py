"""Texts to values. A ValueError says what was expected; the caller knows which option it was."""

import re
from collections.abc import Callable
from typing import Final

_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def either(no: str, yes: str) -> Callable[[str], bool]:
    """Which of two words it is, in any case."""

    def parse(text: str) -> bool:
        if text.lower() not in (no, yes):
            raise ValueError(f"expected {yes} or {no}, not {text!r}")
        return text.lower() == yes

    return parse


boolean: Final = either("false", "true")


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected an integer, not {text!r}") from None


def positive(text: str) -> int:
    if (number := integer(text)) <= 0:
        raise ValueError(f"must be positive, not {text}")
    return number


def natural(text: str) -> int:
    if (number := integer(text)) < 0:
        raise ValueError(f"must not be negative, not {text}")
    return number


def buffer_bytes(text: str) -> int | None:
    """-1 leaves it to the system."""
    return None if integer(text) == -1 else positive(text)


def ttl(text: str) -> int:
    return -1 if integer(text) == -1 else positive(text)


def duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError(f"expected a duration such as 500ms, 30s, 15m or 1h, not {text!r}")
    return round(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]
