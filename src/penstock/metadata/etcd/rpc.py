"""Calls to etcd: whichever member answers. A question is repeated elsewhere; a commit only if nobody can have taken it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from penstock.metadata.etcd import messages
from penstock.metadata.etcd.faults import ELSEWHERE, Fault, Trouble, trouble_of
from penstock.metadata.etcd.members import Members, check_version
from penstock.metadata.etcd.settings import EtcdSettings
from penstock.metadata.store import StoreError

_PAUSE_S: Final = 0.05
_GREETING_SHARE: Final = 2  # of the time for an answer: who is there says so at once, leader or not
_AUTH_IS_OFF: Final = "authentication is not enabled"

OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),  # to connect; a busy member takes its time to greet
    ("grpc.max_reconnect_backoff_ms", 500),
    # etcd ends connections that are probed more often than every 5 s
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 1000),  # and of TCP, for a host that is cut off
    ("grpc.http2.max_pings_without_data", 0),
)


class Method(NamedTuple):
    path: str
    request: Any
    response: Any
    is_linearizable: bool = False


RANGE: Final = Method(
    "/etcdserverpb.KV/Range", messages.RangeRequest, messages.RangeResponse, is_linearizable=True
)
TXN: Final = Method(
    "/etcdserverpb.KV/Txn", messages.TxnRequest, messages.TxnResponse, is_linearizable=True
)
GRANT: Final = Method(
    "/etcdserverpb.Lease/LeaseGrant", messages.GrantRequest, messages.GrantResponse
)
REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", messages.RevokeRequest, messages.RevokeResponse
)
KEEP_ALIVE: Final = Method(  # a stream of etcd's, of which one exchange is used at a time
    "/etcdserverpb.Lease/LeaseKeepAlive", messages.KeepAliveRequest, messages.KeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", messages.WatchRequest, messages.WatchResponse)
STATUS: Final = Method(
    "/etcdserverpb.Maintenance/Status", messages.StatusRequest, messages.StatusResponse
)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", messages.AuthenticateRequest, messages.AuthenticateResponse
)


def metadata_of(token: str) -> tuple[tuple[str, str], ...]:
    """A member that has lost its quorum shall say so, instead of leaving us with an old view."""
    needs_leader = ("hasleader", "true")
    return (needs_leader, ("token", token)) if token else (needs_leader,)


def credentials_of(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if settings.ca is None:
        return None
    ca, cert, key = settings.certificates
    return grpc.ssl_channel_credentials(ca, key, cert)


def authentication_of(settings: EtcdSettings) -> Any:
    return messages.AuthenticateRequest(name=settings.user or "", password=settings.password)


def is_auth_off(trouble: Trouble) -> bool:
    return trouble.fault is Fault.REFUSED and _AUTH_IS_OFF in str(trouble)


class EtcdClient:
    """Belongs to the event loop in which it is first used."""

    def __init__(
        self, settings: EtcdSettings, *, first_member: int, timeout_s: float, patience_s: float
    ) -> None:
        """`timeout_s`: for one answer of one member. `patience_s`: until some member must have answered."""
        self.members = Members(settings.members, first_member)
        self._settings = settings
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._greeted: set[str] = set()
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._closed = False

    async def call(self, method: Method, request: Any, *, is_repeatable: bool = True) -> Any:
        """The answer of whichever member gives one. Raises Ambiguous if it must not be asked twice."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._patience_s
        while True:
            member = self.members.current
            try:
                return await self.ask(member, method, request)
            except Trouble as trouble:
                if trouble.fault in (Fault.UNKNOWN, Fault.STALE) and not is_repeatable:
                    raise trouble.ambiguous() from trouble
                if trouble.fault not in ELSEWHERE or clock() >= end_s:
                    raise trouble.explained() from trouble
            await asyncio.sleep(_PAUSE_S)

    async def ask(self, member: str, method: Method, request: Any) -> Any:
        """One member; once more if it wants a new token. Raises Trouble, and moves on if another may do better."""
        token = await self.greet(member)
        try:
            return await self._checked(member, method, request, token)
        except Trouble as trouble:
            if trouble.fault is not Fault.NO_TOKEN or self._settings.user is None:
                raise
        self.forget_token(token)
        return await self._checked(member, method, request, await self.greet(member))

    async def greet(self, member: str) -> str:
        """Before a question: is it an etcd that can be relied on? Returns the token to ask with."""
        try:
            return await self._greet(member)
        except Trouble as trouble:
            raise trouble.before_the_question() from trouble

    async def _greet(self, member: str) -> str:
        if member not in self._greeted:
            status = await self._send(member, STATUS, messages.StatusRequest(), "")
            check_version(member, status.version)
            self.members.accept(member, status.header)
            self._greeted.add(member)
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticated(member)
            return self._token

    def forget_token(self, token: str) -> None:
        if self._token == token:
            self._token = None

    def open_watch(self, member: str, requests: AsyncIterator[Any], token: str) -> Any:
        stream = self._channel(member).stream_stream(
            WATCH.path,
            request_serializer=WATCH.request.SerializeToString,
            response_deserializer=WATCH.response.FromString,
        )
        return stream(requests, metadata=metadata_of(token))

    def leave(self, member: str, trouble: Trouble) -> None:
        """It does not answer as it should: the next question goes to another, and it is checked again later."""
        if trouble.is_over:
            return
        self._greeted.discard(member)
        self.members.leave(member, is_silent=trouble.is_silent)

    async def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            await channel.close()

    def refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(f"metadata store etcd {self.members.current} is closed")

    async def _authenticated(self, member: str) -> str:
        if self._settings.user is None:
            return ""
        try:
            question = authentication_of(self._settings)
            response = await self._send(member, AUTHENTICATE, question, "")
        except Trouble as trouble:
            if is_auth_off(trouble):
                return ""
            raise
        return str(response.token)

    async def _checked(self, member: str, method: Method, request: Any, token: str) -> Any:
        least = self.members.known if method.is_linearizable else None
        response = await self._send(member, method, request, token)
        try:
            self.members.accept(member, response.header, least)
        except Trouble as trouble:
            self.leave(member, trouble)
            raise
        return response

    async def _send(self, member: str, method: Method, request: Any, token: str) -> Any:
        self.refuse_if_closed()
        send = self._channel(member).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            timeout_s = self._timeout_s / (_GREETING_SHARE if method is STATUS else 1)
            return await send(request, timeout=timeout_s, metadata=metadata_of(token))
        except grpc.aio.AioRpcError as error:
            trouble = trouble_of(member, error.code(), error.details() or "")
            if trouble.fault in ELSEWHERE:
                self.leave(member, trouble)
            raise trouble from error
        except asyncio.CancelledError:
            if not was_cancelled():  # the channel was closed under it
                self.refuse_if_closed()
            raise

    def _channel(self, member: str) -> grpc.aio.Channel:
        channel = self._channels.get(member)
        if channel is None:
            self.refuse_if_closed()
            credentials = credentials_of(self._settings)
            if credentials is None:
                channel = grpc.aio.insecure_channel(member, options=OPTIONS)
            else:
                channel = grpc.aio.secure_channel(member, credentials, options=OPTIONS)
            self._channels[member] = channel
        return channel


def was_cancelled() -> bool:
    """Whether somebody cancelled this task: grpc raises the same error when only a call has ended."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
