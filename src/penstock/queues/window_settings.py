"""The settings of a window. A share group takes them from its group configs, an AMQP queue from its arguments."""

from dataclasses import dataclass
from typing import Final

from penstock.queues.record_states import AckType

MAX_COUNT: Final = 255  # counts are bytes that saturate
NEVER_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """How long a released record waits: `min_ms` times its count, at most `max_ms`."""

    min_ms: int
    max_ms: int
    ack_types: frozenset[AckType] = frozenset({AckType.RELEASE, AckType.FAIL})

    def __post_init__(self) -> None:
        if not 0 < self.min_ms <= self.max_ms:
            raise ValueError(
                f"retry delay from {self.min_ms} to {self.max_ms} ms: 0 < min <= max is required"
            )

    def delay_ms(self, count: int) -> int:
        return min(self.min_ms * max(1, count), self.max_ms)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    lock_duration_ms: int | None = 30_000  # None: locks never expire
    delivery_limit: int | None = 5
    counts_failures: bool = False  # the limit and the persisted count: failures, or acquisitions
    has_dead_letters: bool = False  # rejected records become ARCHIVING before ARCHIVED
    max_locks: int = 2000
    max_locks_per_owner: int | None = None
    max_window_offsets: int = 1_000_000  # in pages; a page that is wholly settled does not count
    max_uncommitted_offsets: int = 10_000  # changed, but not in a committed update
    max_delayed_intervals: int = 65_536
    retry_delay: RetryDelay | None = None

    def __post_init__(self) -> None:
        limit = self.delivery_limit
        if limit is not None and not 1 <= limit <= MAX_COUNT:
            raise ValueError(f"delivery limit {limit}: 1 to {MAX_COUNT} are allowed")
        positive = {
            "lock duration": self.lock_duration_ms,
            "max locks": self.max_locks,
            "max locks per owner": self.max_locks_per_owner,
            "max window offsets": self.max_window_offsets,
            "max uncommitted offsets": self.max_uncommitted_offsets,
            "max delayed intervals": self.max_delayed_intervals,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: at least 1 is required")
