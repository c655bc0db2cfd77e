"""The time by which records expire: the wall clock, but a jump forward counts only after a while.

Deleting is final, and clocks are set wrong by operators, time servers and virtual machines. So after a jump
expiry goes on by the monotonic clock for an hour, in which the clock can be put right. A jump back only
delays expiry, and is followed at once.
"""

import logging
from typing import Final

from penstock.model.clock import Clock

_log = logging.getLogger(__name__)

_TOLERANCE_MS: Final = 60_000  # beyond what a time server corrects between two looks
HOLD_MS: Final = 3_600_000  # a wrong clock can be put right in that time


class SteadyClock:
    """Look at it often: a jump is noticed, and the hour begins, with the next look."""

    __slots__ = ("_clock", "_held_offset_ms", "_held_until_ms", "_offset_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.wall_ms() - clock.monotonic_ms()  # as far as it is believed
        self._held_until_ms: int | None = None  # by the monotonic clock
        self._held_offset_ms = 0  # of the jump that began the hour: another jump has its own

    def now_ms(self) -> int:
        """Milliseconds since 1970, for comparing with timestamps of records."""
        now_ms = self._clock.monotonic_ms()
        offset_ms = self._clock.wall_ms() - now_ms
        ahead_ms = offset_ms - self._offset_ms
        if ahead_ms <= _TOLERANCE_MS:
            self._offset_ms = offset_ms
            if self._held_until_ms is not None:
                self._held_until_ms = None
                _log.info("clock-set-back expiry=%s", "by-the-clock-again")
        elif self._held_until_ms is None or offset_ms - self._held_offset_ms > _TOLERANCE_MS:
            self._held_until_ms, self._held_offset_ms = now_ms + HOLD_MS, offset_ms
            _log.warning(
                "clock-jumped seconds=%d expiry=%s remedy=%s",
                ahead_ms // 1000,
                "as-before-for-1h",
                "set the clock right, or records that are too old by it are deleted then",
            )
        elif now_ms >= self._held_until_ms:
            self._offset_ms = offset_ms
            self._held_until_ms = None
            _log.warning("clock-believed seconds=%d", ahead_ms // 1000)
        return now_ms + self._offset_ms
