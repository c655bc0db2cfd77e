"""SCRAM credentials (RFC 5802): how they are made, checked, and encoded for the metadata store.

Only salted, hashed keys are stored, never passwords. The same credential serves SCRAM, where the
client proves that it knows the password, and PLAIN, where the client sends the password.
"""

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from penstock.security.resources import MAX_NAME_BYTES
from penstock.security.sasl import Mechanism
from penstock.security.saslprep import is_portable

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
SALT_BYTES: Final = 32  # of the salts that we make
MAX_SALT_BYTES: Final = 1024
MAX_PASSWORD_BYTES: Final = 1024
USER_PREFIX: Final = "user/"
RECORD_VERSION: Final = 1

Value = TypeVar("Value")

HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The keys of one user and one mechanism. `repr` hides them."""

    mechanism: Mechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def hash_name(self) -> str:
        return HASHES[self.mechanism]


@dataclass(frozen=True, slots=True)
class User:
    """One user record. A disabled user keeps its credentials but cannot log in."""

    credentials: Mapping[Mechanism, ScramCredential]
    disabled: bool = False
    created_ms: int = 0
    changed_ms: int = 0


def usable_credential(user: User | None, mechanism: Mechanism) -> ScramCredential | None:
    """Return what the user may log in with. None if there is no such user, or it is disabled."""
    if user is None or user.disabled:
        return None
    return user.credentials.get(mechanism)


def keyed_hash(hash_name: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hash_name)


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Run PBKDF2: 1 to 9 ms of CPU, so not on the event loop. OpenSSL releases the GIL."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_from_salted(
    mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive the stored keys from a salted password, as AlterUserScramCredentials brings it."""
    hash_name = HASHES[mechanism]
    client_key = keyed_hash(hash_name, salted, b"Client Key")
    return ScramCredential(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(hash_name, client_key).digest(),
        server_key=keyed_hash(hash_name, salted, b"Server Key"),
    )


def make_credential(
    mechanism: Mechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Make a credential from a password. The caller draws a random salt of SALT_BYTES."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(
            f"{iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
        )
    if problem := password_problem(password):
        raise ValueError(problem)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from_salted(mechanism, salted, salt, iterations)


def matches_password(credential: ScramCredential, password: str) -> bool:
    """Whether the password belongs to the credential. As slow as `salted_password`."""
    salted = salted_password(credential.mechanism, password, credential.salt, credential.iterations)
    made = credential_from_salted(
        credential.mechanism, salted, credential.salt, credential.iterations
    )
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def password_problem(password: str) -> str | None:
    """Return why a new password is not acceptable, or None. The text never contains the password."""
    if not password:
        return "the password is empty"
    if len(password.encode(errors="replace")) > MAX_PASSWORD_BYTES:
        return f"the password is longer than {MAX_PASSWORD_BYTES} bytes"
    if not is_portable(password):
        return "the password has characters that clients encode in different ways (RFC 4013)"
    return None


def user_name_problem(name: str) -> str | None:
    """Return why a user name is not acceptable, or None."""
    if not name:
        return "Username must not be empty"
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"Username is longer than {MAX_NAME_BYTES} bytes"
    if not is_portable(name):
        return "Username has characters that clients encode in different ways (RFC 4013)"
    return None


# The record in the metadata store ----------------------------------------------------------------


def user_key(name: str) -> str:
    """Return the store key of a user. Names are percent-encoded: a `/` in one is no path."""
    return USER_PREFIX + quote(name, safe="")


def user_name(key: str) -> str:
    assert key.startswith(USER_PREFIX), "only keys of users are parsed"
    return unquote(key.removeprefix(USER_PREFIX), errors="strict")


def encode_user(user: User) -> bytes:
    scram = {
        str(mechanism): {
            "salt": b64encode(credential.salt).decode(),
            "iterations": credential.iterations,
            "stored_key": b64encode(credential.stored_key).decode(),
            "server_key": b64encode(credential.server_key).decode(),
        }
        for mechanism, credential in sorted(user.credentials.items())
    }
    record: dict[str, Any] = {"v": RECORD_VERSION, "scram": scram, "disabled": user.disabled}
    record |= {"created_ms": user.created_ms, "changed_ms": user.changed_ms}
    return json.dumps(record, separators=(",", ":")).encode()


def decode_user(data: bytes) -> User:
    """Return the user of a record. Raise ValueError if it is damaged or of a newer version."""
    record = json.loads(data)
    if not isinstance(record, dict) or record.get("v") != RECORD_VERSION:
        raise ValueError(f"user record has no version {RECORD_VERSION}")
    try:
        credentials = {
            Mechanism(name): _decode_credential(Mechanism(name), fields)
            for name, fields in record["scram"].items()
        }
        return User(
            credentials,
            disabled=_typed(record["disabled"], bool),
            created_ms=_typed(record["created_ms"], int),
            changed_ms=_typed(record["changed_ms"], int),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"user record is damaged: {error!r}") from None


def _decode_credential(mechanism: Mechanism, fields: Mapping[str, Any]) -> ScramCredential:
    credential = ScramCredential(
        mechanism=mechanism,
        salt=b64decode(fields["salt"], validate=True),
        iterations=_typed(fields["iterations"], int),
        stored_key=b64decode(fields["stored_key"], validate=True),
        server_key=b64decode(fields["server_key"], validate=True),
    )
    size_bytes = hashlib.new(HASHES[mechanism]).digest_size
    if not len(credential.stored_key) == len(credential.server_key) == size_bytes:
        raise ValueError(f"the keys of {mechanism} do not have {size_bytes} bytes")
    if not credential.salt or credential.iterations < 1:
        raise ValueError("the salt is empty or the iteration count is not positive")
    return credential


def _typed(value: object, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value
