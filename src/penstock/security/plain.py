"""PLAIN (RFC 4616): the client sends its password, which is checked against stored SCRAM keys."""

import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.security.credentials import (
    MAX_PASSWORD_BYTES,
    ScramCredential,
    matches_password,
)
from penstock.security.resources import MAX_NAME_BYTES, Principal
from penstock.security.sasl import FAILURE_MESSAGES, Done, Mechanism, Outcome, Refused
from penstock.security.scram import Decoys, FindCredential

MAX_REMEMBERED: Final = 10_000
_MECHANISMS: Final = (Mechanism.SCRAM_SHA_512, Mechanism.SCRAM_SHA_256)  # stronger first

CheckPassword = Callable[[str, str], bool]


class Login(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"


def parse_login(data: bytes) -> Login:
    """Parse `authzid NUL user NUL password`. Raise ValueError with the reason for the log."""
    parts = data.split(b"\0")
    if len(parts) != 3:
        raise ValueError(f"{len(parts)} fields instead of 3")
    authorization_id, user, password = parts
    if not user or len(user) > MAX_NAME_BYTES:
        raise ValueError(f"a user name of {len(user)} bytes; 1 to {MAX_NAME_BYTES} are allowed")
    if not password or len(password) > MAX_PASSWORD_BYTES:
        raise ValueError(
            f"a password of {len(password)} bytes; 1 to {MAX_PASSWORD_BYTES} are allowed"
        )
    if authorization_id not in (b"", user):
        raise ValueError("the authorization id differs from the user name")
    try:
        return Login(user.decode(), password.decode())
    except UnicodeDecodeError:
        raise ValueError("the message is not UTF-8") from None


class PlainServer:
    """One exchange of one message. `check_password` may take milliseconds: see PasswordChecker."""

    __slots__ = ("_check_password",)

    def __init__(self, check_password: CheckPassword) -> None:
        self._check_password = check_password

    def step(self, data: bytes) -> Outcome:
        message = FAILURE_MESSAGES[Mechanism.PLAIN]
        try:
            login = parse_login(data)
        except ValueError as error:
            return Refused(message, str(error))
        if not self._check_password(login.user, login.password):
            return Refused(message, "unknown or disabled user, or wrong password", login.user)
        return Done(Principal("User", login.user))


class PasswordChecker:
    """Checks passwords against SCRAM credentials and remembers those that were right.

    A check runs PBKDF2 once, for an unknown user as well. Right passwords are remembered as a
    keyed hash that covers the stored key, so a changed password or a deleted user ends the memory.
    `is_remembered` is cheap: only other logins need a thread.
    """

    def __init__(self, find: FindCredential, decoys: Decoys, process_key: bytes) -> None:
        self._find = find
        self._decoys = decoys
        self._process_key = process_key  # random, of this process only
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    def is_remembered(self, user: str, password: str) -> bool:
        credential = self._credential(user)
        return credential is not None and self._hash(user, password, credential) in self._remembered

    def check(self, user: str, password: str) -> bool:
        found = self._credential(user)
        credential = found or self._decoys.credential(user, Mechanism.SCRAM_SHA_512)
        remembered = self._hash(user, password, credential)
        if remembered in self._remembered:
            return found is not None
        is_right = matches_password(credential, password) and found is not None
        if is_right:
            self._remembered[remembered] = None
            while len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return is_right

    def _credential(self, user: str) -> ScramCredential | None:
        for mechanism in _MECHANISMS:
            credential = self._find(user, mechanism)
            if credential is not None:
                return credential
        return None

    def _hash(self, user: str, password: str, credential: ScramCredential) -> bytes:
        data = b"\0".join((user.encode(), password.encode(), credential.stored_key))
        return hmac.digest(self._process_key, data, "sha256")
