"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server half, without channel binding.

An unknown or disabled user gets a salt that depends on the name and on a secret of the cluster,
so every broker answers alike. The exchange then fails at its end, as with a wrong password.
Names are compared byte by byte, as in Kafka: the server applies no SASLprep.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.security.credentials import (
    HASHES,
    MIN_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    keyed_hash,
)
from penstock.security.resources import MAX_NAME_BYTES, Principal
from penstock.security.sasl import FAILURE_MESSAGES, Challenge, Done, Mechanism, Outcome, Refused

MAX_NONCE_BYTES: Final = 512  # of the client's part
NONCE_BYTES: Final = 24  # random bytes of our part
_MAX_ATTRIBUTES: Final = 16
_NONCE_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F))) - {","}

FindCredential = Callable[[str, Mechanism], ScramCredential | None]


class InvalidScram(ValueError):
    """A message that breaks the grammar of RFC 5802 or asks for what is not supported."""


class ClientFirst(NamedTuple):
    gs2_header: str  # repeated by the client's final message, so that nobody can change it
    bare: str
    user: str
    authorization_id: str
    nonce: str
    token_auth: bool  # Kafka's extension: the name is the id of a delegation token


class ClientFinal(NamedTuple):
    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


class Decoys(NamedTuple):
    """Credentials for users who do not exist: the same on all brokers, different for each name."""

    secret: bytes  # the record `secret/scram-decoy`
    iterations: int = MIN_ITERATIONS  # as most users have
    salt_bytes: int = SALT_BYTES

    def credential(self, user: str, mechanism: Mechanism) -> ScramCredential:
        size_bytes = hashlib.new(HASHES[mechanism]).digest_size
        return ScramCredential(
            mechanism=mechanism,
            salt=self._derive(b"salt", user, mechanism, self.salt_bytes),
            iterations=self.iterations,
            stored_key=self._derive(b"stored key", user, mechanism, size_bytes),
            server_key=self._derive(b"server key", user, mechanism, size_bytes),
        )

    def _derive(self, purpose: bytes, user: str, mechanism: Mechanism, size_bytes: int) -> bytes:
        assert size_bytes <= 64, "one SHA-512 digest"
        data = b"\0".join((purpose, mechanism.encode(), user.encode()))
        return keyed_hash("sha512", self.secret, data)[:size_bytes]


class ScramServer:
    """One exchange. `server_nonce` is printable and random, see `nonce_from`."""

    __slots__ = (
        "_auth_message",
        "_credential",
        "_decoys",
        "_find",
        "_first",
        "_is_known",
        "_mechanism",
        "_nonce",
        "_server_nonce",
    )

    def __init__(
        self, mechanism: Mechanism, find: FindCredential, decoys: Decoys, server_nonce: str
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._decoys = decoys
        self._server_nonce = server_nonce
        self._first: ClientFirst | None = None
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._nonce = ""
        self._auth_message = ""

    def step(self, data: bytes) -> Outcome:
        try:
            return self._begin(data) if self._first is None else self._finish(data, self._first)
        except InvalidScram as error:
            return self._refuse(str(error))

    def _begin(self, data: bytes) -> Outcome:
        first = parse_client_first(data)
        if first.token_auth:
            raise InvalidScram("delegation tokens are not supported")
        if first.authorization_id and first.authorization_id != first.user:
            raise InvalidScram("the authorization id differs from the user name")
        decoy = self._decoys.credential(first.user, self._mechanism)  # always: equal time
        found = self._find(first.user, self._mechanism)
        self._is_known = found is not None
        self._credential = credential = decoy if found is None else found
        self._nonce = first.nonce + self._server_nonce
        salt = b64encode(credential.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._auth_message = f"{first.bare},{server_first}"
        self._first = first
        return Challenge(server_first.encode())

    def _finish(self, data: bytes, first: ClientFirst) -> Outcome:
        credential = self._credential
        assert credential is not None, "set together with the first message"
        final = parse_client_final(data)
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            raise InvalidScram("the nonce of the final message is not ours")
        if final.channel_binding != first.gs2_header.encode():
            raise InvalidScram("the channel binding does not repeat the first message")
        auth_message = f"{self._auth_message},{final.without_proof}".encode()
        is_proved = proves_knowledge(credential, auth_message, final.proof)
        if not (is_proved and self._is_known):
            return self._refuse("wrong password" if self._is_known else "unknown or disabled user")
        signature = keyed_hash(credential.hash_name, credential.server_key, auth_message)
        return Done(Principal("User", first.user), b"v=" + b64encode(signature))

    def _refuse(self, reason: str) -> Refused:
        user = self._first.user if self._first is not None else None
        return Refused(FAILURE_MESSAGES[self._mechanism], reason, user)


def nonce_from(random_bytes: bytes) -> str:
    """Return a printable nonce without commas from NONCE_BYTES of randomness."""
    return b64encode(random_bytes).decode()


def proves_knowledge(credential: ScramCredential, auth_message: bytes, proof: bytes) -> bool:
    """Whether the proof was made with the client key behind the stored key."""
    signature = keyed_hash(credential.hash_name, credential.stored_key, auth_message)
    if len(proof) != len(signature):
        return False
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    found = hashlib.new(credential.hash_name, client_key).digest()
    return hmac.compare_digest(found, credential.stored_key)


# Messages ----------------------------------------------------------------------------------------


def parse_client_first(data: bytes) -> ClientFirst:
    """Parse `n,a=authzid,n=user,r=nonce,extensions`."""
    text = _decoded(data)
    flag, comma, rest = text.partition(",")
    authorization, second_comma, bare = rest.partition(",")
    if not (comma and second_comma):
        raise InvalidScram("the first message has no GS2 header")
    if flag not in ("n", "y"):
        raise InvalidScram("channel binding is not supported")
    if authorization and not authorization.startswith("a="):
        raise InvalidScram("the GS2 header has an unknown attribute")
    attributes = _attributes(bare)
    if [name for name, _ in attributes[:2]] != ["n", "r"]:  # so `m=`, an extension, is refused
        raise InvalidScram("the first message does not begin with user name and nonce")
    nonce = attributes[1][1]
    if not nonce or len(nonce) > MAX_NONCE_BYTES or not _NONCE_CHARACTERS.issuperset(nonce):
        raise InvalidScram("the nonce is empty, too long, or has characters that are not allowed")
    extensions = dict(attributes[2:])
    return ClientFirst(
        gs2_header=f"{flag},{authorization},",
        bare=bare,
        user=_user_name(attributes[0][1]),
        authorization_id=_user_name(authorization[2:]) if authorization else "",
        nonce=nonce,
        token_auth=extensions.get("tokenauth", "").lower() == "true",
    )


def parse_client_final(data: bytes) -> ClientFinal:
    """Parse `c=binding,r=nonce,extensions,p=proof`. The proof is last."""
    text = _decoded(data)
    without_proof, comma, proof = text.rpartition(",p=")
    if not comma:
        raise InvalidScram("the final message has no proof")
    attributes = _attributes(without_proof)
    if [name for name, _ in attributes[:2]] != ["c", "r"]:
        raise InvalidScram("the final message has no channel binding and nonce")
    return ClientFinal(
        channel_binding=_base64(attributes[0][1]),
        nonce=attributes[1][1],
        proof=_base64(proof),
        without_proof=without_proof,
    )


def _decoded(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidScram("the message is not UTF-8") from None
    if "\0" in text:
        raise InvalidScram("the message contains NUL")
    return text


def _attributes(text: str) -> list[tuple[str, str]]:
    parts = text.split(",", _MAX_ATTRIBUTES)
    if len(parts) > _MAX_ATTRIBUTES:
        raise InvalidScram(f"more than {_MAX_ATTRIBUTES} attributes")
    pairs = [part.partition("=") for part in parts]
    if any(not (name and equals) for name, equals, _ in pairs):
        raise InvalidScram("an attribute has no form name=value")
    return [(name, value) for name, _, value in pairs]


def _user_name(escaped: str) -> str:
    """Undo `=2C` and `=3D`. Any other `=` is an error (RFC 5802, section 5.1)."""
    first, *others = escaped.split("=")
    if any(other[:2] not in ("2C", "3D") for other in others):
        raise InvalidScram("the user name has an `=` that is not escaped")
    name = first + "".join(("," if o[:2] == "2C" else "=") + o[2:] for o in others)
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidScram(f"the user name has no bytes or more than {MAX_NAME_BYTES}")
    return name


def _base64(text: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (InvalidBase64, ValueError):
        raise InvalidScram("an attribute is not base64") from None
    if b64encode(data).decode() != text:
        raise InvalidScram("an attribute is not canonical base64")
    return data
