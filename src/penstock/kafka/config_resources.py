"""What has settings, by Kafka's numbers, and who may see or change the settings of what."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.metadata.rules.config_changes import ALL_BROKERS, Resource
from penstock.model.errors import BrokerError, ErrorCode


class ConfigResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_OWNERS: Final[Mapping[int, ResourceType]] = {
    ConfigResourceType.TOPIC: ResourceType.TOPIC,
    ConfigResourceType.GROUP: ResourceType.GROUP,
}  # the settings of everything else belong to the cluster


def authorize_settings(
    operation: Operation, resource_type: int, name: str, context: Context
) -> Resource:
    """Whose settings these are, once the principal is known to be allowed.

    A broker answers for itself; settings of any broker are changed by the controller.
    """
    owner = _OWNERS.get(resource_type, ResourceType.CLUSTER)
    context.authorize(operation, owner, CLUSTER_NAME if owner is ResourceType.CLUSTER else name)
    if resource_type == ConfigResourceType.TOPIC:
        return Resource.TOPIC
    if resource_type == ConfigResourceType.GROUP:
        if not name:
            raise BrokerError("a group id is empty", ErrorCode.INVALID_REQUEST)
        return Resource.GROUP
    if resource_type == ConfigResourceType.BROKER:
        if operation is not Operation.ALTER_CONFIGS:
            _check_broker_name(name, context)
        return Resource.BROKER
    raise BrokerError(
        f"resource type {resource_type} has no settings here; topics (2), brokers (4) and groups (32) have",
        ErrorCode.INVALID_REQUEST,
    )


def _check_broker_name(name: str, context: Context) -> None:
    """A broker answers for itself, and for the settings of all brokers."""
    if name not in (ALL_BROKERS, str(context.broker_id)):
        raise BrokerError(
            f"this is broker {context.broker_id}; ask broker '{name}' for its own settings",
            ErrorCode.INVALID_REQUEST,
        )
