"""When to fetch the key set of token issuers, and which keys count meanwhile. Time is an argument.

A failed fetch keeps the last good keys for `stale_max_ms`. A token with an unknown key asks for a
fetch before its time, at most one in `unknown_key_interval_ms`: strangers cannot cause more.
"""

from dataclasses import dataclass

from penstock.security.jwks import KeySet


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    unknown_key_interval_ms: int = 10_000
    stale_max_ms: int = 24 * 3_600_000


class KeyRefresh:
    """The keys in force and the time of the next fetch. Owned by one event loop.

    The caller fetches when `due_ms` is reached: `begin`, then `succeed` or `fail`.
    """

    def __init__(self, settings: RefreshSettings, now_ms: int) -> None:
        self.due_ms = now_ms
        self.is_fetching = False
        self._settings = settings
        self._keys = KeySet()
        self._fetched_ms: int | None = None  # of the keys
        self._last_begin_ms: int | None = None
        self._failures = 0

    def keys(self, now_ms: int) -> KeySet:
        """Return the keys to verify with: none if the last good ones are too old."""
        if self._fetched_ms is None or now_ms - self._fetched_ms > self._settings.stale_max_ms:
            return KeySet()
        return self._keys

    def is_due(self, now_ms: int) -> bool:
        return not self.is_fetching and now_ms >= self.due_ms

    def begin(self, now_ms: int) -> None:
        assert not self.is_fetching, "one fetch at a time"
        self.is_fetching = True
        self._last_begin_ms = now_ms

    def succeed(self, keys: KeySet, now_ms: int) -> None:
        self.is_fetching = False
        self._failures = 0
        self.restore(keys, now_ms)
        self.due_ms = now_ms + self._settings.refresh_ms

    def fail(self, now_ms: int) -> None:
        """Retry later. The wait doubles with each failure."""
        self.is_fetching = False
        doublings = min(self._failures, 30)
        wait_ms = self._settings.retry_backoff_ms << doublings
        self._failures += 1
        self.due_ms = now_ms + min(wait_ms, self._settings.retry_backoff_max_ms)

    def restore(self, keys: KeySet, fetched_ms: int) -> None:
        """Take keys that were kept across a restart, with the time at which they were fetched."""
        self._keys = keys
        self._fetched_ms = fetched_ms

    def note_unknown_key(self, now_ms: int) -> None:
        """A token named a key that is not in the set: fetch soon, the issuer may have a new one."""
        earliest_ms = now_ms
        if self._last_begin_ms is not None:
            earliest_ms = max(now_ms, self._last_begin_ms + self._settings.unknown_key_interval_ms)
        if not self._failures:  # a failed fetch has its own time
            self.due_ms = min(self.due_ms, earliest_ms)
