"""A connection as a state machine: bytes and time in, effects out. It does no I/O and has no clock.

The transport calls `receive` with what it reads, `advance` at `deadline_ms`, and after each of them, and
whenever `on_output` is called, performs the effects that `drain` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from penstock.amqp.backend import Backend, FreshId, User
from penstock.amqp.channel_table import ChannelTable
from penstock.amqp.credentials import CheckCredentials, Peer, let_in_from_loopback
from penstock.amqp.effects import Close, Effect, Send, SetReading
from penstock.amqp.failures import not_allowed
from penstock.amqp.handshake import HEADER_BYTES, Handshake, HandshakeState
from penstock.amqp.heartbeats import Heartbeats
from penstock.amqp.link import ConnectionLink
from penstock.amqp.output import Output
from penstock.amqp.settings import ConnectionSettings
from penstock.wire.amqp.codec import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    decode_method,
)
from penstock.wire.amqp.connection_methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode, frame_error, octets
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    MIN_FRAME_MAX_BYTES,
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
)
from penstock.wire.amqp.method import Method

_KNOWN_FRAMES: Final = frozenset({FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT})


class ConnectionState(Enum):
    STARTING = "starting"  # until connection.open-ok
    RUNNING = "running"
    CLOSING = "closing"  # connection.close was sent
    CLOSED = "closed"


class ConnectionServices(NamedTuple):
    """What connections need from outside."""

    backend: Backend
    fresh_id: FreshId
    check_credentials: CheckCredentials = let_in_from_loopback
    settings: ConnectionSettings = ConnectionSettings()


class Connection:
    """Not thread-safe. Closed, it ignores everything."""

    def __init__(
        self, services: ConnectionServices, peer: Peer, on_output: Callable[[], None], now_ms: int
    ) -> None:
        settings = services.settings
        self.state = ConnectionState.STARTING
        self.channels: ChannelTable | None = None  # while the connection is open
        self.handshake = Handshake(settings, peer, services.check_credentials, services.backend)
        self._services = services
        self._settings = settings
        self._output = Output(on_output)
        self._header = b""
        self._splitter = FrameSplitter(max(MIN_FRAME_MAX_BYTES, settings.frame_max_bytes))
        self._link = ConnectionLink(
            self._output,
            self.handshake,
            self._fail,
            self._forget_channel,
            max_unconfirmed_bytes=settings.max_unconfirmed_bytes,
            max_output_bytes=settings.max_output_bytes,
        )
        self._is_reading = True
        self._held_since_ms: int | None = None  # a publish while the broker is blocked
        self._heartbeats = Heartbeats(0, now_ms)
        self._now_ms = now_ms
        self._give_up_ms: int | None = now_ms + settings.handshake_timeout_ms
        self._method: type[Method] | None = None  # of channel 0, that is handled

    # The transport ------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        """Handle what was read."""
        self._now_ms = now_ms
        if self.state is ConnectionState.CLOSED:
            return
        self._heartbeats.received(now_ms)
        try:
            if self.handshake.state is HandshakeState.HEADER:
                data = self._receive_header(data)
            self._splitter.feed(data)
            self._receive_frames()
        except AmqpError as error:
            self._lose_sync(error)
        self._output.announce()

    def advance(self, now_ms: int) -> None:
        """Handle the time: heartbeats and timeouts."""
        self._now_ms = now_ms
        if self.state is ConnectionState.CLOSED:
            return
        if not self._is_reading:
            self._heartbeats.received(now_ms)  # its heartbeats are not read
        if self._give_up_ms is not None and now_ms >= self._give_up_ms:
            self._close(f"timeout in state {self.state.value}")
        elif self._heartbeats.is_peer_lost(now_ms):
            seconds = self._heartbeats.interval_ms // 1000
            self._close(f"missed heartbeats from client, timeout: {seconds}s")
        elif self._blocked_close_ms is not None and now_ms >= self._blocked_close_ms:
            self.shut_down(self._link.blocked_reason or "blocked")
        elif self._heartbeats.must_send(now_ms):
            self._output.send_raw(HEARTBEAT)

    @property
    def deadline_ms(self) -> int | None:
        """Return when to call `advance`."""
        times = (self._give_up_ms, self._heartbeats.deadline_ms, self._blocked_close_ms)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def drain(self, now_ms: int) -> list[Effect]:
        """Return what to do, in order, and forget it."""
        self._link.send_confirms()
        self._update_reading(now_ms)
        effects = self._output.drain()
        if self._link.output_taken():
            self._resume_channels()  # what this adds is for the next turn
        if any(isinstance(effect, Send) for effect in effects):
            self._heartbeats.sent(now_ms)
        return effects

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the client reads what is sent. While it does not, nothing is delivered."""
        was_writable = self._link.is_socket_writable
        self._link.is_socket_writable = is_writable
        if is_writable and not was_writable:
            self._resume_channels()

    def connection_lost(self) -> None:
        """The socket is closed: end the channels and give up what the session owns."""
        self._terminate_channels()
        self.state = ConnectionState.CLOSED

    def shut_down(self, reason: str) -> None:
        """Close the connection for a reason of the broker's or the operator's."""
        if self.state is ConnectionState.STARTING:
            self._close(reason)
        else:
            self._fail(AmqpError(ReplyCode.CONNECTION_FORCED, reason), None)

    def block(self, reason: str) -> None:
        """The broker accepts no messages. A client is told when it publishes."""
        self._link.blocked_reason = reason

    def unblock(self) -> None:
        self._link.unblock()
        self._resume_channels()

    # Frames -------------------------------------------------------------------------------------------

    def _receive_header(self, data: bytes) -> bytes:
        """Take the protocol header. Return what follows it."""
        missing = HEADER_BYTES - len(self._header)
        self._header += data[:missing]
        if not self.handshake.accepts_header(self._header):
            self._output.send_raw(PROTOCOL_HEADER)
            self._close(f"bad header {self._header!r}")
        elif len(self._header) == HEADER_BYTES:
            self._output.send(self.handshake.start())
        return data[missing:]

    def _receive_frames(self) -> None:
        splitter = self._splitter
        while self.state is not ConnectionState.CLOSED:
            if self.channels is not None and self.channels.receive_fast(splitter):
                continue
            frame = splitter.next()
            if frame is None:
                return
            self._receive_frame(frame)

    def _receive_frame(self, frame: Frame) -> None:
        is_closing = self.state is ConnectionState.CLOSING
        try:
            if frame.type not in _KNOWN_FRAMES:
                raise frame_error(f"{_describe(frame)}: unknown_frame")
            if frame.channel == 0:
                self._receive_on_zero(frame)
            elif self.channels is not None and frame.type != FRAME_HEARTBEAT:
                self.channels.receive(frame)
            elif not is_closing:
                raise _unexpected(frame)
        except AmqpError as error:
            if is_closing:
                return
            self._fail_frame(error)

    # Methods of class connection ------------------------------------------------------------------------

    def _receive_on_zero(self, frame: Frame) -> None:
        if frame.type == FRAME_HEARTBEAT:
            if frame.at != frame.end:
                raise frame_error(f"{_describe(frame)}: unknown_frame")
            return
        if frame.type != FRAME_METHOD:
            raise _unexpected(frame)
        method = decode_method(frame.data, frame.at, frame.end)
        self._method = type(method)
        match method:
            case ConnectionClose():
                self._terminate_channels()
                self._output.send(ConnectionCloseOk())
                self._close("closed by the client")
            case ConnectionCloseOk() if self.state is ConnectionState.CLOSING:
                self._close("closed by the broker")
            case _ if self.state is ConnectionState.CLOSING:
                pass
            case ConnectionUpdateSecret() if self.state is ConnectionState.RUNNING:
                self.handshake.update_secret(method.new_secret, self._secret_updated)
            case _:
                self._continue_handshake(method)
        self._method = None

    def _continue_handshake(self, method: Method) -> None:
        handshake = self.handshake
        match handshake.state, method:
            case HandshakeState.STARTING, ConnectionStartOk():
                handshake.authenticate(method, self._authenticated)
            case HandshakeState.TUNING, ConnectionTuneOk():
                handshake.tuned(method)
                self._splitter.frame_max_bytes = handshake.frame_max_bytes
                self._heartbeats = Heartbeats(handshake.heartbeat_ms, self._now_ms)
            case HandshakeState.OPENING, ConnectionOpen():
                self._open(method)
            case state, _:
                name = "running" if state is HandshakeState.OPEN else state.value
                raise AmqpError(
                    ReplyCode.CHANNEL_ERROR, f"unexpected method in connection state {name}"
                )

    def _open(self, method: ConnectionOpen) -> None:
        services, settings = self._services, self._settings
        session = self.handshake.open(method, services.fresh_id("connection-"))
        self.channels = ChannelTable(
            session,
            services.backend,
            self.handshake,
            self._link,
            self._output.pieces,
            fresh_id=services.fresh_id,
            limits=settings.channel_limits,
            max_collected_bytes=settings.max_collected_bytes,
        )
        self.state = ConnectionState.RUNNING
        self._give_up_ms = None
        self._output.send(ConnectionOpenOk())

    def _authenticated(self, result: Any) -> None:
        if self.handshake.state is not HandshakeState.SECURING:
            return
        if self.state is not ConnectionState.STARTING:
            return
        if isinstance(result, AmqpError):
            self._refuse_login(result)
        else:
            self._output.send(self.handshake.tune(result))
        self._output.announce()

    def _refuse_login(self, error: AmqpError) -> None:
        """Tell the client, if it understands that, and close the socket after a while."""
        mechanism = self.handshake.mechanism
        if not self.handshake.has_capability("authentication_failure_close"):
            delay_ms = self._settings.silent_close_delay_ms
            self._close(f"{mechanism} login refused: {error.text}", delay_ms)
            return
        text = (
            f"Login was refused using authentication mechanism {mechanism}. "
            "For details see the broker logfile."
        )
        self._fail(AmqpError(ReplyCode.ACCESS_REFUSED, text), None)

    def _secret_updated(self, result: Any) -> None:
        if self.channels is None:
            return
        if isinstance(result, AmqpError) or not self._is_same_user(result):
            text = "New secret was refused by one of the backends"
            self._fail(not_allowed(text), ConnectionUpdateSecret)
            return
        self.channels.session.user = result
        for channel in self.channels:
            channel.recheck_permissions()
        self._output.send(ConnectionUpdateSecretOk())

    def _is_same_user(self, user: User) -> bool:
        assert self.channels is not None
        session = self.channels.session
        return user.name == session.user.name and user.may_enter(session.vhost)

    # Errors and the end -----------------------------------------------------------------------------------

    def _fail_frame(self, error: AmqpError) -> None:
        """Answer an error before the client is trusted with silence, later with connection.close."""
        state = self.handshake.state
        if state in (HandshakeState.STARTING, HandshakeState.SECURING) or (
            state is HandshakeState.TUNING and error.code is not ReplyCode.NOT_ALLOWED
        ):
            self._close(str(error), self._settings.silent_close_delay_ms)
            return
        self._fail(error, self._method)
        self._method = None

    def _fail(self, error: AmqpError, method: type[Method] | None) -> None:
        """Send connection.close and wait for the client's answer."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        self._terminate_channels()
        self.state = ConnectionState.CLOSING
        self._give_up_ms = self._now_ms + self._settings.close_timeout_ms
        index = 0 if method is None else method.index
        close = ConnectionClose(error.code, error.reply_text, index >> 16, index & 0xFFFF)
        self._output.send(close)

    def _lose_sync(self, error: AmqpError) -> None:
        """Close after bytes that are no frames: nothing after them can be understood."""
        if self.state is ConnectionState.RUNNING:
            self._fail(error, None)
        self._close(str(error), self._settings.silent_close_delay_ms)

    def _close(self, reason: str, delay_ms: int = 0) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self._terminate_channels()
        self.state = ConnectionState.CLOSED
        self._give_up_ms = None
        self._heartbeats = Heartbeats(0, self._now_ms)
        self._output.add(Close(reason, delay_ms))

    def _terminate_channels(self) -> None:
        """End all channels, and give up what the session owns."""
        channels, self.channels = self.channels, None
        if channels is not None:
            channels.terminate()

    # Output -----------------------------------------------------------------------------------------------

    def _resume_channels(self) -> None:
        for channel in self.channels or ():
            channel.resume()
        self._output.announce()

    def _update_reading(self, now_ms: int) -> None:
        if not self._link.has_held_publish:
            self._held_since_ms = None
        elif self._held_since_ms is None:
            self._held_since_ms = now_ms
        may_read = self.state is ConnectionState.CLOSING or self._link.may_read()
        if may_read != self._is_reading and self.state is not ConnectionState.CLOSED:
            self._is_reading = may_read
            self._output.add(SetReading(may_read))

    def _forget_channel(self, number: int) -> None:
        if self.channels is not None:
            self.channels.forget(number)

    @property
    def _blocked_close_ms(self) -> int | None:
        if self._held_since_ms is None:
            return None
        return self._held_since_ms + self._settings.blocked_timeout_ms


def _describe(frame: Frame) -> str:
    return f"type {frame.type}, {octets(frame.data[frame.at : frame.end])}"


def _unexpected(frame: Frame) -> AmqpError:
    return AmqpError(ReplyCode.UNEXPECTED_FRAME, _describe(frame))
