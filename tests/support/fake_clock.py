"""A wall clock that jumps when a test says so, for a broker that runs with it preloaded. Monotonic time goes on as it does."""

import struct
from pathlib import Path

from tests.support.preloaded import build


class FakeClock:
    """`variables` are for the broker's environment."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "clock"
        self._path.write_bytes(struct.pack("q", 0))
        self.variables = {
            "LD_PRELOAD": str(build("fake_clock")),
            "CLOCK_OFFSET": str(self._path),
        }

    def jump(self, seconds: int) -> None:
        """To so much before or after the time that everybody else has; at once."""
        with open(self._path, "r+b", buffering=0) as file:  # in place: brokers have it mapped
            file.write(struct.pack("q", seconds))
