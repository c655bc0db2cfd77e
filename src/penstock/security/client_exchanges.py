"""The client half of PLAIN, SCRAM and OAUTHBEARER: for brokers and tools that log in.

The client checks the server too: its signature proves that it knows the user's keys, and its
iteration count is limited, so that a false server cannot weaken a password or burn CPU.
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from typing import Final, Protocol

from penstock.security.credentials import (
    HASHES,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    credential_from_salted,
    keyed_hash,
    salted_password,
)
from penstock.security.oauthbearer import ACKNOWLEDGEMENT
from penstock.security.sasl import Mechanism

MAX_ITERATIONS: Final = 100_000  # that a server may ask for
_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = b64encode(_GS2_HEADER.encode()).decode()


class LoginFailed(Exception):
    """The server refused the login, or it did not prove that it knows the user."""


class ClientExchange(Protocol):
    def first(self) -> bytes:
        """Return the first message."""
        ...

    def respond(self, data: bytes) -> bytes | None:
        """Return the next message, None at the end. Raise LoginFailed."""
        ...


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()
        if self._message.count(b"\0") != 2:
            raise LoginFailed("the user name or password contains NUL")

    def first(self) -> bytes:
        return self._message

    def respond(self, data: bytes) -> None:
        if data:
            raise LoginFailed("the server continues after PLAIN's only message")


class OauthBearerClient:
    def __init__(self, token: str) -> None:
        self._message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        self._is_refused = False

    def first(self) -> bytes:
        return self._message

    def respond(self, data: bytes) -> bytes | None:
        if self._is_refused:
            raise LoginFailed("the server refused the token")
        if not data:
            return None
        self._is_refused = True
        return ACKNOWLEDGEMENT


class ScramClient:
    """`nonce` is printable and random. `respond` runs PBKDF2: use a thread on an event loop."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._signature: bytes | None = None  # that the server must prove itself with

    def first(self) -> bytes:
        return f"{_GS2_HEADER}{self._first_bare}".encode()

    def respond(self, data: bytes) -> bytes | None:
        if self._signature is None:
            return self._prove(data)
        if not hmac.compare_digest(_base64(_attributes(data, "v")["v"]), self._signature):
            raise LoginFailed("the server does not know the user's keys")
        return None

    def _prove(self, data: bytes) -> bytes:
        found = _attributes(data, "r", "s", "i")
        nonce, salt = found["r"], _base64(found["s"])
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):
            raise LoginFailed("the server's nonce does not continue ours")
        if not 0 < len(salt) <= MAX_SALT_BYTES:
            raise LoginFailed(f"the server's salt has {len(salt)} bytes")
        salted = salted_password(self._mechanism, self._password, salt, _iterations(found["i"]))
        return self._final(nonce, salted, data.decode())

    def _final(self, nonce: str, salted: bytes, server_first: str) -> bytes:
        hash_name = HASHES[self._mechanism]
        keys = credential_from_salted(self._mechanism, salted, b"", 0)
        without_proof = f"c={_CHANNEL_BINDING},r={nonce}"
        message = f"{self._first_bare},{server_first},{without_proof}".encode()
        client_key = keyed_hash(hash_name, salted, b"Client Key")
        client_signature = keyed_hash(hash_name, keys.stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        self._signature = keyed_hash(hash_name, keys.server_key, message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


def _attributes(data: bytes, *names: str) -> dict[str, str]:
    """Return the attributes of a server's message, which begins with `names` in this order."""
    try:
        pairs = [part.partition("=") for part in data.decode().split(",")]
    except UnicodeDecodeError:
        raise LoginFailed("the server's message is not UTF-8") from None
    if [name for name, _, _ in pairs[: len(names)]] != list(names):
        raise LoginFailed(f"the server's message has no {', '.join(names)}")
    return {name: value for name, _, value in pairs}


def _iterations(text: str) -> int:
    count = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
        raise LoginFailed(
            f"the server asks for {text[:16]!r} iterations; "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    return count


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (InvalidBase64, ValueError):
        raise LoginFailed("the server's message has an attribute that is not base64") from None
