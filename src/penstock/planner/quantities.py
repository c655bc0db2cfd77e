"""Parse and format sizes, rates, durations and shares. SI units: 1 KB is 1,000 bytes.

Parsers take the text of a flag or a value of a TOML file, and raise ValueError with what was expected.
Every number is finite: NaN, infinity and numbers too large for a float are errors.
"""

import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

Parse = Callable[[object], float]

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
MONTH_S: Final = 730 * HOUR_S

_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SIZES: Final = {
    "": 1.0,
    **{f"{prefix}b": factor for prefix, factor in _SCALES.items()},
    "pb": 1e15,
    "eb": 1e18,
    **{f"{prefix}ib": 1024.0**power for power, prefix in enumerate("kmgtp", 1)},
}
_BITS: Final = {f"{prefix}bit": factor / 8 for prefix, factor in _SCALES.items()}
_COUNTS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9, "t": 1e12}
_PERIODS_S: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), float(HOUR_S)),
    **dict.fromkeys(("d", "day"), float(DAY_S)),
    "week": 7.0 * DAY_S,
    "month": float(MONTH_S),
}
_DURATIONS_S: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": float(HOUR_S),
    "d": float(DAY_S),
    "w": 7.0 * DAY_S,
    "y": 365.0 * DAY_S,
}
_NUMBER: Final = re.compile(
    r"([+-]?(?:\d[\d_,]*)?\.?\d*(?:[eE][+-]?\d+)?)\s*(.*)", re.ASCII | re.DOTALL
)
_SIZE_PREFIXES: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


def parse_number(value: object) -> float:
    """Parse a plain number such as `3`, `2.5` or `1_000`."""
    return _scaled(value, {"": 1.0}, "a number such as 3 or 2.5")


def parse_count(value: object) -> float:
    """Parse a whole number, with or without `k`, `M` or `B` (a thousand million)."""
    expected = "a whole number such as 12 or 10k"
    number = _scaled(value, _COUNTS, expected)
    if number != int(number):
        raise ValueError(_expected(expected, value))
    return number


def parse_size(value: object) -> float:
    """Parse bytes: `1KB`, `64KiB`, `7.5TB`, or a plain number."""
    return _scaled(value, _SIZES, "a size such as 1KB, 64KiB or 7.5TB")


def parse_duration(value: object) -> float:
    """Parse seconds: `7d`, `60s`, `500ms`. A duration needs its unit."""
    return _scaled(value, _DURATIONS_S, "a duration with its unit, such as 7d, 12h or 60s")


def parse_message_rate(value: object) -> float:
    """Parse messages a second: `5000`, `1M/s`, `1B/day`."""
    return _rate(value, _COUNTS, "messages a second, such as 5000, 1M/s or 1B/day")


def parse_byte_rate(value: object) -> float:
    """Parse bytes a second: `500MB/s`, `10Gbit/s`."""
    return _rate(value, _SIZES | _BITS, "bytes a second, such as 500MB/s or 10Gbit/s")


def parse_share(value: object) -> float:
    """Parse a part of one: `70%` or `0.7`."""
    return _scaled(value, {"": 1.0, "%": 0.01}, "a share such as 70% or 0.7")


def parse_ratio(value: object) -> float:
    """Parse a ratio: `3` or `3:1`."""
    text = str(value).strip()
    return _scaled(
        re.sub(r"\s*:\s*1$", "", text) if isinstance(value, str) else value,
        {"": 1.0},
        "a ratio such as 3 or 3:1",
    )


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return ` (did you mean rate?)`, or nothing when no known name is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def _rate(value: object, units: Mapping[str, float], expected: str) -> float:
    if not isinstance(value, str) or "/" not in value:
        return _scaled(value, units, expected)
    amount, _, period = value.rpartition("/")
    period_s = _PERIODS_S.get(period.strip().lower())
    if period_s is None:
        raise ValueError(_expected(expected, value))
    return _scaled(amount, units, expected, shown=value) / period_s


def _scaled(
    value: object, units: Mapping[str, float], expected: str, *, shown: object = None
) -> float:
    """Multiply the number by its unit. Units ignore case: `1kb` is `1KB`."""
    shown = value if shown is None else shown
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(_expected(expected, shown))
    number, unit = _split(value)
    factor = units.get(unit.lower())
    if number is None or factor is None:
        raise ValueError(_expected(expected, shown))
    result = number * factor
    if not math.isfinite(result):
        raise ValueError(f"{_shortened(shown)} is not a finite number")
    return result


def _split(value: float | str) -> tuple[float | None, str]:
    if not isinstance(value, str):
        try:
            return float(value), ""
        except OverflowError:  # an integer of TOML with more than 308 digits
            return math.inf, ""
    text = value.strip()
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return math.nan, ""
    match = _NUMBER.fullmatch(text)
    assert match is not None, "every part of the expression may be empty"
    digits = match[1].replace(",", "").replace("_", "")
    try:
        return float(digits), match[2].strip()
    except ValueError:
        return None, ""


def _expected(expected: str, value: object) -> str:
    return f"expected {expected}, not {_shortened(value)}"


def _shortened(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer with thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."


def format_bytes(size_bytes: float) -> str:
    """Format with three significant digits and an SI unit: `1.85 PB`, `605 TB`, `64 B`."""
    for factor, prefix in _SIZE_PREFIXES:
        if size_bytes >= factor * 0.9995:
            return f"{_digits(size_bytes / factor)} {prefix}B"
    return f"{_digits(size_bytes)} B"


def format_byte_rate(bytes_s: float) -> str:
    return f"{format_bytes(bytes_s)}/s"


def format_count(number: float) -> str:
    """Format all digits below ten thousand, else three: `9,999`, `12.5 k`, `1.01 M`."""
    for factor, suffix in ((1e12, " T"), (1e9, " bn"), (1e6, " M"), (1e3, " k")):
        if number >= max(factor * 0.9995, 1e4):
            return _digits(number / factor) + suffix
    return _digits(number)


def format_share(share: float) -> str:
    percent = share * 100
    if 0 < percent < 1:
        return "< 1%"
    return f"{percent:,.0f}%"


def format_duration(seconds: float) -> str:
    """Format in the largest unit that it fills: `7 d`, `1.5 h`, `30 s`."""
    for factor, unit in ((365 * DAY_S, "y"), (DAY_S, "d"), (HOUR_S, "h"), (60, "min"), (1, "s")):
        if seconds >= factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds)} s"


def format_money(amount: float, currency: str) -> str:
    """Format whole units above a thousand; small amounts keep three significant digits."""
    if amount == 0 or abs(amount) >= 1000:
        return f"{currency}{amount:,.0f}"
    if abs(amount) >= 1:
        return f"{currency}{amount:,.2f}"
    decimals = min(9, 2 - math.floor(math.log10(abs(amount))))
    return f"{currency}{amount:.{decimals}f}"


def _digits(number: float) -> str:
    """Format three significant digits, all digits of large numbers, no trailing zeros."""
    if number == 0 or abs(number) >= 99.95:
        return f"{number:,.0f}"
    decimals = min(6, max(0, 2 - math.floor(math.log10(abs(number)))))
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
