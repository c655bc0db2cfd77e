"""ListGroups: the groups that this broker coordinates. Until it coordinates any, there are none."""

from penstock.kafka.context import Context
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    return ListGroupsResponse()
