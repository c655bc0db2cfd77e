"""The SASL exchange of one connection: bytes in, a challenge or a verdict out.

A mechanism is a state machine without I/O. Time, random bytes, users and keys are arguments.
`SaslServer` wraps it: it limits sizes and steps, and no bytes are accepted after the verdict.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from penstock.security.resources import Principal

MAX_STEPS: Final = 4  # messages of the client; SCRAM needs 2, OAUTHBEARER with an error 2
MAX_MESSAGE_BYTES: Final = 65_536  # default of sasl.server.max.receive.size
MIN_SESSION_MS: Final = 1  # 0 in a response means: the session never ends


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


# Kafka's texts of SaslAuthenticate errors. One text for every reason, so that a client
# cannot tell an unknown user from a wrong password.
FAILURE_MESSAGES: Final[Mapping[Mechanism, str]] = {
    Mechanism.PLAIN: "Authentication failed: Invalid username or password",
    Mechanism.SCRAM_SHA_256: "Authentication failed during authentication due to invalid "
    "credentials with SASL mechanism SCRAM-SHA-256",
    Mechanism.SCRAM_SHA_512: "Authentication failed during authentication due to invalid "
    "credentials with SASL mechanism SCRAM-SHA-512",
    Mechanism.OAUTHBEARER: "Authentication failed during authentication due to invalid "
    "credentials with SASL mechanism OAUTHBEARER",
}


class Challenge(NamedTuple):
    """The exchange goes on: send `data` and wait for the next message."""

    data: bytes


class Done(NamedTuple):
    """The client is authenticated. Send `data` as the last response."""

    principal: Principal
    data: bytes = b""
    expires_ms: int | None = None  # wall-clock end of the credential; None: it has no end
    groups: tuple[Principal, ...] = ()


class Refused(NamedTuple):
    """The exchange failed. `message` is for the client, `reason` only for the broker's log.

    `user` is the name that the client claims, if it got that far.
    """

    message: str
    reason: str
    user: str | None = None


Outcome = Challenge | Done | Refused


class Exchange(Protocol):
    """The server half of one mechanism."""

    def step(self, data: bytes) -> Outcome: ...


class SaslServer:
    """Runs one exchange within its limits. A verdict is final: later messages are refused."""

    __slots__ = ("_exchange", "_limit", "_over", "_steps", "mechanism")

    def __init__(
        self, mechanism: Mechanism, exchange: Exchange, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.mechanism = mechanism
        self._exchange = exchange
        self._limit = max_message_bytes
        self._steps = 0
        self._over = False

    def step(self, data: bytes) -> Outcome:
        outcome = self._step(data)
        self._over = not isinstance(outcome, Challenge)
        return outcome

    def _step(self, data: bytes) -> Outcome:
        if self._over:
            return self._refuse("the exchange is over")
        if len(data) > self._limit:
            return self._refuse(f"message of {len(data)} bytes; the limit is {self._limit}")
        self._steps += 1
        if self._steps > MAX_STEPS:
            return self._refuse(f"more than {MAX_STEPS} messages")
        return self._exchange.step(data)

    def _refuse(self, reason: str) -> Refused:
        return Refused(FAILURE_MESSAGES[self.mechanism], reason)


def session_lifetime_ms(now_ms: int, expires_ms: int | None, max_reauth_ms: int) -> int:
    """Return `session_lifetime_ms` of SaslAuthenticate (KIP-368): 0 if the session has no end.

    The shorter of connections.max.reauth.ms and the rest of the credential's life counts.
    A credential without an end leaves the setting alone.
    """
    ends = [max_reauth_ms] if max_reauth_ms > 0 else []
    if expires_ms is not None:
        ends.append(expires_ms - now_ms)
    return max(min(ends), MIN_SESSION_MS) if ends else 0


def mechanism_change_error(before: Mechanism, after: Mechanism) -> str | None:
    """Return why a re-authentication must not begin, or None. The mechanism must stay the same."""
    if before is after:
        return None
    return (
        f"SASL mechanism '{after}' requested by client is not supported "
        f"for re-authentication of mechanism '{before}'"
    )


def principal_change_error(before: Principal, after: Principal) -> str | None:
    """Return why a re-authentication fails at its end, or None. The principal must stay the same."""
    if before == after:
        return None
    return (
        "Cannot change principals during re-authentication from "
        f"{before.kind}.{before.name}: {after.kind}.{after.name}"
    )


def enabled_mechanisms(setting: str) -> tuple[Mechanism, ...]:
    """Return the mechanisms of `sasl.enabled.mechanisms`, in order. Raise ValueError for others."""
    names = [name.strip() for name in setting.split(",") if name.strip()]
    known = {mechanism.value for mechanism in Mechanism}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"sasl.enabled.mechanisms: {unknown[0]!r} is not supported "
            f"(supported: {', '.join(Mechanism)})"
        )
    return tuple(dict.fromkeys(Mechanism(name) for name in names))
