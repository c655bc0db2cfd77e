"""Envelope (58): a forwarded admin request with its original principal and address."""

from __future__ import annotations

from penstock.wire.fields import binary, int16
from penstock.wire.schema import Message


class EnvelopeRequest(Message, api_key=58, versions="0", flexible_from=0):
    request_data: bytes = binary()
    request_principal: bytes | None = binary(nullable="0+", default=b"")
    client_host_address: bytes = binary()


class EnvelopeResponse(Message, api_key=58, versions="0", flexible_from=0):
    response_data: bytes | None = binary(nullable="0+")
    error_code: int = int16()
