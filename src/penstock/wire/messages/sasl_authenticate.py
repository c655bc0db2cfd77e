"""SaslAuthenticate (36): one round of a SASL exchange."""

from __future__ import annotations

from penstock.wire.fields import binary, int16, int64, string
from penstock.wire.schema import Message


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible_from=2):
    auth_bytes: bytes = binary()


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible_from=2):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default="")
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64("1+", ignorable=True)
