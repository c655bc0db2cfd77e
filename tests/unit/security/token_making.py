"""Tokens and key sets for tests, written without the code under test."""

import json
from base64 import urlsafe_b64encode
from typing import Any, Final

NOW_S: Final = 1_800_000_000
ISSUER: Final = "https://issuer.example"
CLAIMS: Final[dict[str, Any]] = {
    "iss": ISSUER,
    "aud": "penstock",
    "sub": "alice",
    "iat": NOW_S - 10,
    "exp": NOW_S + 600,
}
ED25519_JWK: Final[dict[str, Any]] = {  # RFC 8037, A.2
    "kty": "OKP",
    "crv": "Ed25519",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
P256_JWK: Final[dict[str, Any]] = {  # RFC 7515, A.3
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
P521_JWK: Final[dict[str, Any]] = {  # RFC 7515, A.4
    "kty": "EC",
    "crv": "P-521",
    "x": "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
    "y": "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2",
}
RSA_JWK: Final[dict[str, Any]] = {  # RFC 7520, 3.3
    "kty": "RSA",
    "n": "n4EPtAOCc9AlkeQHPzHStgAbgs7bTZLwUBZdR8_KuKPEHLd4rHVTeT-O-XV2jRojdNhxJWTDvNd7nqQ0VEiZQHz_"
    "AJmSCpMaJMRBSFKrKb2wqVwGU_NsYOYL-QtiWN2lbzcEe6XC0dApr5ydQLrHqkHHig3RBordaZ6Aj-oBHqFEHYpPe7"
    "Tpe-OfVfHd1E6cS6M1FZcD1NNLYD5lFHpPI9bTwJlsde3uhGqC0ZCuEHg8lhzwOHrtIQbS0FVbb9k3-tVTU4fg_3L"
    "_vniUFAKwuCLqKnS2BYwdq_mzSnbLY7h_qixoR7jig3__kRhuaxwUkRz5iaiQkqgc5gHdrNP5zw",
    "e": "AQAB",
}


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def token(
    claims: dict[str, Any] | bytes = CLAIMS,
    header: dict[str, Any] | bytes | None = None,
    signature: bytes = b"good",
) -> bytes:
    """Return a compact token. `b"good"` is the signature that `accept_good` accepts."""
    header = {"alg": "EdDSA", "kid": "k1"} if header is None else header
    parts = [
        part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)
    ]
    return ".".join(encoded(part) for part in (*parts, signature)).encode()


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def accept_good(_key: object, _algorithm: str, _data: bytes, signature: bytes) -> bool:
    return signature == b"good"
