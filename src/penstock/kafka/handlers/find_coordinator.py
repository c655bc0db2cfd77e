"""FindCoordinator: the broker that looks after a group or a transactional id: the leader of its partition."""

import asyncio
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import Endpoint
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_SINCE: Final = 4
_KEY_CHARS: Final = 300  # of which the time for any key makes
_SLICE_CHARS: Final = 32_768  # of keys, whose hashes take time, between two chances for others


async def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=await _answers(request, context))
    return _unbatched(await _answer(request.key, request.key_type, context))


def refuse(request: FindCoordinatorRequest, error: BrokerError) -> FindCoordinatorResponse:
    if request.coordinator_keys:
        return FindCoordinatorResponse(
            coordinators=[_refused(key, error) for key in request.coordinator_keys]
        )
    return _unbatched(_refused(request.key, error))


async def _answers(request: FindCoordinatorRequest, context: Context) -> list[Coordinator]:
    answers = []
    chars = 0
    for key in request.coordinator_keys:
        answers.append(await _answer(key, request.key_type, context))
        chars += len(key) + _KEY_CHARS
        if chars >= _SLICE_CHARS:
            chars = 0
            await asyncio.sleep(0)
    return answers


async def _answer(key: str, key_type: int, context: Context) -> Coordinator:
    try:
        broker_id = await _coordinator(key, key_type, context)
        endpoint = _endpoint_of(broker_id, context)
    except BrokerError as error:
        return _refused(key, error)
    return Coordinator(
        key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port, error_message=None
    )


async def _coordinator(key: str, key_type: int, context: Context) -> int:
    if key_type == _GROUP:
        context.authorize(Operation.DESCRIBE, ResourceType.GROUP, key)
        return await context.groups.coordinator_of(key)
    if key_type == _TRANSACTION:
        context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        return await context.transactions.coordinator_of(key)
    raise BrokerError(
        f"coordinators of type {key_type} are not known here", ErrorCode.INVALID_REQUEST
    )


def _endpoint_of(broker_id: int, context: Context) -> Endpoint:
    for broker, endpoint in context.cluster.endpoints(context.listener):
        if broker.id == broker_id:
            return endpoint
    raise BrokerError(
        f"broker {broker_id} cannot be reached through listener {context.listener}",
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )


def _refused(key: str, error: BrokerError) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, port=-1, error_code=error.code, error_message=str(error)
    )


def _unbatched(found: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )
