"""Quantities as people write them: `64KiB`, `1GB`, `7d`, `500ms`, or a plain number in the setting's own unit."""

from enum import Enum
from typing import Final

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308

_SIZES: Final = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DURATIONS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class Unit(Enum):
    """What a number counts. The last word of a setting's name says it."""

    NONE = ""
    BYTES = "bytes"
    MS = "ms"
    SECONDS = "seconds"
    MINUTES = "minutes"
    HOURS = "hours"

    @classmethod
    def of(cls, name: str) -> "Unit":
        if name.endswith(".bytes.per.second") or name.endswith(".buffer.size"):
            return cls.BYTES
        return _BY_LAST_WORD.get(name.rsplit(".", 1)[-1], cls.NONE)


_BY_LAST_WORD: Final = {unit.value: unit for unit in Unit if unit.value}
_MS_PER: Final = {Unit.MS: 1, Unit.SECONDS: 1000, Unit.MINUTES: 60_000, Unit.HOURS: 3_600_000}


def parse_quantity(text: str, unit: Unit) -> int:
    """The number that `text` means in `unit`. A ValueError says what would be understood."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if digits.isdecimal() and digits.isascii():
        return int(text)
    number, suffix = _split(digits)
    factors = _factors(unit)
    if not number or suffix not in factors or text[:1] in ("-", "+"):
        raise ValueError(_HELP.get(unit, f"give a number of {unit.value} or a duration such as 7d"))
    scaled = int(number) * factors[suffix]
    per_unit = _MS_PER.get(unit, 1)
    if scaled % per_unit:
        raise ValueError(f"it is not a whole number of {unit.value}")
    return scaled // per_unit


_HELP: Final = {
    Unit.NONE: "give a whole number",
    Unit.BYTES: "give a number of bytes or a size such as 64KiB or 1GB",
}


def _factors(unit: Unit) -> dict[str, int]:
    if unit is Unit.NONE:
        return {}
    return _SIZES if unit is Unit.BYTES else _DURATIONS_MS


def _split(text: str) -> tuple[str, str]:
    """`64 KiB` -> (`64`, `kib`)."""
    end = 0
    while end < len(text) and text[end] in "0123456789":
        end += 1
    return text[:end], text[end:].strip().lower()
