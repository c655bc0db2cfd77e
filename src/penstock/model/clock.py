"""Time, as an argument. Wall time is for record timestamps and retention; all waiting is monotonic."""

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970. It may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start. It never goes back."""
