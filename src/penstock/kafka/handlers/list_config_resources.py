"""ListConfigResources: topics and brokers, and the groups with settings of their own. Version 0 is for client metrics only."""

from typing import Final

from penstock.kafka.config_resources import ConfigResourceType
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_ALL: Final = tuple(ConfigResourceType)


def handle(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    context.authorize(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    if context.version == 0:
        return ListConfigResourcesResponse()
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=asked)
            for asked in dict.fromkeys(request.resource_types or _ALL)
            for name in _names(asked, context)
        ]
    )


def _names(asked: int, context: Context) -> list[str]:
    image = context.cluster.image
    if asked == ConfigResourceType.TOPIC:
        return sorted(image.topics)
    if asked == ConfigResourceType.BROKER:
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    if asked == ConfigResourceType.GROUP:
        return sorted(image.group_configs)
    if asked in _ALL:
        return []
    raise BrokerError(f"unknown resource type {asked}", ErrorCode.UNSUPPORTED_VERSION)
