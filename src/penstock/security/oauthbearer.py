"""OAUTHBEARER (RFC 7628, KIP-255), the server half.

A refused token is first answered with a JSON error, which the client acknowledges with one byte.
Then the exchange fails. Every reason has the same JSON and text; only the broker's log has more.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.security.jws import InvalidToken
from penstock.security.sasl import (
    FAILURE_MESSAGES,
    Challenge,
    Done,
    Mechanism,
    Outcome,
    Refused,
)
from penstock.security.tokens import AccessToken

ERROR_RESPONSE: Final = b'{"status":"invalid_token"}'
ACKNOWLEDGEMENT: Final = b"\x01"
_SEPARATOR: Final = b"\x01"
_MAX_EXTENSIONS: Final = 32
_LETTERS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

VerifyToken = Callable[[bytes], AccessToken]  # raises InvalidToken


class InitialResponse(NamedTuple):
    authorization_id: str
    token: bytes
    extensions: dict[str, str]  # not interpreted

    def __repr__(self) -> str:
        return f"InitialResponse(authorization_id={self.authorization_id!r})"


class OauthBearerServer:
    """One exchange. `verify_token` holds keys, settings and the clock."""

    __slots__ = ("_refusal", "_verify_token")

    def __init__(self, verify_token: VerifyToken) -> None:
        self._verify_token = verify_token
        self._refusal: Refused | None = None

    def step(self, data: bytes) -> Outcome:
        if self._refusal is not None:  # whatever the client says now
            return self._refusal
        try:
            initial = parse_initial_response(data)
            token = self._verify_token(initial.token)
        except InvalidToken as error:
            return self._challenge_with_error(str(error))
        if initial.authorization_id not in ("", token.principal.name):
            return self._challenge_with_error("the authorization id differs from the token's name")
        return Done(token.principal, expires_ms=token.expires_ms, groups=token.groups)

    def _challenge_with_error(self, reason: str) -> Challenge:
        self._refusal = Refused(FAILURE_MESSAGES[Mechanism.OAUTHBEARER], reason)
        return Challenge(ERROR_RESPONSE)


def parse_initial_response(data: bytes) -> InitialResponse:
    """Parse `n,a=authzid,^Aauth=Bearer token^Akey=value^A^A`, where ^A is the byte 1."""
    header, *pairs = data.split(_SEPARATOR, _MAX_EXTENSIONS + 3)
    if len(pairs) < 3 or pairs[-2:] != [b"", b""]:
        raise InvalidToken("the first message has no form of RFC 7628")
    values = _values(pairs[:-2])
    scheme, space, token = values.pop("auth", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not space or not token.strip(b" "):
        raise InvalidToken("the first message has no bearer token")
    return InitialResponse(
        _authorization_id(header),
        token.strip(b" "),
        {name: _text(value) for name, value in values.items()},
    )


def _values(pairs: list[bytes]) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if not (name and equals) or not _LETTERS.issuperset(name) or name.decode() in values:
            raise InvalidToken("an extension has no form name=value, or its name occurs twice")
        values[name.decode()] = value
    return values


def _authorization_id(header: bytes) -> str:
    """Parse `n,a=authzid,`. Without channel binding, so the flag is n or y."""
    match header.split(b","):
        case [b"n" | b"y", b"", b""]:
            return ""
        case [b"n" | b"y", authorization, b""] if authorization.startswith(b"a="):
            return _text(authorization[2:]).replace("=2C", ",").replace("=3D", "=")
        case _:
            raise InvalidToken("the GS2 header is wrong or asks for channel binding")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidToken("the message is not UTF-8") from None
