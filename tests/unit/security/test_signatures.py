"""Signatures: the RFCs' vectors, and tokens that PyJWT makes and checks."""

import json
from functools import cache
from random import Random
from typing import Any

import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from penstock.security.jwks import KeySet, parse_jwks
from penstock.security.jws import InvalidToken, strict_base64url
from penstock.security.signatures import is_signed_by
from penstock.security.tokens import AccessToken, TokenSettings, verify_token
from tests.unit.security.token_making import (
    CLAIMS,
    ED25519_JWK,
    ISSUER,
    NOW_S,
    P256_JWK,
    P521_JWK,
    RSA_JWK,
    encoded,
    jwks,
    token,
)

BILBO = "SXTigJlzIGEgZGFuZ2Vyb3VzIGJ1c2luZXNzLCBGcm9kbywgZ29pbmcgb3V0IHlvdXIgZG9vci4gWW91IHN0ZXAgb250byB0aGUgcm9hZCwgYW5kIGlmIHlvdSBkb24ndCBrZWVwIHlvdXIgZmVldCwgdGhlcmXigJlzIG5vIGtub3dpbmcgd2hlcmUgeW91IG1pZ2h0IGJlIHN3ZXB0IG9mZiB0by4"
VECTORS = {
    "RFC 7515 A.3, ES256": (
        P256_JWK,
        "eyJhbGciOiJFUzI1NiJ9",
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    ),
    "RFC 7515 A.4, ES512": (
        P521_JWK,
        "eyJhbGciOiJFUzUxMiJ9",
        "UGF5bG9hZA",
        "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
    ),
    "RFC 8037 A.4, EdDSA": (
        ED25519_JWK,
        "eyJhbGciOiJFZERTQSJ9",
        "RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    ),
    "RFC 7520 4.1, RS256": (
        RSA_JWK,
        "eyJhbGciOiJSUzI1NiIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9",
        BILBO,
        "MRjdkly7_-oTPTS3AXP41iQIGKa80A0ZmTuV5MEaHoxnW2e5CZ5NlKtainoFmKZopdHM1O2U4mwzJdQx996ivp83xuglII7PNDi84wnB-BDkoBwA78185hX-Es4JIwmDLJK3lfWRa-XtL0RnltuYv746iYTh_qHRD68BNt1uSNCrUCTJDt5aAE6x8wW1Kt9eRo4QPocSadnHXFxnt8Is9UzpERV0ePPQdLuW3IS_de3xyIrDaLGdjluPxUAhb6L2aXic1U12podGU0KLUQSE_oI-ZnmKJ3F4uOZDnd6QZWJushZ41Axf_fcIe8u9ipH84ogoree7vjbU5y18kDquDg",
    ),
    "RFC 7520 4.2, PS384": (
        RSA_JWK,
        "eyJhbGciOiJQUzM4NCIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9",
        BILBO,
        "cu22eBqkYDKgIlTpzDXGvaFfz6WGoz7fUDcfT0kkOy42miAh2qyBzk1xEsnk2IpN6-tPid6VrklHkqsGqDqHCdP6O8TTB5dDDItllVo6_1OLPpcbUrhiUSMxbbXUvdvWXzg-UD8biiReQFlfz28zGWVsdiNAUf8ZnyPEgVFn442ZdNqiVJRmBqrYRXe8P_ijQ7p8Vdz0TTrxUeT3lm8d9shnr2lfJT8ImUjvAA2Xez2Mlp8cBE5awDzT0qI0n6uiP1aCN_2_jLAeQTlqRHtfa64QQSUmFAAjVKPbByi7xho0uTOcbH510a6GYmJUAfmWjwZ6oD4ifKo8DYM-X72Eaw",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_the_rfcs(name: str) -> None:
    jwk, header, payload, signature_text = VECTORS[name]
    (key,) = parse_jwks(jwks(jwk)).keys
    algorithm = json.loads(strict_base64url(header.encode()))["alg"]
    data = f"{header}.{payload}".encode()
    signature = strict_base64url(signature_text.encode())
    assert is_signed_by(key, algorithm, data, signature)
    assert not is_signed_by(key, algorithm, data + b"x", signature)
    for position in (0, len(signature) // 2, -1):
        changed = bytearray(signature)
        changed[position] ^= 1
        assert not is_signed_by(key, algorithm, data, bytes(changed))
    for bad in (b"", signature[:-1], signature + b"\0", bytes(len(signature))):
        assert not is_signed_by(key, algorithm, data, bad)
    for other in ("HS256", "none", "RS512", "PS256", "ES384"):
        assert not is_signed_by(key, other, data, signature)


def test_a_point_that_is_not_on_the_curve_verifies_nothing() -> None:
    (key,) = parse_jwks(jwks({**P256_JWK, "y": encoded(b"\1" * 32)})).keys
    assert not is_signed_by(key, "ES256", b"data", b"\1" * 64)


# PyJWT as the judge ------------------------------------------------------------------------------

ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
]
SETTINGS = TokenSettings(ISSUER, frozenset({"penstock"}))


@cache
def private_key(algorithm: str) -> Any:
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm[0] in "RP":
        return rsa.generate_private_key(65537, 2048)
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.generate_private_key(curves[algorithm])


def public_jwk(algorithm: str) -> dict[str, Any]:
    public = private_key(algorithm).public_key()
    if algorithm == "EdDSA":
        raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return {"kty": "OKP", "crv": "Ed25519", "x": encoded(raw)}
    numbers = public.public_numbers()
    if algorithm[0] in "RP":
        n, e = numbers.n.to_bytes(256, "big"), numbers.e.to_bytes(3, "big")
        return {"kty": "RSA", "n": encoded(n), "e": encoded(e)}
    curves = {"ES256": ("P-256", 32), "ES384": ("P-384", 48), "ES512": ("P-521", 66)}
    curve, size = curves[algorithm]
    x, y = (encoded(number.to_bytes(size, "big")) for number in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": curve, "x": x, "y": y}


def key_set(algorithm: str) -> KeySet:
    return parse_jwks(jwks({**public_jwk(algorithm), "kid": "k1", "alg": algorithm}))


def verify(data: bytes, algorithm: str) -> AccessToken:
    return verify_token(data, key_set(algorithm), is_signed_by, SETTINGS, NOW_S * 1000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tokens_of_pyjwt_are_accepted(algorithm: str) -> None:
    jwt = pytest.importorskip("jwt")
    data = jwt.encode(CLAIMS, private_key(algorithm), algorithm, headers={"kid": "k1"}).encode()
    assert verify(data, algorithm).principal.name == "alice"
    other = "ES256" if algorithm != "ES256" else "EdDSA"
    with pytest.raises(InvalidToken):
        verify(data, other)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_what_we_accept_pyjwt_accepts(algorithm: str) -> None:
    """Differential test with mutated tokens. We may refuse more, never less."""
    jwt = pytest.importorskip("jwt")
    key = private_key(algorithm)
    good = jwt.encode(CLAIMS, key, algorithm, headers={"kid": "k1"}).encode()
    random = Random(algorithm)
    accepted = 0
    for _ in range(300):
        changed = _mutated(good, random)
        try:
            verify(changed, algorithm)
        except InvalidToken:
            continue
        accepted += 1
        options = {"verify_exp": False, "verify_iat": False}
        claims = jwt.decode(
            changed, key.public_key(), [algorithm], options, audience="penstock", issuer=ISSUER
        )
        assert claims == CLAIMS
        assert changed == good, "a changed token is no token"
    assert accepted < 300


def _mutated(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    kind = random.randrange(5)
    position = random.randrange(len(changed))
    if kind == 0:
        changed[position] = random.randrange(256)
    elif kind == 1:
        del changed[position:]
    elif kind == 2:
        changed[position:position] = random.randbytes(random.randint(1, 3))
    elif kind == 3:
        parts = bytes(changed).split(b".")
        random.shuffle(parts)
        return b".".join(parts)
    return bytes(changed)


def test_an_hmac_made_with_the_public_key_is_refused() -> None:
    jwt = pytest.importorskip("jwt")
    public = encoded(json.dumps(public_jwk("RS256")).encode())
    data = jwt.encode(CLAIMS, public, "HS256", headers={"kid": "k1"}).encode()
    with pytest.raises(InvalidToken, match="no key is for the algorithm"):
        verify(data, "RS256")
    with pytest.raises(InvalidToken, match="the signature is wrong"):
        verify(token(header={"alg": "RS256", "kid": "k1"}), "RS256")
