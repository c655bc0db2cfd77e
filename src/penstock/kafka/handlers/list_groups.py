"""ListGroups: the groups that this broker coordinates and the client may see, by state and type."""

from penstock.groups.listing import listed, matches_filters
from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    states = frozenset(state.lower() for state in request.states_filter)
    types = frozenset(kind.lower() for kind in request.types_filter)
    sees_all = context.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    found = [
        entry
        for entry in map(listed, context.groups.groups())
        if matches_filters(entry, states, types)
        and (sees_all or context.allows(Operation.DESCRIBE, ResourceType.GROUP, entry.group_id))
    ]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    code = loading if context.groups.is_loading else ErrorCode.NONE
    return ListGroupsResponse(error_code=code, groups=found)
