"""Envelope: the controller carries out what another broker's client asked for, as that client (KIP-590)."""

import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from penstock.kafka.api import Api
from penstock.kafka.context import Context
from penstock.kafka.forwarding import original_host, original_principal
from penstock.kafka.parts import handle_parts
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.header import decode_request_header, encode_response_header
from penstock.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message

_log = logging.getLogger(__name__)


async def handle(
    request: EnvelopeRequest, context: Context, apis: Mapping[int, Api[Any, Any]]
) -> EnvelopeResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if not context.cluster.is_controller:
        raise BrokerError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    header, start = decode_request_header(frame)
    api = apis.get(header.api_key)
    if api is None or not api.forwarded:
        raise BrokerError(f"api {header.api_key} is not forwarded", ErrorCode.INVALID_REQUEST)
    if not api.min_version <= header.api_version <= api.max_version:
        raise BrokerError(
            f"{api.name} v{header.api_version} is not supported", ErrorCode.UNSUPPORTED_VERSION
        )
    turns = context.replicas.turns
    decode = api.decode_in_steps(header.api_version)
    try:
        asked, _ = await turns.run(decode(frame, start, api.max_elements))
    except MalformedMessage as error:
        raise BrokerError(f"malformed request: {error}", ErrorCode.INVALID_REQUEST) from error
    on_behalf = Context(
        context.services,
        header,
        original_principal(request.request_principal),
        context.listener,
        original_host(request.client_host_address),
    )
    answer: Message | None
    if api.parts is not None and api.parts.are_many(asked):
        answer = await handle_parts(
            api.parts, asked, lambda part: _carried_out(api, part, on_behalf), turns
        )
    else:
        answer = await _carried_out(api, asked, on_behalf)
    assert answer is not None, "what is forwarded is answered"
    chunks: list[Any] = [
        encode_response_header(header.correlation_id, header.api_key, header.api_version)
    ]
    await turns.run(api.encode_in_steps(header.api_version)(answer, chunks))
    return EnvelopeResponse(response_data=b"".join(chunks))


async def _carried_out(api: Api[Any, Any], asked: Message, context: Context) -> Message:
    """What fails is answered as the request's own API does."""
    try:
        reply = api.carry_out(asked, context)
        answer = await reply if isinstance(reply, Awaitable) else reply
        assert isinstance(answer, Message), "what is forwarded is answered"
    except BrokerError as error:
        return api.refuse(asked, error)  # type: ignore[no-any-return] # a row knows no better
    except Exception:  # noqa: BLE001 - logged, with its trace
        _log.exception("request-failed api=%s client=%s", api.name, context.client_host)
        answer = api.refuse(asked, BrokerError("an unexpected error; see the controller's log"))
    return answer
