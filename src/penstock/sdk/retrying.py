"""What to do about a message whose handler failed: again after a delay, later by a retry topic, aside, or stop. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.sdk import checks
from penstock.sdk.errors import ConfigurationError

Backoff = float | Sequence[float] | Callable[[int], float]

MAX_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RetryTopics:
    """A topic for each delay: `orders.retry.1` after 10 s, `orders.retry.2` after a minute. Order is given up for progress.

    >>> RetryTopics(delays=(10, 60)).names("orders")
    ['orders.retry.1', 'orders.retry.2']
    """

    delays: tuple[float, ...]
    suffix: str = ".retry."

    def name(self, topic: str, step: int) -> str:
        return f"{topic}{self.suffix}{step + 1}"

    def names(self, topic: str) -> list[str]:
        return [self.name(topic, step) for step in range(len(self.delays))]


def retry_topics_of(given: RetryTopics | Sequence[float] | None) -> RetryTopics | None:
    """Delays alone are enough.

    >>> retry_topics_of([10, 60])
    RetryTopics(delays=(10, 60), suffix='.retry.')
    """
    if given is None:
        return None
    delays: Any = given.delays if isinstance(given, RetryTopics) else given
    if isinstance(delays, str) or not isinstance(delays, Sequence) or not delays:
        raise ConfigurationError(
            f"retry_topics={given!r}", remedy="give seconds of delay, such as (10, 60)"
        )
    for delay in delays:
        checks.number("a delay of retry_topics", delay, at_least=0)
    return given if isinstance(given, RetryTopics) else RetryTopics(tuple(given))


def check_backoff(backoff: Any) -> None:
    if callable(backoff):
        return
    is_sequence = isinstance(backoff, Sequence) and not isinstance(backoff, str)
    for seconds in backoff if is_sequence else [backoff]:
        checks.number("backoff", seconds, at_least=0)


@dataclass(frozen=True, slots=True)
class Again:
    """On the same worker, so that its order is kept."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Later:
    """Through retry topic number `step`."""

    step: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Aside:
    """To the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nowhere to put it: nothing behind it may be committed."""


Decision = Again | Later | Aside | Stop


@dataclass(frozen=True, slots=True)
class Policy:
    """`retries` at once, with `backoff` between them; then the retry topics; then the dead-letter topic."""

    retries: int
    backoff: Backoff
    retry_topics: RetryTopics | None
    has_dead_letter: bool

    def decide(self, error: BaseException, attempt: int, step: int) -> Decision:
        """After attempt number `attempt` (from 1) of a message that went through `step` retry topics so far."""
        can_help = bool(getattr(error, "retriable", True))
        if can_help and attempt <= self.retries:
            return Again(delay_s(self.backoff, attempt))
        if can_help and self.retry_topics is not None and step < len(self.retry_topics.delays):
            return Later(step, self.retry_topics.delays[step])
        return Aside() if self.has_dead_letter else Stop()


def delay_s(backoff: Backoff, attempt: int) -> float:
    """Seconds after attempt number `attempt`: a number doubles each time, a sequence is walked and its last kept.

    >>> [delay_s(0.1, attempt) for attempt in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    >>> [delay_s((1, 5), attempt) for attempt in (1, 2, 3)]
    [1, 5, 5]
    """
    if callable(backoff):
        return max(0.0, backoff(attempt))
    if isinstance(backoff, Sequence):
        return backoff[min(attempt, len(backoff)) - 1] if backoff else 0.0
    return min(MAX_BACKOFF_S, backoff * float(2 ** min(attempt - 1, 30)))
