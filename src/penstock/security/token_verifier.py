"""Verifies tokens with the keys in force, and asks for a fetch when a token has an unknown key."""

from collections.abc import Callable

from penstock.security.key_refresh import KeyRefresh
from penstock.security.tokens import (
    AccessToken,
    IsSignedBy,
    TokenSettings,
    UnknownKey,
    verify_token,
)


class TokenVerifier:
    """What OAUTHBEARER and HTTP bearer tokens share. Owned by one event loop.

    A token with an unknown key is refused at once, as in Kafka: the client retries, and by then
    the new key is there.
    """

    def __init__(
        self,
        settings: TokenSettings,
        refresh: KeyRefresh,
        is_signed_by: IsSignedBy,  # signatures.is_signed_by
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._refresh = refresh
        self._is_signed_by = is_signed_by
        self._now_ms = now_ms

    def verify(self, token: bytes) -> AccessToken:
        now_ms = self._now_ms()
        keys = self._refresh.keys(now_ms)
        try:
            return verify_token(token, keys, self._is_signed_by, self._settings, now_ms)
        except UnknownKey:
            self._refresh.note_unknown_key(now_ms)
            raise
