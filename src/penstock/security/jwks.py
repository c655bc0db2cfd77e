"""JSON Web Key Sets (RFC 7517): the public keys that may sign tokens.

The key decides which algorithms it may be used with, never the header of a token. Keys that
cannot verify signatures (symmetric, for encryption, too short) are left out.
"""

from dataclasses import dataclass
from typing import Any, Final

from penstock.security.jws import InvalidToken, strict_base64url, strict_object

MAX_KEYS: Final = 100
MAX_CANDIDATES: Final = 4  # keys that are tried for a token without key id
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 16_384
_MAX_RSA_EXPONENT: Final = 2**32
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVE_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
COORDINATE_BYTES: Final = {"P-256": 32, "P-384": 48, "P-521": 66}
ED25519_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class RsaKey:
    modulus: int
    exponent: int


@dataclass(frozen=True, slots=True)
class EcKey:
    curve: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Ed25519Key:
    public: bytes


PublicKey = RsaKey | EcKey | Ed25519Key


@dataclass(frozen=True, slots=True)
class VerificationKey:
    key_id: str | None
    algorithms: tuple[str, ...]  # never empty
    public: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    keys: tuple[VerificationKey, ...] = ()

    def candidates(self, key_id: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """Return the keys that a token with this header may be signed with."""
        found = [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
        ]
        return tuple(found[:MAX_CANDIDATES])

    def has_key_id(self, key_id: str) -> bool:
        return any(key.key_id == key_id for key in self.keys)


def parse_jwks(data: bytes) -> KeySet:
    """Parse a key set. Raise ValueError if it is malformed or has no key that can be used."""
    entries = strict_object(data, "key set").get("keys")
    if not isinstance(entries, list):
        raise ValueError("the key set has no list `keys`")
    if len(entries) > MAX_KEYS:
        raise ValueError(f"the key set has {len(entries)} keys; the limit is {MAX_KEYS}")
    keys = [key for entry in entries if (key := _usable_key(entry)) is not None]
    if not keys:
        raise ValueError("the key set has no key for signatures that is supported")
    return KeySet(tuple(keys))


def _usable_key(entry: object) -> VerificationKey | None:
    """Return the key of one entry, None if it is of another kind or damaged."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return None
    try:
        public, algorithms = _public_key(entry)
    except (InvalidToken, KeyError, AttributeError):
        return None
    stated = entry.get("alg")
    if stated is not None:
        algorithms = (stated,) if stated in algorithms else ()
    key_id = entry.get("kid")
    if not algorithms or not (key_id is None or isinstance(key_id, str)):
        return None
    return VerificationKey(key_id, algorithms, public)


def _public_key(entry: dict[str, Any]) -> tuple[PublicKey, tuple[str, ...]]:
    match entry.get("kty"):
        case "RSA":
            return _rsa_key(entry), RSA_ALGORITHMS
        case "EC" if isinstance(curve := entry.get("crv"), str) and curve in CURVE_ALGORITHMS:
            size = COORDINATE_BYTES[curve]
            key = EcKey(curve, _number(entry["x"], size), _number(entry["y"], size))
            return key, (CURVE_ALGORITHMS[curve],)
        case "OKP" if entry.get("crv") == "Ed25519":
            public = strict_base64url(entry["x"].encode())
            if len(public) != ED25519_BYTES:
                raise InvalidToken(f"an Ed25519 key of {len(public)} bytes")
            return Ed25519Key(public), ("EdDSA", "Ed25519")
        case _:
            raise InvalidToken("a kind of key that is not supported")


def _rsa_key(entry: dict[str, Any]) -> RsaKey:
    key = RsaKey(_number(entry["n"]), _number(entry["e"]))
    if not MIN_RSA_BITS <= key.modulus.bit_length() <= MAX_RSA_BITS or key.modulus % 2 == 0:
        raise InvalidToken(f"an RSA key of {key.modulus.bit_length()} bits")
    if not 3 <= key.exponent <= _MAX_RSA_EXPONENT or key.exponent % 2 == 0:
        raise InvalidToken("an RSA exponent that is not supported")
    return key


def _number(text: str, size_bytes: int | None = None) -> int:
    """Decode an unsigned number, big end first, of exactly `size_bytes` where that is given."""
    data = strict_base64url(text.encode())
    if size_bytes is not None and len(data) != size_bytes:
        raise InvalidToken(f"a coordinate of {len(data)} bytes instead of {size_bytes}")
    return int.from_bytes(data, "big")
