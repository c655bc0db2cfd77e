"""Amounts as people read them: sizes, durations and shares."""

from typing import Final

_SECONDS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def size(size_bytes: float) -> str:
    """`1.5 GiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(duration_ms: float) -> str:
    """`2.5 h`."""
    seconds = duration_ms / 1000
    for unit, length in _SECONDS:
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{duration_ms:.0f} ms"


def percent(share: float) -> str:
    """`84 %`; below 1 % with two digits."""
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2f} %"
