"""Compact JWS tokens (RFC 7515): bytes to a header, claims and what the signature covers.

Nothing here trusts the token. Parsing is strict, because two readings of one token are how
verifiers are tricked: three parts, base64url without padding, JSON objects without duplicate names.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NamedTuple, NoReturn

MAX_TOKEN_BYTES: Final = 16_384
_BASE64URL: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class InvalidToken(ValueError):
    """The token is refused. The text is for the broker's log and holds no part of the token."""


class Jws(NamedTuple):
    algorithm: str
    key_id: str | None
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes

    def __repr__(self) -> str:
        return f"Jws(algorithm={self.algorithm!r}, key_id={self.key_id!r})"


def parse_jws(token: bytes) -> Jws:
    """Parse `header.claims.signature`. Raise InvalidToken unless the form is exactly that."""
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidToken(f"token of {len(token)} bytes; the limit is {MAX_TOKEN_BYTES}")
    parts = token.split(b".")
    if len(parts) != 3:
        raise InvalidToken(f"token of {len(parts)} parts instead of 3")
    header = strict_object(strict_base64url(parts[0]), "header")
    if "crit" in header or "b64" in header:
        raise InvalidToken("the header has critical extensions")  # RFC 7515, section 4.1.11
    # jku, jwk, x5u and x5c name keys chosen by the sender: they are never looked at.
    return Jws(
        algorithm=_text(header.get("alg"), "alg"),
        key_id=_text(header["kid"], "kid") if "kid" in header else None,
        claims=strict_object(strict_base64url(parts[1]), "claims"),
        signing_input=token[: len(parts[0]) + 1 + len(parts[1])],
        signature=strict_base64url(parts[2]),
    )


def strict_base64url(data: bytes) -> bytes:
    """Decode base64url in its only canonical form: no padding, no other characters, no spare bits."""
    if not data or not _BASE64URL.issuperset(data) or len(data) % 4 == 1:
        raise InvalidToken("a part is not base64url")
    decoded = urlsafe_b64decode(data + b"=" * (-len(data) % 4))
    if urlsafe_b64encode(decoded).rstrip(b"=") != data:
        raise InvalidToken("a part is not canonical base64url")
    return decoded


def strict_object(data: bytes, what: str) -> dict[str, Any]:
    """Decode a JSON object. Duplicate names, NaN and other values at the top are errors."""
    try:
        decoded = json.loads(
            data.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        raise InvalidToken(f"the {what} is no JSON object with distinct names") from None
    if not isinstance(decoded, dict):
        raise InvalidToken(f"the {what} is no JSON object")
    return decoded


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate names")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidToken(f"{name} in the header is no text")
    return value
