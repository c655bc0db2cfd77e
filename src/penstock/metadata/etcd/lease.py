"""Keeps leases from any thread, with connections of its own: an event loop that is busy cannot delay it."""

from threading import Lock
from typing import Any, Final

import grpc

from penstock.metadata.etcd import messages
from penstock.metadata.etcd.faults import ELSEWHERE, Fault, Trouble, trouble_of
from penstock.metadata.etcd.members import Members
from penstock.metadata.etcd.rpc import (
    AUTHENTICATE,
    KEEP_ALIVE,
    OPTIONS,
    Method,
    authentication_of,
    credentials_of,
    is_auth_off,
    metadata_of,
)
from penstock.metadata.etcd.settings import EtcdSettings
from penstock.metadata.store import LeaseId, StoreError

_TIMEOUT_S: Final = 0.6  # three members in turn, within the shortest useful lease of 2 s


class LeaseKeeper:
    def __init__(self, settings: EtcdSettings, first_member: int) -> None:
        self._settings = settings
        self._members = Members(settings.members, first_member)
        self._channels: dict[str, grpc.Channel] = {}
        self._token: str | None = None
        self._turn = Lock()
        self._closed = False

    def renew(self, lease: LeaseId) -> int:
        """Milliseconds that the lease lives on; 0 or less: it is gone. Each member is asked once, until one answers."""
        with self._turn:
            tries = len(self._members) + 1  # one more: a token may have ended
            while True:
                tries -= 1
                member = self._members.current
                try:
                    response = self._ask(member, messages.KeepAliveRequest(id=lease))
                    self._members.accept(member, response.header)
                    return int(response.ttl) * 1000
                except Trouble as trouble:
                    if trouble.fault is Fault.NO_TOKEN:
                        self._token = None
                    elif trouble.fault in ELSEWHERE:
                        self._members.leave(member, is_silent=trouble.is_silent)
                    if tries == 0 or trouble.fault not in {*ELSEWHERE, Fault.NO_TOKEN}:
                        raise trouble.explained() from trouble

    def close(self) -> None:
        with self._turn:
            self._closed = True
            for channel in self._channels.values():
                channel.close()

    def _ask(self, member: str, request: Any) -> Any:
        if self._token is None:
            self._token = self._authenticated(member)
        return self._send(member, KEEP_ALIVE, request, self._token)

    def _authenticated(self, member: str) -> str:
        if self._settings.user is None:
            return ""
        try:
            response = self._send(member, AUTHENTICATE, authentication_of(self._settings), "")
        except Trouble as trouble:
            if is_auth_off(trouble):
                return ""
            raise
        return str(response.token)

    def _send(self, member: str, method: Method, request: Any, token: str) -> Any:
        send: Any = self._channel(member).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            return send(request, timeout=_TIMEOUT_S, metadata=metadata_of(token))
        except grpc.RpcError as error:
            failed: Any = error  # a call as well, which the stubs do not say
            raise trouble_of(member, failed.code(), failed.details() or "") from error

    def _channel(self, member: str) -> grpc.Channel:
        if self._closed:
            raise StoreError(f"metadata store etcd {member} is closed")
        channel = self._channels.get(member)
        if channel is None:
            credentials = credentials_of(self._settings)
            if credentials is None:
                channel = grpc.insecure_channel(member, options=OPTIONS)
            else:
                channel = grpc.secure_channel(member, credentials, options=OPTIONS)
            self._channels[member] = channel
        return channel
