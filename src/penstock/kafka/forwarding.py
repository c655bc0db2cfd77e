"""Requests that only the controller can carry out, at every broker: the others pass them on as they came (O8, KIP-590)."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.kafka.context import Context
from penstock.kafka.security import ANONYMOUS, Principal
from penstock.kafka.timeouts import patience_ms
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.header import decode_response_header, encode_request_header
from penstock.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.schema import Message

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Handle = Callable[[Any, Context], Any]

_LANE: Final = "forward"
_SLACK_MS: Final = (
    2_000  # for the way: the controller itself keeps to the time that the client gave
)
_SIGHT_S: Final = 5.0


def at_controller(response: type[Response], handle: Handle) -> Handle:
    """`handle` at the controller; elsewhere the controller's answer."""

    def handled(request: Message, context: Context) -> Response | Awaitable[Response | None] | None:
        if context.cluster.is_controller:
            answer: Response | Awaitable[Response | None] | None = handle(request, context)
            return answer
        return _forwarded(request, response, handle, context)

    return handled


async def _forwarded(
    request: Message, response: type[Response], handle: Handle, context: Context
) -> Response:
    timeout_ms = patience_ms(getattr(request, "timeout_ms", 0)) + _SLACK_MS
    answer = await context.cluster.ask_controller(
        _enveloped(request, context), EnvelopeResponse, timeout_ms=timeout_ms, lane=_LANE
    )
    if answer is None:
        here = handle(request, context)
        local: Response = await here if isinstance(here, Awaitable) else here
        return local
    if answer.error_code != ErrorCode.NONE or answer.response_data is None:
        raise BrokerError("the controller refused it", ErrorCode(answer.error_code))
    frame, version = memoryview(answer.response_data), context.version
    _, start = decode_response_header(frame, response.api_key, version)
    await _see_it_done(context)
    return response.decode(frame[start:], version)


async def _see_it_done(context: Context) -> None:
    """Who creates a topic here and then asks for it here finds it."""
    try:
        async with asyncio.timeout(_SIGHT_S):
            await context.cluster.catch_up()
    except (StoreError, TimeoutError):
        return


def _enveloped(request: Message, context: Context) -> EnvelopeRequest:
    return EnvelopeRequest(
        request_data=encode_request_header(context.header) + request.encode(context.version),
        request_principal=str(context.principal).encode(),
        client_host_address=_packed(context.client_host),
    )


def original_principal(sent: bytes | None) -> Principal:
    """Who asked the broker that forwards."""
    kind, colon, name = (sent or b"").decode(errors="replace").partition(":")
    return Principal(kind, name) if colon else ANONYMOUS


def original_host(sent: bytes) -> str:
    family = {4: socket.AF_INET, 16: socket.AF_INET6}.get(len(sent))
    return "" if family is None else socket.inet_ntop(family, sent)


def _packed(host: str) -> bytes:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.inet_pton(family, host.partition("%")[0])
    except OSError:
        return b""
