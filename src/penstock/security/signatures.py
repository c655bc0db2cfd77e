"""Signature verification with `cryptography`. Only this module of the package imports it.

It takes 60 ms to import, so a broker without OAUTHBEARER does not load it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from penstock.security.jwks import (
    COORDINATE_BYTES,
    MAX_KEYS,
    EcKey,
    Ed25519Key,
    RsaKey,
    VerificationKey,
)

_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "256": hashes.SHA256,
    "384": hashes.SHA384,
    "512": hashes.SHA512,
}
_CURVES: Final[dict[str, Callable[[], ec.EllipticCurve]]] = {
    "P-256": ec.SECP256R1,
    "P-384": ec.SECP384R1,
    "P-521": ec.SECP521R1,
}


def is_signed_by(key: VerificationKey, algorithm: str, data: bytes, signature: bytes) -> bool:
    """Whether the signature of `data` was made with the private half of the key."""
    if algorithm not in key.algorithms:
        return False
    try:
        match key.public:
            case RsaKey() as public:
                _verify_rsa(public, algorithm, data, signature)
            case EcKey() as public:
                _verify_ec(public, algorithm, data, signature)
            case Ed25519Key() as public:
                _ed25519(public).verify(signature, data)
    except (
        InvalidSignature,
        UnsupportedAlgorithm,
        ValueError,
    ):  # ValueError: no point of the curve
        return False
    return True


def _verify_rsa(key: RsaKey, algorithm: str, data: bytes, signature: bytes) -> None:
    hash_algorithm = _HASHES[algorithm[2:]]()
    scheme: padding.AsymmetricPadding = padding.PKCS1v15()
    if algorithm.startswith("PS"):  # RFC 7518, section 3.5: the salt is as long as the hash
        scheme = padding.PSS(padding.MGF1(hash_algorithm), hash_algorithm.digest_size)
    _rsa(key).verify(signature, data, scheme, hash_algorithm)


def _verify_ec(key: EcKey, algorithm: str, data: bytes, signature: bytes) -> None:
    """Verify a signature of JWS: r and s, each as long as a coordinate, one after the other."""
    size = COORDINATE_BYTES[key.curve]
    if len(signature) != 2 * size:
        raise InvalidSignature
    r, s = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
    if not (r and s):
        raise InvalidSignature
    hash_algorithm = _HASHES[algorithm[2:]]()
    _ec(key).verify(encode_dss_signature(r, s), data, ec.ECDSA(hash_algorithm))


@lru_cache(MAX_KEYS)
def _rsa(key: RsaKey) -> rsa.RSAPublicKey:
    return rsa.RSAPublicNumbers(key.exponent, key.modulus).public_key()


@lru_cache(MAX_KEYS)
def _ec(key: EcKey) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicNumbers(key.x, key.y, _CURVES[key.curve]()).public_key()


@lru_cache(MAX_KEYS)
def _ed25519(key: Ed25519Key) -> ed25519.Ed25519PublicKey:
    return ed25519.Ed25519PublicKey.from_public_bytes(key.public)
