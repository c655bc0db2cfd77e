"""What a queue with a maximum length does when it is full. Only ready messages count."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Overflow(StrEnum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class LengthLimits(NamedTuple):
    max_length: int | None = None
    max_bytes: int | None = None  # of bodies
    overflow: Overflow = Overflow.DROP_HEAD

    def is_over(self, ready: int, ready_bytes: int) -> bool:
        return (self.max_length is not None and ready > self.max_length) or (
            self.max_bytes is not None and ready_bytes > self.max_bytes
        )

    def rejects(self, ready: int, ready_bytes: int, body_bytes: int) -> bool:
        """Return whether a queue with these ready messages must reject a publish."""
        if self.overflow is Overflow.DROP_HEAD:
            return False
        return self.is_over(ready + 1, ready_bytes + body_bytes)

    def heads_to_drop(self, ready: int, ready_bytes: int, head_bytes: Iterable[int]) -> int:
        """Return how many messages to drop at the head. `head_bytes` are the body sizes from there."""
        if self.overflow is not Overflow.DROP_HEAD:
            return 0
        dropped = 0
        for size in head_bytes:
            if not self.is_over(ready, ready_bytes):
                break
            ready -= 1
            ready_bytes -= size
            dropped += 1
        return dropped
