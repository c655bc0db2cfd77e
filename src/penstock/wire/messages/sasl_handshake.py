"""SaslHandshake (17): agree on a SASL mechanism."""

from __future__ import annotations

from penstock.wire.fields import array, int16, string
from penstock.wire.schema import Message


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
