"""SyncGroup: the leader's assignment reaches the members of a classic group."""

from collections.abc import Awaitable

from penstock.groups.events import Sync
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_NEEDED_FROM = 5


def handle(
    request: SyncGroupRequest, context: Context
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    if context.version >= _PROTOCOL_NEEDED_FROM and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        raise BrokerError(
            "protocol type and name are needed", ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )
    return context.groups.step(
        request.group_id, lambda asked: Sync(asked, request), SyncGroupResponse
    )


def refuse(_: SyncGroupRequest, error: BrokerError) -> SyncGroupResponse:
    """While a group is read back, its rebalance is forgotten: as in Kafka, the member begins it anew."""
    loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if loading else error.code)
