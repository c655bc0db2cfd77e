"""What has settings, by Kafka's numbers, and who may see or change the settings of what."""

from enum import IntEnum

from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode


class ConfigResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_OWNERS = {
    ConfigResourceType.TOPIC: ResourceType.TOPIC,
    ConfigResourceType.GROUP: ResourceType.GROUP,
}  # the settings of everything else belong to the cluster


def authorize(
    operation: Operation, resource_type: int, name: str, context: Context
) -> ConfigResourceType:
    """The type that the number stands for, once the principal is known to be allowed."""
    try:
        known = ConfigResourceType(resource_type)
    except ValueError:
        context.authorize(operation, ResourceType.CLUSTER)
        raise invalid(f"unknown resource type {resource_type}") from None
    owner = _OWNERS.get(known, ResourceType.CLUSTER)
    context.authorize(operation, owner, CLUSTER_NAME if owner is ResourceType.CLUSTER else name)
    return known


def check_broker_name(name: str, context: Context) -> None:
    """A broker answers for itself: the empty name means the defaults of all brokers."""
    if name not in ("", str(context.broker_id)):
        raise invalid(f"this is broker {context.broker_id}; the request is for broker '{name}'")


def unsupported(resource: ConfigResourceType) -> BrokerError:
    what = resource.name.lower().replace("_", " ")
    return invalid(f"the settings of a {what} cannot be described or changed here")


def invalid(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REQUEST)
