"""What a connection asks its transport to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Send:
    """Write these pieces, joined."""

    pieces: list[bytes | memoryview]

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


@dataclass(frozen=True, slots=True)
class SetReading:
    """Read from the socket, or stop reading until told to read again."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket once everything is sent. A delay slows down clients that guess passwords."""

    reason: str  # for the log
    delay_ms: int = 0


Effect: TypeAlias = Send | SetReading | Close
