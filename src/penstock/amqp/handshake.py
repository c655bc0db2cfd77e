"""The beginning of a connection: protocol header, authentication, tuning, opening a virtual host."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.amqp.backend import Administration, Reply, Session, User
from penstock.amqp.credentials import (
    CheckCredentials,
    Credentials,
    Peer,
    offered_mechanisms,
    parse_response,
)
from penstock.amqp.failures import not_allowed
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.connection_methods import (
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from penstock.wire.amqp.frames import (
    MIN_FRAME_MAX_BYTES,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_0_9,
)
from penstock.wire.amqp.tables import FieldTable

HEADER_BYTES: Final = 8
_MIN_CHANNEL_MAX: Final = 1


class HandshakeState(Enum):
    HEADER = "header"
    STARTING = "starting"
    SECURING = "securing"  # others check the credentials
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"


class Handshake:
    """Remembers what both sides agreed on. The connection sends what the methods return."""

    def __init__(
        self,
        settings: ConnectionSettings,
        peer: Peer,
        check_credentials: CheckCredentials,
        administration: Administration,
    ) -> None:
        self.state = HandshakeState.HEADER
        self.user: User | None = None
        self.mechanism = ""
        self.channel_max = settings.channel_max
        self.frame_max_bytes = settings.frame_max_bytes
        self.heartbeat_ms = 0
        self.client_properties: FieldTable = {}
        self._capabilities: FieldTable = {}
        self._settings = settings
        self._peer = peer
        self._check_credentials = check_credentials
        self._administration = administration

    def has_capability(self, name: str) -> bool:
        return self._capabilities.get(name) == ("t", True)

    def accepts_header(self, received: bytes) -> bool:
        """Return whether the client speaks this protocol. `received` may be a part of the header."""
        return PROTOCOL_HEADER.startswith(received) or PROTOCOL_HEADER_0_9.startswith(received)

    def start(self) -> ConnectionStart:
        self.state = HandshakeState.STARTING
        return ConnectionStart(
            server_properties=self._settings.server_properties(),
            mechanisms=" ".join(offered_mechanisms(self._peer)).encode(),
        )

    def authenticate(self, method: ConnectionStartOk, reply: Reply[User]) -> None:
        """Read connection.start-ok and have the credentials checked."""
        self.client_properties = method.client_properties
        letter, capabilities = method.client_properties.get("capabilities", ("V", None))
        if letter == "F":
            self._capabilities = capabilities
        self.mechanism = method.mechanism
        self.state = HandshakeState.SECURING
        credentials = parse_response(method.mechanism, method.response, self._peer)
        self._check_credentials(credentials, self._peer, reply)

    def tune(self, user: User) -> ConnectionTune:
        self.user = user
        self.state = HandshakeState.TUNING
        settings = self._settings
        return ConnectionTune(settings.channel_max, settings.frame_max_bytes, settings.heartbeat_s)

    def tuned(self, method: ConnectionTuneOk) -> None:
        """Take what the client chose. It may lower the limits, or leave them as they are."""
        settings = self._settings
        _check_negotiated(
            "frame_max", method.frame_max, MIN_FRAME_MAX_BYTES, settings.frame_max_bytes
        )
        _check_negotiated("channel_max", method.channel_max, _MIN_CHANNEL_MAX, settings.channel_max)
        self.frame_max_bytes = method.frame_max
        self.channel_max = method.channel_max
        self.heartbeat_ms = method.heartbeat * 1000
        self.state = HandshakeState.OPENING

    def open(self, method: ConnectionOpen, session_id: str) -> Session:
        user, vhost = self.user, method.virtual_host
        assert user is not None, "only authenticated clients open"
        if not self._administration.has_vhost(vhost):
            raise not_allowed(f"vhost {vhost} not found")
        if not user.may_enter(vhost):
            raise not_allowed(f"access to vhost '{vhost}' refused for user '{user.name}'")
        self.state = HandshakeState.OPEN
        return Session(session_id, user, vhost)

    def update_secret(self, secret: bytes, reply: Reply[User]) -> None:
        """Have a new secret of the same user checked."""
        assert self.user is not None
        credentials = Credentials(self.mechanism, self.user.name, secret)
        self._check_credentials(credentials, self._peer, reply)


def _check_negotiated(name: str, value: int, least: int, most: int) -> None:
    """Check a limit that the client chose. 0 means without a limit."""
    shown = f"{name} = {value}{' (no limit)' if name == 'channel_max' and not value else ''}"
    if value and value < least:
        raise not_allowed(f"negotiated {shown} is lower than the minimum allowed value ({least})")
    if most and (not value or value > most):
        raise not_allowed(f"negotiated {shown} is higher than the maximum allowed value ({most})")
