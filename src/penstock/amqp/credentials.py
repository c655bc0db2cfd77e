"""SASL mechanisms: what a client sends to say who it is. Others decide whether it may connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from penstock.amqp.backend import Reply, Unrestricted, User
from penstock.wire.amqp.errors import AmqpError, ReplyCode, syntax_error
from penstock.wire.amqp.tables import decode_table

PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"


class Peer(NamedTuple):
    """The other end of a connection, as the transport knows it."""

    host: str
    is_loopback: bool
    certificate_name: str | None = None  # from a verified TLS client certificate


class Credentials(NamedTuple):
    mechanism: str
    name: str
    secret: bytes | None  # None with EXTERNAL: the transport has verified the name


CheckCredentials: TypeAlias = Callable[[Credentials, Peer, Reply[User]], None]


def offered_mechanisms(peer: Peer) -> list[str]:
    """Return the mechanisms that this peer can use, the preferred first."""
    return [PLAIN, AMQPLAIN, *([EXTERNAL] if peer.certificate_name is not None else [])]


def parse_response(mechanism: str, response: bytes, peer: Peer) -> Credentials:
    """Return what the response of connection.start-ok says."""
    if mechanism not in offered_mechanisms(peer):
        raise AmqpError(
            ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'"
        )
    if mechanism == EXTERNAL:
        assert peer.certificate_name is not None, "offered only with a certificate"
        return Credentials(EXTERNAL, peer.certificate_name, None)
    return _parse_plain(response) if mechanism == PLAIN else _parse_amqplain(response)


def _parse_plain(response: bytes) -> Credentials:
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0] not in (b"", parts[1]):  # nobody acts as somebody else
        raise syntax_error(f"PLAIN response of {len(response)} bytes invalid")
    return Credentials(PLAIN, parts[1].decode(errors="surrogateescape"), parts[2])


def _parse_amqplain(response: bytes) -> Credentials:
    """Parse a field table without its size."""
    sized = len(response).to_bytes(4, "big") + response
    table, _ = decode_table(sized, 0, len(sized))
    if "LOGIN" not in table or "PASSWORD" not in table:
        raise syntax_error("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    (name_type, name), (secret_type, secret) = table["LOGIN"], table["PASSWORD"]
    if name_type not in _TEXTS or secret_type not in _TEXTS:
        raise syntax_error("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
    return Credentials(AMQPLAIN, _as_text(name), _as_bytes(secret))


_TEXTS: Final = frozenset("Sx")


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode(errors="surrogateescape")


def let_in_from_loopback(credentials: Credentials, peer: Peer, reply: Reply[User]) -> None:
    """Accept any name from loopback and nobody else: the rule while the store has no users."""
    if peer.is_loopback:
        reply(Unrestricted(credentials.name))
    else:
        text = f"user '{credentials.name}' can only connect via localhost"
        reply(AmqpError(ReplyCode.ACCESS_REFUSED, text))
