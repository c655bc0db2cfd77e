"""Who asks, and what they may do. Every handler asks before it acts."""

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from penstock.model.errors import ErrorCode


class Operation(IntEnum):
    """Kafka's numbers for what can be done to a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


CLUSTER_NAME: Final = "kafka-cluster"  # the one name of the one cluster resource, as in Kafka

REFUSAL_CODES: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}  # fmt: skip


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


class Authorizer(Protocol):
    def allows(
        self, principal: Principal, operation: Operation, resource: ResourceType, name: str
    ) -> bool: ...


class AllowAll:
    """The authoriser of a broker without access control."""

    def allows(self, *_: object) -> bool:
        return True


def authorized_operations(
    authorizer: Authorizer, principal: Principal, resource: ResourceType, name: str
) -> int:
    """What the principal may do to a resource, as the bit field of KIP-430."""
    allowed = (
        op for op in _OPERATIONS[resource] if authorizer.allows(principal, op, resource, name)
    )
    return sum(1 << operation for operation in allowed)
