"""SCRAM credentials: published keys, records, and what a request may change."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ErrorCode
from penstock.security.credentials import (
    User,
    credential_from_salted,
    decode_user,
    encode_user,
    make_credential,
    matches_password,
    salted_password,
    usable_credential,
    user_key,
    user_name,
)
from penstock.security.sasl import Mechanism
from penstock.security.scram_changes import (
    Alteration,
    CredentialInfo,
    Deletion,
    Description,
    Upsertion,
    UserResult,
    alter,
    describe,
)

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def test_the_keys_of_rfc_7677() -> None:
    """The stored key and server key of `pencil`, as other servers print them (RFC 5803)."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential(SHA_256, "pencil", salt, 4096)
    stored_key, server_key = map(base64.b64encode, (credential.stored_key, credential.server_key))
    assert stored_key == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert server_key == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_a_credential_matches_its_password_only() -> None:
    for mechanism in (SHA_256, SHA_512):
        credential = make_credential(mechanism, "secret", b"salt", 4097)
        assert matches_password(credential, "secret")
        assert not matches_password(credential, "Secret")
        salted = salted_password(mechanism, "secret", b"salt", 4097)
        assert credential_from_salted(mechanism, salted, b"salt", 4097) == credential


def test_a_disabled_user_keeps_its_credentials_but_cannot_use_them() -> None:
    credential = make_credential(SHA_256, "secret", b"salt")
    user = User({SHA_256: credential})
    assert usable_credential(user, SHA_256) == credential
    assert usable_credential(user, SHA_512) is None
    assert usable_credential(replace(user, disabled=True), SHA_256) is None
    assert usable_credential(None, SHA_256) is None


@pytest.mark.parametrize("iterations", [0, 4095, 16_385])
def test_iterations_are_limited(iterations: int) -> None:
    with pytest.raises(ValueError, match="4096 to 16384"):
        make_credential(SHA_256, "secret", b"salt", iterations)


# Records -----------------------------------------------------------------------------------------

salted = st.binary(min_size=1, max_size=64)
users = st.builds(
    User,
    st.dictionaries(st.sampled_from([SHA_256, SHA_512]), st.tuples(salted, salted)).map(
        lambda found: {
            mechanism: credential_from_salted(mechanism, *keys, iterations=5000)
            for mechanism, keys in found.items()
        }
    ),
    st.booleans(),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
)


@given(users)
def test_records_come_back(user: User) -> None:
    assert decode_user(encode_user(user)) == user


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_keys_name_one_user_each(name: str) -> None:
    key = user_key(name)
    assert user_name(key) == name
    assert key.count("/") == 1
    assert key.isascii()


@pytest.mark.parametrize(
    "damage",
    [
        (b'"v":1', b'"v":2'),
        (b'"SCRAM-SHA-256"', b'"SCRAM-SHA-1"'),
        (b'"iterations":4096', b'"iterations":"4096"'),
        (b'"iterations":4096', b'"iterations":0'),
        (b'"salt"', b'"sald"'),
        (b'"salt":"c2FsdA=="', b'"salt":""'),
        (b'"salt":"c2FsdA=="', b'"salt":"?"'),
        (b'"stored_key":"', b'"stored_key":"AAAA'),
        (b'"disabled":false', b'"disabled":0'),
        (b'"created_ms":0', b'"created_ms":null'),
        (b"}", b""),
        (b"{", b"[{"),
    ],
)
def test_damaged_records_are_refused(damage: tuple[bytes, bytes]) -> None:
    record = encode_user(User({SHA_256: make_credential(SHA_256, "secret", b"salt")}))
    assert damage[0] in record
    with pytest.raises(ValueError, match=r"."):
        decode_user(record.replace(*damage))


# Changes -----------------------------------------------------------------------------------------


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096) -> Upsertion:
    size = {1: 32, 2: 64}.get(mechanism, 32)
    return Upsertion(name, mechanism, iterations, b"salt", b"x" * size)


def present(*names: str) -> dict[str, User]:
    credential = credential_from_salted(SHA_256, b"x" * 32, b"salt", 4096)
    return {name: User({SHA_256: credential}, created_ms=5, changed_ms=5) for name in names}


def test_credentials_are_added_replaced_and_deleted() -> None:
    users = present("alice", "bob", "eve")
    alteration = alter(
        users,
        [Deletion("bob", 1)],
        [upsertion("alice", 2), upsertion("carol", 1), upsertion("carol", 2), upsertion("eve")],
        now_ms=9,
    )
    assert alteration.results == [UserResult(name) for name in ("bob", "alice", "carol", "eve")]
    assert alteration.changed["bob"] is None
    alice, carol = alteration.changed["alice"], alteration.changed["carol"]
    assert alice is not None
    assert carol is not None
    assert set(alice.credentials) == set(carol.credentials) == {SHA_256, SHA_512}
    assert (alice.created_ms, alice.changed_ms) == (5, 9)
    assert (carol.created_ms, carol.changed_ms) == (9, 9)
    assert alice.credentials[SHA_256] == users["alice"].credentials[SHA_256]
    assert alice.credentials[SHA_512] == credential_from_salted(SHA_512, b"x" * 64, b"salt", 4096)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 257), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion()._replace(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion()._replace(salted_password=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Deletion("", 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (Deletion("alice", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Deletion("alice", 2), ErrorCode.RESOURCE_NOT_FOUND),
        (Deletion("nobody", 1), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_bad_changes_get_kafkas_codes(change: Upsertion | Deletion, code: ErrorCode) -> None:
    deletions = [change] if isinstance(change, Deletion) else []
    upsertions = [change] if isinstance(change, Upsertion) else []
    alteration = alter(present("alice"), deletions, [*upsertions, upsertion("zoe")], now_ms=9)
    assert [result.error_code for result in alteration.results] == [code, ErrorCode.NONE]
    assert list(alteration.changed) == ["zoe"]


def test_one_bad_change_stops_all_changes_of_its_user() -> None:
    alteration = alter(present(), [], [upsertion(), upsertion(mechanism=9)], now_ms=9)
    assert [result.error_code for result in alteration.results] == [
        ErrorCode.UNSUPPORTED_SASL_MECHANISM
    ]
    assert alteration.changed == {}


@pytest.mark.parametrize(
    ("deletions", "upsertions"),
    [
        ([], [upsertion(), upsertion()]),
        ([Deletion("alice", 1)], [upsertion()]),
        ([Deletion("alice", 1), Deletion("alice", 1)], []),
    ],
)
def test_one_credential_cannot_be_altered_twice(
    deletions: list[Deletion], upsertions: list[Upsertion]
) -> None:
    alteration = alter(present("alice"), deletions, upsertions, now_ms=9)
    message = "A user credential cannot be altered twice in the same request"
    assert alteration == Alteration(
        [UserResult("alice", ErrorCode.DUPLICATE_RESOURCE, message)], {}
    )


def test_the_number_of_users_is_limited() -> None:
    users = present("alice", "bob")
    changes = [upsertion(name) for name in ("carol", "alice", "dave", "eve")]
    alteration = alter(users, [], changes, now_ms=9, max_users=3)
    codes = {result.user: result.error_code for result in alteration.results}
    assert codes == {
        "carol": ErrorCode.NONE,
        "alice": ErrorCode.NONE,
        "dave": ErrorCode.POLICY_VIOLATION,
        "eve": ErrorCode.POLICY_VIOLATION,
    }


def test_salted_passwords_are_not_printed() -> None:
    assert "xxxx" not in repr(upsertion())


def test_descriptions() -> None:
    users = present("bob", "alice") | {"ghost": User({})}
    alice, bob = (
        Description(name, credential_infos=(CredentialInfo(1, 4096),)) for name in ("alice", "bob")
    )
    assert describe(users, None) == describe(users, []) == [alice, bob]
    assert describe(users, ["bob"]) == [bob]
    found = describe(users, ["nobody", "alice", "bob", "bob", "ghost"])
    assert [description.error_code for description in found] == [
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.NONE,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.RESOURCE_NOT_FOUND,
    ]
