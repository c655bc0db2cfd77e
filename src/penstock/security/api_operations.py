"""What each API needs: operations on resources, as Kafka documents them. Data for docs and tests.

Handlers decide; this table says what they must ask. A test compares the two, so that an API
without a row, or a handler that asks for something else, does not pass.
"""

from typing import Final, NamedTuple

from penstock.security.resources import Operation, ResourceType


class Need(NamedTuple):
    """One operation on one kind of resource. `when` is empty if every request needs it."""

    operation: Operation
    resource: ResourceType
    when: str = ""


_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_CLUSTER: Final = ResourceType.CLUSTER
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

_READ_GROUP: Final = Need(Operation.READ, _GROUP)
_READ_TOPIC: Final = Need(Operation.READ, _TOPIC)
_DESCRIBE_GROUP: Final = Need(Operation.DESCRIBE, _GROUP)
_DESCRIBE_TOPIC: Final = Need(Operation.DESCRIBE, _TOPIC)
_DELETE_GROUP: Final = Need(Operation.DELETE, _GROUP)
_WRITE_TRANSACTION: Final = Need(Operation.WRITE, _TRANSACTIONAL_ID)
_DESCRIBE_TRANSACTION: Final = Need(Operation.DESCRIBE, _TRANSACTIONAL_ID)
_ALTER_CLUSTER: Final = Need(Operation.ALTER, _CLUSTER)
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, _CLUSTER)
_DESCRIBE_CLUSTER_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _CLUSTER)
_CLUSTER_ACTION: Final = Need(Operation.CLUSTER_ACTION, _CLUSTER)
_NOTHING: Final[tuple[Need, ...]] = ()


def _configs(operation: Operation) -> tuple[Need, ...]:
    return (
        Need(operation, _TOPIC, "for the settings of a topic"),
        Need(operation, _GROUP, "for the settings of a group"),
        Need(operation, _CLUSTER, "for the settings of a broker or of client metrics"),
    )


# By the name of the API in `penstock.wire.api_keys.ApiKey`.
API_OPERATIONS: Final[dict[str, tuple[Need, ...]]] = {
    "PRODUCE": (
        Need(Operation.WRITE, _TOPIC),
        Need(Operation.WRITE, _TRANSACTIONAL_ID, "for a producer with a transactional id"),
    ),
    "FETCH": (
        Need(Operation.READ, _TOPIC, "for a consumer"),
        Need(Operation.CLUSTER_ACTION, _CLUSTER, "for a follower"),
    ),
    "LIST_OFFSETS": (_DESCRIBE_TOPIC,),
    "METADATA": (
        _DESCRIBE_TOPIC,
        Need(Operation.CREATE, _TOPIC, "to create topics that do not exist, or on the cluster"),
        Need(Operation.CREATE, _CLUSTER, "to create topics that do not exist, or on the topic"),
    ),
    "OFFSET_COMMIT": (_READ_GROUP, _READ_TOPIC),
    "OFFSET_FETCH": (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    "FIND_COORDINATOR": (
        Need(Operation.DESCRIBE, _GROUP, "for the coordinator of a group"),
        Need(Operation.DESCRIBE, _TRANSACTIONAL_ID, "for the coordinator of a transactional id"),
        Need(Operation.CLUSTER_ACTION, _CLUSTER, "for the coordinator of share group state"),
    ),
    "JOIN_GROUP": (_READ_GROUP,),
    "HEARTBEAT": (_READ_GROUP,),
    "LEAVE_GROUP": (_READ_GROUP,),
    "SYNC_GROUP": (_READ_GROUP,),
    "DESCRIBE_GROUPS": (_DESCRIBE_GROUP,),
    "LIST_GROUPS": (
        Need(Operation.DESCRIBE, _CLUSTER, "to list all groups"),
        Need(Operation.DESCRIBE, _GROUP, "to list this group"),
    ),
    "SASL_HANDSHAKE": _NOTHING,
    "SASL_AUTHENTICATE": _NOTHING,
    "API_VERSIONS": _NOTHING,
    "CREATE_TOPICS": (
        Need(Operation.CREATE, _CLUSTER, "or CREATE on the topic"),
        Need(Operation.CREATE, _TOPIC, "or CREATE on the cluster"),
        Need(Operation.DESCRIBE_CONFIGS, _TOPIC, "for the settings in the response"),
    ),
    "DELETE_TOPICS": (
        Need(Operation.DELETE, _TOPIC),
        Need(Operation.DESCRIBE, _TOPIC, "for the name of a topic that is given by its id"),
    ),
    "DELETE_RECORDS": (Need(Operation.DELETE, _TOPIC),),
    "INIT_PRODUCER_ID": (
        Need(Operation.WRITE, _TRANSACTIONAL_ID, "for a producer with a transactional id"),
        Need(Operation.TWO_PHASE_COMMIT, _TRANSACTIONAL_ID, "to take part in two-phase commit"),
        Need(Operation.IDEMPOTENT_WRITE, _CLUSTER, "for other producers, or WRITE on any topic"),
        Need(Operation.WRITE, _TOPIC, "on any topic, or IDEMPOTENT_WRITE on the cluster"),
    ),
    "OFFSET_FOR_LEADER_EPOCH": (
        Need(Operation.DESCRIBE, _TOPIC, "for a consumer"),
        Need(Operation.CLUSTER_ACTION, _CLUSTER, "for a follower"),
    ),
    "ADD_PARTITIONS_TO_TXN": (
        Need(Operation.WRITE, _TRANSACTIONAL_ID, "for a producer"),
        Need(Operation.WRITE, _TOPIC, "for a producer"),
        Need(Operation.CLUSTER_ACTION, _CLUSTER, "for a broker, from version 4"),
    ),
    "ADD_OFFSETS_TO_TXN": (_WRITE_TRANSACTION, _READ_GROUP),
    "END_TXN": (_WRITE_TRANSACTION,),
    "WRITE_TXN_MARKERS": (
        Need(Operation.CLUSTER_ACTION, _CLUSTER, "or ALTER"),
        Need(Operation.ALTER, _CLUSTER, "or CLUSTER_ACTION"),
    ),
    "TXN_OFFSET_COMMIT": (_WRITE_TRANSACTION, _READ_GROUP, _READ_TOPIC),
    "DESCRIBE_ACLS": (_DESCRIBE_CLUSTER,),
    "CREATE_ACLS": (_ALTER_CLUSTER,),
    "DELETE_ACLS": (_ALTER_CLUSTER,),
    "DESCRIBE_CONFIGS": _configs(Operation.DESCRIBE_CONFIGS),
    "ALTER_CONFIGS": _configs(Operation.ALTER_CONFIGS),
    "INCREMENTAL_ALTER_CONFIGS": _configs(Operation.ALTER_CONFIGS),
    "ALTER_REPLICA_LOG_DIRS": (_ALTER_CLUSTER,),
    "DESCRIBE_LOG_DIRS": (_DESCRIBE_CLUSTER,),
    "CREATE_PARTITIONS": (Need(Operation.ALTER, _TOPIC),),
    "DELETE_GROUPS": (_DELETE_GROUP,),
    "OFFSET_DELETE": (_DELETE_GROUP, _READ_TOPIC),
    "ELECT_LEADERS": (_ALTER_CLUSTER,),
    "ALTER_PARTITION_REASSIGNMENTS": (_ALTER_CLUSTER,),
    "LIST_PARTITION_REASSIGNMENTS": (_DESCRIBE_CLUSTER,),
    "DESCRIBE_CLIENT_QUOTAS": (_DESCRIBE_CLUSTER_CONFIGS,),
    "ALTER_CLIENT_QUOTAS": (Need(Operation.ALTER_CONFIGS, _CLUSTER),),
    "DESCRIBE_USER_SCRAM_CREDENTIALS": (_DESCRIBE_CLUSTER,),
    "ALTER_USER_SCRAM_CREDENTIALS": (_ALTER_CLUSTER,),
    "DESCRIBE_QUORUM": (_DESCRIBE_CLUSTER,),
    "UPDATE_FEATURES": (_ALTER_CLUSTER,),
    "UNREGISTER_BROKER": (_ALTER_CLUSTER,),
    "DESCRIBE_CLUSTER": (
        Need(Operation.DESCRIBE, _CLUSTER, "for the authorized operations in the response"),
    ),
    "DESCRIBE_PRODUCERS": (_READ_TOPIC,),
    "DESCRIBE_TRANSACTIONS": (
        _DESCRIBE_TRANSACTION,
        Need(Operation.DESCRIBE, _TOPIC, "for the partitions in the response"),
    ),
    "LIST_TRANSACTIONS": (_DESCRIBE_TRANSACTION,),
    "CONSUMER_GROUP_HEARTBEAT": (
        _READ_GROUP,
        Need(Operation.DESCRIBE, _TOPIC, "for the subscribed topics"),
    ),
    "CONSUMER_GROUP_DESCRIBE": (
        _DESCRIBE_GROUP,
        Need(Operation.DESCRIBE, _TOPIC, "for the assigned topics in the response"),
    ),
    "LIST_CONFIG_RESOURCES": (_DESCRIBE_CLUSTER_CONFIGS,),
    "DESCRIBE_TOPIC_PARTITIONS": (_DESCRIBE_TOPIC,),
    # Between brokers
    "ALTER_PARTITION": (_CLUSTER_ACTION,),
    "ENVELOPE": (_CLUSTER_ACTION,),
    "BROKER_HEARTBEAT": (_CLUSTER_ACTION,),
    "ALLOCATE_PRODUCER_IDS": (_CLUSTER_ACTION,),
    "ASSIGN_REPLICAS_TO_DIRS": (_CLUSTER_ACTION,),
    "GET_REPLICA_LOG_INFO": (_CLUSTER_ACTION,),
    "MIRROR_APPEND": (_CLUSTER_ACTION,),
}
