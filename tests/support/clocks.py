"""A clock that moves when a test says so."""


class ManualClock:
    def __init__(self, monotonic_ms: int = 1_000, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def set_wall(self, wall_ms: int) -> None:
        """As an operator, or a time server, may at any moment."""
        self._wall_ms = wall_ms

    def advance(self, elapsed_ms: int) -> None:
        self._monotonic_ms += elapsed_ms
        self._wall_ms += elapsed_ms
