"""PLAIN: the grammar of RFC 4616, clients that we did not write, and what is remembered."""

from typing import Any

import pytest
from aiokafka.conn import SaslPlainAuthenticator
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.plain import SaslMechanismPlain

from penstock.security import plain as plain_module
from penstock.security.credentials import ScramCredential, make_credential
from penstock.security.plain import Login, PasswordChecker, PlainServer, parse_login
from penstock.security.resources import Principal
from penstock.security.sasl import (
    FAILURE_MESSAGES,
    Done,
    Mechanism,
    Refused,
    SaslServer,
    enabled_mechanisms,
    mechanism_change_error,
    principal_change_error,
    session_lifetime_ms,
)
from penstock.security.scram import Decoys

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


class Users(dict[tuple[str, Mechanism], ScramCredential]):
    def find(self, user: str, mechanism: Mechanism) -> ScramCredential | None:
        return self.get((user, mechanism))


@pytest.fixture
def users() -> Users:
    return Users(
        {
            ("alice", SHA_512): make_credential(SHA_512, "alice-secret", b"salt"),
            ("bob", SHA_256): make_credential(SHA_256, "bob-secret", b"salt"),
        }
    )


@pytest.fixture
def checker(users: Users) -> PasswordChecker:
    return PasswordChecker(users.find, Decoys(b"secret"), b"key of the process")


def login(checker: PasswordChecker, data: bytes) -> Done | Refused:
    outcome = SaslServer(Mechanism.PLAIN, PlainServer(checker.check)).step(data)
    assert isinstance(outcome, Done | Refused)
    return outcome


@pytest.mark.parametrize(("user", "password"), [("alice", "alice-secret"), ("bob", "bob-secret")])
def test_independent_clients_log_in(checker: PasswordChecker, user: str, password: str) -> None:
    kafka_python: Any = SaslMechanismPlain(sasl_plain_username=user, sasl_plain_password=password)
    aiokafka: Any = SaslPlainAuthenticator(
        loop=None, sasl_plain_username=user, sasl_plain_password=password
    )
    for data in (kafka_python.auth_bytes(), next(aiokafka.authenticator_plain())[0]):
        assert login(checker, data) == Done(Principal("User", user))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"\0alice\0",
        b"\0\0alice-secret",
        b"\0alice\0wrong",
        b"\0Alice\0alice-secret",
        b"\0nobody\0alice-secret",
        b"bob\0alice\0alice-secret",
        b"\0\xff\0alice-secret",
        b"\0alice\0\xff",
        b"\0" + b"a" * 257 + b"\0alice-secret",
        b"\0alice\0" + b"a" * 1025,
    ],
)
def test_everything_else_is_refused_with_one_text(checker: PasswordChecker, data: bytes) -> None:
    outcome = login(checker, data)
    assert isinstance(outcome, Refused)
    assert outcome.message == FAILURE_MESSAGES[Mechanism.PLAIN]
    assert "secret" not in outcome.reason


@given(st.binary(max_size=100))
def test_the_parser_raises_nothing_but_value_errors(data: bytes) -> None:
    try:
        found = parse_login(data)
    except ValueError:
        return
    assert data.endswith(f"\0{found.user}\0{found.password}".encode())


def test_passwords_are_not_printed() -> None:
    assert "secret" not in repr(Login("alice", "secret"))
    assert "salt" not in repr(make_credential(SHA_256, "alice-secret", b"salt"))


def test_right_passwords_are_remembered_until_the_credential_changes(
    checker: PasswordChecker, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not checker.is_remembered("alice", "alice-secret")
    assert checker.check("alice", "alice-secret")
    assert checker.is_remembered("alice", "alice-secret")
    assert not checker.check("alice", "wrong")
    assert not checker.is_remembered("alice", "wrong")
    monkeypatch.setattr(plain_module, "matches_password", lambda *_: pytest.fail("was remembered"))
    assert checker.check("alice", "alice-secret")
    monkeypatch.undo()
    users["alice", SHA_512] = make_credential(SHA_512, "new", b"salt")
    assert not checker.is_remembered("alice", "alice-secret")
    assert not checker.check("alice", "alice-secret")
    del users["alice", SHA_512]
    assert not checker.check("alice", "new")


def test_what_is_remembered_is_bounded(
    checker: PasswordChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_module, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(plain_module, "matches_password", lambda *_: True)
    for number in range(10):
        assert checker.check("alice", f"password {number}")
    assert len(checker._remembered) == 3
    assert checker.is_remembered("alice", "password 9")


def test_a_check_of_an_unknown_user_takes_one_hash_as_well(
    checker: PasswordChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[ScramCredential] = []

    def accept(credential: ScramCredential, _: str) -> bool:
        hashed.append(credential)
        return True

    monkeypatch.setattr(plain_module, "matches_password", accept)
    assert not checker.check("nobody", "alice-secret")
    assert len(hashed) == 1


# What all mechanisms share -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires_ms", "max_reauth_ms", "lifetime_ms"),
    [
        (None, 0, 0),
        (None, 5000, 5000),
        (3000, 0, 2000),
        (3000, 1500, 1500),
        (3000, 9000, 2000),
        (900, 9000, 1),  # over by now: not 0, which would mean no end
    ],
)
def test_the_shorter_lifetime_counts(
    expires_ms: int | None, max_reauth_ms: int, lifetime_ms: int
) -> None:
    assert session_lifetime_ms(1000, expires_ms, max_reauth_ms) == lifetime_ms


def test_a_reauthentication_keeps_mechanism_and_principal() -> None:
    alice, bob = Principal("User", "alice"), Principal("User", "bob")
    assert mechanism_change_error(Mechanism.PLAIN, Mechanism.PLAIN) is None
    assert mechanism_change_error(Mechanism.PLAIN, SHA_256) is not None
    assert principal_change_error(alice, alice) is None
    assert principal_change_error(alice, bob) == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )


def test_the_enabled_mechanisms() -> None:
    assert enabled_mechanisms(" PLAIN,SCRAM-SHA-512 ,PLAIN") == (Mechanism.PLAIN, SHA_512)
    assert enabled_mechanisms("") == ()
    with pytest.raises(ValueError, match="'GSSAPI' is not supported"):
        enabled_mechanisms("GSSAPI")
