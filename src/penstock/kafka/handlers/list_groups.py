"""ListGroups: the groups that this broker coordinates and the client may see, by state and type."""

from collections.abc import Awaitable

from penstock.groups.listing import listed, matches_filters
from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.model.steps import Steps
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

_STEP_GROUPS = 1000


def handle(
    request: ListGroupsRequest, context: Context
) -> ListGroupsResponse | Awaitable[ListGroupsResponse]:
    return context.replicas.turns.begin(_list(request, context))


def _list(request: ListGroupsRequest, context: Context) -> Steps[ListGroupsResponse]:
    states = frozenset(state.lower() for state in request.states_filter)
    types = frozenset(kind.lower() for kind in request.types_filter)
    sees_all = context.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    code = loading if context.groups.is_loading else ErrorCode.NONE
    found = []
    for number, group in enumerate(list(context.groups.groups()), 1):
        entry = listed(group)
        if matches_filters(entry, states, types) and (
            sees_all or context.allows(Operation.DESCRIBE, ResourceType.GROUP, entry.group_id)
        ):
            found.append(entry)
        if number % _STEP_GROUPS == 0:
            yield
    return ListGroupsResponse(error_code=code, groups=found)
