"""The machine's clock. Only a node reads it; everything else is handed a Clock or a time."""

from time import monotonic_ns, time_ns

_NS_PER_MS = 1_000_000


class SystemClock:
    """Time as the operating system tells it."""

    def wall_ms(self) -> int:
        return time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        return monotonic_ns() // _NS_PER_MS
