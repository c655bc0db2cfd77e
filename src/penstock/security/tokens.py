"""Access tokens (JWT, RFC 7519): which are accepted, and what they say about the client.

The checks are those of Kafka's broker (KIP-768), in its settings' terms, and stricter where noted:
issuer and audience are compared as they are, `exp` and `iat` are required, algorithms are asymmetric.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.security.jwks import KeySet, VerificationKey
from penstock.security.jws import InvalidToken, parse_jws
from penstock.security.resources import MAX_NAME_BYTES, Principal

MAX_GROUPS: Final = 200
_MAX_TIME_S: Final = 2**40  # 34,000 years

IsSignedBy = Callable[[VerificationKey, str, bytes, bytes], bool]


class UnknownKey(InvalidToken):
    """The token names a key that the key set lacks. New keys may be there to fetch."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"the key set has no key {key_id[:64]!r}")
        self.key_id = key_id


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings `sasl.oauthbearer.*`. Issuer None and no audience mean: not verified."""

    expected_issuer: str | None
    expected_audiences: frozenset[str]
    clock_skew_s: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str | None = None


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A verified token. It ends at `expires_ms`, with the clock skew included."""

    principal: Principal
    expires_ms: int
    scopes: frozenset[str] = frozenset()
    groups: tuple[Principal, ...] = ()


def verify_token(
    token: bytes, keys: KeySet, is_signed_by: IsSignedBy, settings: TokenSettings, now_ms: int
) -> AccessToken:
    """Return what the token says. Raise InvalidToken with the reason for the log."""
    jws = parse_jws(token)
    candidates = keys.candidates(jws.key_id, jws.algorithm)
    if not candidates:
        if jws.key_id is not None and not keys.has_key_id(jws.key_id):
            raise UnknownKey(jws.key_id)
        raise InvalidToken(f"no key is for the algorithm {jws.algorithm[:16]!r}")
    if not any(
        is_signed_by(key, jws.algorithm, jws.signing_input, jws.signature) for key in candidates
    ):
        raise InvalidToken("the signature is wrong")
    return check_claims(jws.claims, settings, now_ms)


def check_claims(claims: Mapping[str, Any], settings: TokenSettings, now_ms: int) -> AccessToken:
    """Check the claims of a token whose signature is right."""
    _check_issuer(claims, settings)
    _check_audience(claims, settings)
    expires_ms = _check_times(claims, settings.clock_skew_s * 1000, now_ms)
    name = _name(claims.get(settings.sub_claim), settings.sub_claim)
    return AccessToken(
        Principal("User", name),
        expires_ms,
        frozenset(_words(claims, settings.scope_claim)),
        _groups(claims, settings.groups_claim),
    )


def _check_issuer(claims: Mapping[str, Any], settings: TokenSettings) -> None:
    if settings.expected_issuer is not None and claims.get("iss") != settings.expected_issuer:
        raise InvalidToken("iss is not sasl.oauthbearer.expected.issuer")


def _check_audience(claims: Mapping[str, Any], settings: TokenSettings) -> None:
    if not settings.expected_audiences:
        return
    audience = claims.get("aud")
    listed = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(one, str) for one in listed):
        raise InvalidToken("aud is no text and no list of texts")
    if settings.expected_audiences.isdisjoint(listed):
        raise InvalidToken("aud has none of sasl.oauthbearer.expected.audience")


def _check_times(claims: Mapping[str, Any], skew_ms: int, now_ms: int) -> int:
    """Return when the token ends, in ms."""
    issued_ms = _time_ms(claims, "iat")
    expires_ms = _time_ms(claims, "exp")
    if expires_ms <= issued_ms:
        raise InvalidToken("exp is not after iat")
    if now_ms >= expires_ms + skew_ms:
        raise InvalidToken(f"the token expired {(now_ms - expires_ms) // 1000} s ago")
    for name in ("iat", "nbf"):
        if name in claims and _time_ms(claims, name) > now_ms + skew_ms:
            ahead_s = (_time_ms(claims, name) - now_ms) // 1000
            raise InvalidToken(f"{name} is {ahead_s} s in the future: compare the clocks")
    return expires_ms + skew_ms


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"{name} is missing or no number")
    if not 0 <= value <= _MAX_TIME_S:  # excludes infinity
        raise InvalidToken(f"{name} is out of range")
    return int(value * 1000)


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidToken(f"{what} is missing, empty or no text")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:  # JSON may hold half a surrogate pair
        raise InvalidToken(f"{what} is no Unicode text") from None
    if size_bytes > MAX_NAME_BYTES:
        raise InvalidToken(f"{what} has {size_bytes} bytes; the limit is {MAX_NAME_BYTES}")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise InvalidToken(f"{what} has control characters")
    return value


def _words(claims: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of words: a JSON list, or one text with spaces, as `scope` has it."""
    value = claims.get(name, [])
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidToken(f"{name} is no text and no list of texts")
    return words


def _groups(claims: Mapping[str, Any], name: str | None) -> tuple[Principal, ...]:
    if name is None:
        return ()
    value = claims.get(name, [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MAX_GROUPS:
        raise InvalidToken(f"{name} is no list of at most {MAX_GROUPS} texts")
    return tuple(dict.fromkeys(Principal("Group", _name(group, name)) for group in listed))
