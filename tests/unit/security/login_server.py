"""A server for one thing: real clients log in to the exchanges over a socket."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.model.errors import ErrorCode
from penstock.security.sasl import Challenge, Done, Exchange, Mechanism, Outcome, SaslServer
from penstock.wire.api_keys import ApiKey
from penstock.wire.header import decode_request_header, encode_response_header
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from penstock.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.schema import Message

MakeExchange = Callable[[], Exchange]
_VERSIONS = {
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.METADATA: (0, 8),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


class LoginServer(socketserver.ThreadingTCPServer):
    daemon_threads = False
    allow_reuse_address = True

    def __init__(self, mechanisms: dict[Mechanism, MakeExchange], lifetime_ms: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.mechanisms = mechanisms
        self.lifetime_ms = lifetime_ms
        self.outcomes: list[Outcome] = []
        self.sockets: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def done(self) -> list[Done]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Done)]


class _Connection(socketserver.BaseRequestHandler):
    server: LoginServer

    def setup(self) -> None:
        self._exchange: SaslServer | None = None
        self._is_ready = False
        self.server.sockets.append(self.request)

    def handle(self) -> None:
        try:
            while frame := self._frame():
                response = self._respond(memoryview(frame))
                if response is None:
                    return
                self.request.sendall(len(response).to_bytes(4, "big") + response)
        except OSError:
            pass  # the client is gone

    def _frame(self) -> bytes:
        file = self.request.makefile("rb", buffering=0)
        with file:
            size = file.read(4)
            if not size:
                return b""
            data = b""
            while len(data) < int.from_bytes(size, "big"):
                piece = file.read(int.from_bytes(size, "big") - len(data))
                if not piece:
                    return b""
                data += piece
            return data

    def _respond(self, frame: memoryview) -> bytes | None:
        header, at = decode_request_header(frame)
        key, version = ApiKey(header.api_key), header.api_version
        if not _VERSIONS[key][0] <= version <= _VERSIONS[key][1]:
            assert key is ApiKey.API_VERSIONS, f"{key.name} v{version} was not offered"
            body: Message = self._api_versions(ErrorCode.UNSUPPORTED_VERSION)
            version = 0
        else:
            answer = self._handle(key, version, frame[at:])
            if answer is None:
                return None
            body = answer
        return encode_response_header(header.correlation_id, key, version) + body.encode(version)

    def _handle(self, key: ApiKey, version: int, data: memoryview) -> Message | None:
        if key is ApiKey.API_VERSIONS:
            ApiVersionsRequest.decode(data, version)
            return self._api_versions(ErrorCode.NONE)
        if key is ApiKey.SASL_HANDSHAKE:
            return self._handshake(SaslHandshakeRequest.decode(data, version).mechanism)
        if key is ApiKey.SASL_AUTHENTICATE:
            return self._authenticate(SaslAuthenticateRequest.decode(data, version).auth_bytes)
        if not self._is_ready:
            return None  # hangs up
        MetadataRequest.decode(data, version)
        broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.server.port)
        return MetadataResponse(brokers=[broker], cluster_id="c", controller_id=1, topics=[])

    def _api_versions(self, error: ErrorCode) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            error_code=error,
            api_keys=[
                ApiVersion(api_key=key, min_version=least, max_version=most)
                for key, (least, most) in _VERSIONS.items()
            ],
        )

    def _handshake(self, name: str) -> SaslHandshakeResponse:
        offered = {mechanism.value: mechanism for mechanism in self.server.mechanisms}
        error = ErrorCode.NONE
        if name in offered:
            mechanism = offered[name]
            self._exchange = SaslServer(mechanism, self.server.mechanisms[mechanism]())
        else:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=error, mechanisms=list(offered))

    def _authenticate(self, data: bytes) -> SaslAuthenticateResponse:
        assert self._exchange is not None, "a handshake comes first"
        outcome = self._exchange.step(bytes(data))
        self.server.outcomes.append(outcome)
        if isinstance(outcome, Challenge):
            return SaslAuthenticateResponse(error_message=None, auth_bytes=outcome.data)
        if isinstance(outcome, Done):
            self._is_ready = True
            return SaslAuthenticateResponse(
                error_message=None,
                auth_bytes=outcome.data,
                session_lifetime_ms=self.server.lifetime_ms,
            )
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=outcome.message
        )


@contextmanager
def login_server(mechanisms: dict[Mechanism, MakeExchange], lifetime_ms: int = 0) -> Iterator[Any]:
    with LoginServer(mechanisms, lifetime_ms) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for sock in server.sockets:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
