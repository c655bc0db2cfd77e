"""AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554) as pure functions.

All changes of one user succeed or fail together. Users are independent of each other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.model.errors import ErrorCode
from penstock.security.credentials import (
    HASHES,
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    ScramCredential,
    User,
    credential_from_salted,
    user_name_problem,
)
from penstock.security.sasl import Mechanism

MAX_USERS: Final = 100_000  # default of penstock.users.max
MECHANISM_NUMBERS: Final = {1: Mechanism.SCRAM_SHA_256, 2: Mechanism.SCRAM_SHA_512}  # on the wire
_NUMBERS: Final = {mechanism: number for number, mechanism in MECHANISM_NUMBERS.items()}
_DIGEST_BYTES: Final = {Mechanism.SCRAM_SHA_256: 32, Mechanism.SCRAM_SHA_512: 64}
assert _DIGEST_BYTES.keys() == HASHES.keys()


class Deletion(NamedTuple):
    name: str
    mechanism: int


class Upsertion(NamedTuple):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion(name={self.name!r}, mechanism={self.mechanism})"


class UserResult(NamedTuple):
    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class Alteration(NamedTuple):
    """Results in the order of the request, and the users to write; None deletes a record."""

    results: list[UserResult]
    changed: dict[str, User | None]


class CredentialInfo(NamedTuple):
    mechanism: int
    iterations: int


class Description(NamedTuple):
    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


def alter(
    users: Mapping[str, User],
    deletions: Sequence[Deletion],
    upsertions: Sequence[Upsertion],
    now_ms: int,
    max_users: int = MAX_USERS,
) -> Alteration:
    """Decide one request. `users` are the present records."""
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    named = Counter((change.name, change.mechanism) for change in changes)
    results = {change.name: UserResult(change.name) for change in changes}
    for deletion in deletions:
        _record(results, deletion.name, _deletion_error(deletion, users))
    for upsertion in upsertions:
        _record(results, upsertion.name, _upsertion_error(upsertion))
    for (name, _), count in named.items():
        if count > 1:
            message = "A user credential cannot be altered twice in the same request"
            _record(results, name, (ErrorCode.DUPLICATE_RESOURCE, message))
    room = max_users - len(users)
    new = [name for name, result in results.items() if not result.error_code and name not in users]
    for name in new[max(room, 0) :]:
        message = f"the cluster has {len(users)} users; the limit is {max_users}"
        _record(results, name, (ErrorCode.POLICY_VIOLATION, message))
    changed = _changed(users, deletions, upsertions, results, now_ms)
    return Alteration(list(results.values()), changed)


def describe(users: Mapping[str, User], names: Sequence[str] | None) -> list[Description]:
    """Describe the named users, or every user with credentials if no name is given."""
    if not names:
        return [
            _description(name, user) for name, user in sorted(users.items()) if user.credentials
        ]
    return [_describe_named(users, name, count) for name, count in Counter(names).items()]


def mechanism_of(number: int) -> Mechanism | None:
    return MECHANISM_NUMBERS.get(number)


_Error = tuple[ErrorCode, str]


def _record(results: dict[str, UserResult], name: str, error: _Error | None) -> None:
    """Keep the first error of a user."""
    if error is not None and results[name].error_code is ErrorCode.NONE:
        results[name] = UserResult(name, *error)


def _deletion_error(deletion: Deletion, users: Mapping[str, User]) -> _Error | None:
    if not deletion.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    mechanism = mechanism_of(deletion.mechanism)
    if mechanism is None:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    user = users.get(deletion.name)
    if user is None or mechanism not in user.credentials:
        message = "Attempt to delete a user credential that does not exist"
        return ErrorCode.RESOURCE_NOT_FOUND, message
    return None


def _upsertion_error(upsertion: Upsertion) -> _Error | None:
    if problem := user_name_problem(upsertion.name):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, problem
    mechanism = mechanism_of(upsertion.mechanism)
    if mechanism is None:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if problem := _keys_problem(upsertion, mechanism):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, problem
    return None


def _keys_problem(upsertion: Upsertion, mechanism: Mechanism) -> str | None:
    if upsertion.iterations < MIN_ITERATIONS:
        return f"Too few iterations: {upsertion.iterations}; the minimum is {MIN_ITERATIONS}"
    if upsertion.iterations > MAX_ITERATIONS:
        return f"Too many iterations: {upsertion.iterations}; the maximum is {MAX_ITERATIONS}"
    if not 0 < len(upsertion.salt) <= MAX_SALT_BYTES:
        return f"a salt of {len(upsertion.salt)} bytes; 1 to {MAX_SALT_BYTES} are allowed"
    expected = _DIGEST_BYTES[mechanism]
    if len(upsertion.salted_password) != expected:
        return (
            f"a salted password of {len(upsertion.salted_password)} bytes; "
            f"{mechanism} has {expected}"
        )
    return None


def _changed(
    users: Mapping[str, User],
    deletions: Iterable[Deletion],
    upsertions: Iterable[Upsertion],
    results: Mapping[str, UserResult],
    now_ms: int,
) -> dict[str, User | None]:
    credentials: dict[str, dict[Mechanism, ScramCredential]] = {
        name: dict(users[name].credentials) if name in users else {}
        for name, result in results.items()
        if result.error_code is ErrorCode.NONE
    }
    for deletion in deletions:
        if deletion.name in credentials:
            del credentials[deletion.name][MECHANISM_NUMBERS[deletion.mechanism]]
    for upsertion in upsertions:
        if upsertion.name in credentials:
            mechanism = MECHANISM_NUMBERS[upsertion.mechanism]
            credentials[upsertion.name][mechanism] = credential_from_salted(
                mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations
            )
    return {
        name: _user_with(users.get(name), remaining, now_ms)
        for name, remaining in credentials.items()
    }


def _user_with(
    before: User | None, credentials: Mapping[Mechanism, ScramCredential], now_ms: int
) -> User | None:
    """Return the user with new credentials. A user without any credential is deleted."""
    if not credentials:
        return None
    if before is None:
        return User(credentials, created_ms=now_ms, changed_ms=now_ms)
    return replace(before, credentials=credentials, changed_ms=now_ms)


def _describe_named(users: Mapping[str, User], name: str, count: int) -> Description:
    if count > 1:
        message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        return Description(name, ErrorCode.DUPLICATE_RESOURCE, message)
    user = users.get(name)
    if user is None or not user.credentials:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return Description(name, ErrorCode.RESOURCE_NOT_FOUND, message)
    return _description(name, user)


def _description(name: str, user: User) -> Description:
    infos = tuple(
        CredentialInfo(_NUMBERS[mechanism], credential.iterations)
        for mechanism, credential in sorted(user.credentials.items())
    )
    return Description(name, credential_infos=infos)
