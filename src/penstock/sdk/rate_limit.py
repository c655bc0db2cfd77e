"""A token bucket: how long to wait so that a rate is kept on average, with short bursts allowed. Pure: time is an argument."""

from penstock.sdk import checks
from penstock.sdk.errors import ConfigurationError


class TokenBucket:
    """At most `rate` takings a second over any long stretch, and at most `burst` at once. Not thread-safe.

    >>> bucket = TokenBucket(rate=10, burst=1)
    >>> bucket.take(now_s=0.0), bucket.take(now_s=0.0), bucket.take(now_s=0.0)
    (0.0, 0.1, 0.2)
    """

    def __init__(self, rate: float, burst: float | None = None) -> None:
        if checks.number("rate_limit", rate, at_least=0) == 0:
            raise ConfigurationError(
                "rate_limit=0", remedy="give messages a second, above 0, or None"
            )
        self._rate = rate
        self._burst = max(1.0, rate / 10 if burst is None else burst)
        self._tokens = self._burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> float:
        """Takes one token, on credit if there is none: the seconds until it is there."""
        if self._at_s is not None:
            earned = max(0.0, now_s - self._at_s) * self._rate
            self._tokens = min(self._burst, self._tokens + earned)
        self._at_s = now_s if self._at_s is None else max(self._at_s, now_s)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)
