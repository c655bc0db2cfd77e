"""A rate that is held on average: what was sent beyond it is made up for by a pause. Pure."""

from typing import Final

NO_LIMIT: Final = (1 << 63) - 1
_BURST_S: Final = 0.25


class Throttle:
    """Bytes per second. May be in debt by one answer, and is closed until the debt is paid."""

    __slots__ = ("_bytes", "_rate", "_since_ms")

    def __init__(self) -> None:
        self._rate = NO_LIMIT
        self._bytes = 0.0  # that may go at once; below 0: owed
        self._since_ms = 0

    def set_rate(self, rate: int, now_ms: int) -> None:
        if rate != self._rate:
            self._rate, self._bytes, self._since_ms = rate, 0.0, now_ms

    def pause_ms(self, now_ms: int) -> int:
        """Until something may go again; 0: now."""
        if self._rate == NO_LIMIT:
            return 0
        self._accrue(now_ms)
        return 0 if self._bytes >= 0 else int(-self._bytes / max(self._rate, 1) * 1000) + 1

    def spent(self, size_bytes: int, now_ms: int) -> None:
        if self._rate != NO_LIMIT:
            self._accrue(now_ms)
            self._bytes -= size_bytes

    def _accrue(self, now_ms: int) -> None:
        gained = self._rate * (now_ms - self._since_ms) / 1000
        self._bytes = min(self._bytes + gained, self._rate * _BURST_S)
        self._since_ms = now_ms
