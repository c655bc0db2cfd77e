"""Every Kafka API this broker speaks: one row each. ApiVersions is answered from this table."""

from typing import Any, Final

from penstock.broker.controller.cluster import Cluster
from penstock.kafka.api import Api
from penstock.kafka.api import row as _api
from penstock.kafka.context import Context, Services
from penstock.kafka.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    assign_replicas_to_dirs,
    broker_heartbeat,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    fetch,
    find_coordinator,
    get_replica_log_info,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    mirror_append,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from penstock.kafka.large_frame import LARGE_FRAME_BYTES
from penstock.kafka.parts import Parts
from penstock.kafka.slices import Slices
from penstock.model.errors import ErrorCode
from penstock.model.features import (
    CONSUMER_PROTOCOL,
    GROUP_VERSION,
    MIRROR_VERSION,
    MIRRORED_TOPICS,
)
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from penstock.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from penstock.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from penstock.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from penstock.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from penstock.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from penstock.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from penstock.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from penstock.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from penstock.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from penstock.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.messages.fetch import FetchRequest, FetchResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
)
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.mirror_append import MirrorAppendRequest, MirrorAppendResponse
from penstock.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from penstock.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from penstock.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from penstock.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from penstock.wire.schema import Message

_MANY: Final = 200_000  # array elements: 100,000 partitions of 100,000 topics
_NAMED: Final = 100_000  # 10,000 topics, groups or resources with some settings or assignments each
_SOME: Final = 20_000
_CONSUMER_GROUPS: Final = (GROUP_VERSION, CONSUMER_PROTOCOL)
_MIRRORS: Final = (MIRROR_VERSION, MIRRORED_TOPICS)


def _api_versions(request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
    return api_versions.handle(request, context, advertised(context.cluster))


async def _envelope(request: EnvelopeRequest, context: Context) -> EnvelopeResponse:
    return await envelope.handle(request, context, APIS)


# fmt: off
_ROWS: tuple[Api[Any, Any], ...] = (
    _api(ApiKey.PRODUCE, (0, 13), ProduceRequest, ProduceResponse, produce.handle, refuse=produce.refuse, pipelined=True, together=produce.handle_together, slices=Slices(Parts(("topic_data", "partition_data"), ("responses", "partition_responses"), at_once=20, whole_upto=40), produce.begin), max_elements=_SOME, plain_bytes=LARGE_FRAME_BYTES),  # 0 to 2 only to refuse them: KAFKA-18659
    _api(ApiKey.FETCH, (4, 18), FetchRequest, FetchResponse, fetch.handle, pipelined=True, known=fetch.FetchAgain, max_elements=_MANY),
    _api(ApiKey.LIST_OFFSETS, (1, 11), ListOffsetsRequest, ListOffsetsResponse, list_offsets.handle, refuse=list_offsets.refuse, parts=Parts(("topics", "partitions"), at_once=200), max_elements=_MANY),
    _api(ApiKey.METADATA, (0, 13), MetadataRequest, MetadataResponse, metadata.handle, refuse=metadata.refuse, parts=Parts(("topics",), at_once=100, distinct=metadata.key_of), max_elements=_MANY),
    _api(ApiKey.FIND_COORDINATOR, (0, 6), FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator.handle, refuse=find_coordinator.refuse, parts=Parts(("coordinator_keys",), ("coordinators",), at_once=100), max_elements=_NAMED),
    _api(ApiKey.OFFSET_COMMIT, (2, 10), OffsetCommitRequest, OffsetCommitResponse, offset_commit.handle, refuse=offset_commit.refuse, pipelined=True, parts=Parts(("topics", "partitions"), at_once=500), max_elements=_MANY),
    _api(ApiKey.OFFSET_FETCH, (1, 10), OffsetFetchRequest, OffsetFetchResponse, offset_fetch.handle, refuse=offset_fetch.refuse, parts=Parts(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), at_once=500, otherwise=Parts(("topics", "partition_indexes"), ("topics", "partitions"), at_once=500)), preparation=offset_fetch.PREPARATION, max_elements=_MANY),
    _api(ApiKey.JOIN_GROUP, (0, 9), JoinGroupRequest, JoinGroupResponse, join_group.handle, refuse=join_group.refuse),
    _api(ApiKey.HEARTBEAT, (0, 4), HeartbeatRequest, HeartbeatResponse, heartbeat.handle),
    _api(ApiKey.LEAVE_GROUP, (0, 5), LeaveGroupRequest, LeaveGroupResponse, leave_group.handle),
    _api(ApiKey.SYNC_GROUP, (0, 5), SyncGroupRequest, SyncGroupResponse, sync_group.handle, refuse=sync_group.refuse, max_elements=_MANY),
    _api(ApiKey.DESCRIBE_GROUPS, (0, 6), DescribeGroupsRequest, DescribeGroupsResponse, describe_groups.handle, refuse=describe_groups.refuse, parts=Parts(("groups",), at_once=10, distinct=str), max_elements=_NAMED),
    _api(ApiKey.LIST_GROUPS, (0, 5), ListGroupsRequest, ListGroupsResponse, list_groups.handle),
    _api(ApiKey.DELETE_GROUPS, (0, 2), DeleteGroupsRequest, DeleteGroupsResponse, delete_groups.handle, refuse=delete_groups.refuse, parts=Parts(("groups_names",), ("results",), at_once=100)),
    _api(ApiKey.OFFSET_DELETE, (0, 0), OffsetDeleteRequest, OffsetDeleteResponse, offset_delete.handle, parts=Parts(("topics", "partitions"), at_once=500), max_elements=_MANY),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, consumer_group_heartbeat.handle, needs=_CONSUMER_GROUPS, max_elements=_MANY),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, consumer_group_describe.handle, refuse=consumer_group_describe.refuse, needs=_CONSUMER_GROUPS, parts=Parts(("group_ids",), ("groups",), at_once=10, distinct=str), max_elements=_NAMED),
    _api(ApiKey.CREATE_TOPICS, (2, 7), CreateTopicsRequest, CreateTopicsResponse, create_topics.handle, refuse=create_topics.refuse, forwarded=True, max_elements=_NAMED),
    _api(ApiKey.DELETE_TOPICS, (1, 6), DeleteTopicsRequest, DeleteTopicsResponse, delete_topics.handle, refuse=delete_topics.refuse, forwarded=True, parts=Parts(("topics",), ("responses",), at_once=500, otherwise=Parts(("topic_names",), ("responses",), at_once=500)), max_elements=_MANY),
    _api(ApiKey.DELETE_RECORDS, (0, 2), DeleteRecordsRequest, DeleteRecordsResponse, delete_records.handle, refuse=delete_records.refuse, parts=Parts(("topics", "partitions"), at_once=100), max_elements=_MANY),
    _api(ApiKey.INIT_PRODUCER_ID, (0, 5), InitProducerIdRequest, InitProducerIdResponse, init_producer_id.handle, refuse=init_producer_id.refuse),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, add_partitions_to_txn.handle, refuse=add_partitions_to_txn.refuse, parts=Parts(("transactions",), ("results_by_transaction",), at_once=100, is_queued=False)),
    _api(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, add_offsets_to_txn.handle),
    _api(ApiKey.END_TXN, (0, 5), EndTxnRequest, EndTxnResponse, end_txn.handle),
    _api(ApiKey.WRITE_TXN_MARKERS, (0, 2), WriteTxnMarkersRequest, WriteTxnMarkersResponse, write_txn_markers.handle, refuse=write_txn_markers.refuse, parts=Parts(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), at_once=100, is_queued=False), max_elements=_MANY),
    _api(ApiKey.TXN_OFFSET_COMMIT, (0, 5), TxnOffsetCommitRequest, TxnOffsetCommitResponse, txn_offset_commit.handle, refuse=txn_offset_commit.refuse, parts=Parts(("topics", "partitions"), at_once=500), max_elements=_MANY),
    _api(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), DescribeTransactionsRequest, DescribeTransactionsResponse, describe_transactions.handle, refuse=describe_transactions.refuse, parts=Parts(("transactional_ids",), ("transaction_states",), at_once=100, distinct=str)),
    _api(ApiKey.LIST_TRANSACTIONS, (0, 2), ListTransactionsRequest, ListTransactionsResponse, list_transactions.handle),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, offset_for_leader_epoch.handle, refuse=offset_for_leader_epoch.refuse, parts=Parts(("topics", "partitions"), at_once=200), max_elements=_MANY),
    _api(ApiKey.DESCRIBE_ACLS, (1, 3), DescribeAclsRequest, DescribeAclsResponse, describe_acls.handle),
    _api(ApiKey.CREATE_ACLS, (1, 3), CreateAclsRequest, CreateAclsResponse, create_acls.handle, refuse=create_acls.refuse),
    _api(ApiKey.DELETE_ACLS, (1, 3), DeleteAclsRequest, DeleteAclsResponse, delete_acls.handle, refuse=delete_acls.refuse),
    _api(ApiKey.DESCRIBE_CONFIGS, (1, 4), DescribeConfigsRequest, DescribeConfigsResponse, describe_configs.handle, refuse=describe_configs.refuse, parts=Parts(("resources",), ("results",), at_once=10, distinct=describe_configs.key_of), max_elements=_NAMED),
    _api(ApiKey.ALTER_CONFIGS, (0, 2), AlterConfigsRequest, AlterConfigsResponse, alter_configs.handle, refuse=alter_configs.refuse, forwarded=True, max_elements=_NAMED),
    _api(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, alter_replica_log_dirs.handle, refuse=alter_replica_log_dirs.refuse),
    _api(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), DescribeLogDirsRequest, DescribeLogDirsResponse, describe_log_dirs.handle, max_elements=_MANY // 2),
    _api(ApiKey.CREATE_PARTITIONS, (0, 3), CreatePartitionsRequest, CreatePartitionsResponse, create_partitions.handle, refuse=create_partitions.refuse, forwarded=True, parts=Parts(("topics",), ("results",), at_once=500), max_elements=_MANY),
    _api(ApiKey.ELECT_LEADERS, (0, 2), ElectLeadersRequest, ElectLeadersResponse, elect_leaders.handle, refuse=elect_leaders.refuse, forwarded=True, parts=Parts(("topic_partitions", "partitions"), ("replica_election_results", "partition_result"), at_once=500), max_elements=_MANY),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, incremental_alter_configs.handle, refuse=incremental_alter_configs.refuse, forwarded=True, max_elements=_NAMED),
    _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, alter_partition_reassignments.handle, forwarded=True, parts=Parts(("topics", "partitions"), ("responses", "partitions"), at_once=500), max_elements=3 * _MANY),
    _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, list_partition_reassignments.handle, max_elements=_MANY // 2),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), DescribeClientQuotasRequest, DescribeClientQuotasResponse, describe_client_quotas.handle, refuse=describe_client_quotas.refuse),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, describe_user_scram_credentials.handle),
    _api(ApiKey.DESCRIBE_QUORUM, (0, 2), DescribeQuorumRequest, DescribeQuorumResponse, describe_quorum.handle, forwarded=True),
    _api(ApiKey.ALTER_PARTITION, (2, 3), AlterPartitionRequest, AlterPartitionResponse, alter_partition.handle, parts=Parts(("topics", "partitions"), at_once=500, is_queued=False), max_elements=_SOME),
    _api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, (0, 0), AssignReplicasToDirsRequest, AssignReplicasToDirsResponse, assign_replicas_to_dirs.handle, parts=Parts(("directories", "topics", "partitions"), at_once=500, is_queued=False), max_elements=_MANY),
    _api(ApiKey.BROKER_HEARTBEAT, (0, 2), BrokerHeartbeatRequest, BrokerHeartbeatResponse, broker_heartbeat.handle),
    _api(ApiKey.UPDATE_FEATURES, (0, 2), UpdateFeaturesRequest, UpdateFeaturesResponse, update_features.handle, forwarded=True, max_elements=1000),
    _api(ApiKey.ENVELOPE, (0, 0), EnvelopeRequest, EnvelopeResponse, _envelope, pipelined=True),
    _api(ApiKey.UNREGISTER_BROKER, (0, 0), UnregisterBrokerRequest, UnregisterBrokerResponse, unregister_broker.handle, forwarded=True),
    _api(ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), AllocateProducerIdsRequest, AllocateProducerIdsResponse, allocate_producer_ids.handle),
    _api(ApiKey.DESCRIBE_CLUSTER, (0, 2), DescribeClusterRequest, DescribeClusterResponse, describe_cluster.handle),
    _api(ApiKey.DESCRIBE_PRODUCERS, (0, 0), DescribeProducersRequest, DescribeProducersResponse, describe_producers.handle, refuse=describe_producers.refuse, parts=Parts(("topics", "partition_indexes"), ("topics", "partitions"), at_once=10), max_elements=_MANY),
    _api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), ListConfigResourcesRequest, ListConfigResourcesResponse, list_config_resources.handle),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, describe_topic_partitions.handle, refuse=describe_topic_partitions.refuse),
    _api(ApiKey.GET_REPLICA_LOG_INFO, (0, 0), GetReplicaLogInfoRequest, GetReplicaLogInfoResponse, get_replica_log_info.handle, refuse=get_replica_log_info.refuse, parts=Parts(("topic_partitions", "partitions"), ("topic_partition_log_info_list", "partition_log_info"), at_once=200, is_queued=False), max_elements=_MANY),
    _api(ApiKey.MIRROR_APPEND, (0, 0), MirrorAppendRequest, MirrorAppendResponse, mirror_append.handle, refuse=mirror_append.refuse, pipelined=True, needs=_MIRRORS, slices=Slices(Parts(("topics", "partitions"), at_once=20, whole_upto=40), mirror_append.begin), max_elements=_SOME, plain_bytes=LARGE_FRAME_BYTES),
    _api(ApiKey.API_VERSIONS, (0, 4), ApiVersionsRequest, ApiVersionsResponse, _api_versions),
)
# fmt: on

APIS: dict[int, Api[Any, Any]] = {api.key: api for api in sorted(_ROWS, key=lambda api: api.key)}


def advertised(cluster: Cluster) -> list[ApiVersion]:
    """What can be used at the levels of features that are in force."""
    return [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in APIS.values()
        if api.needs is None or cluster.level(api.needs[0]) >= api.needs[1]
    ]


def unsupported_version_reply(api: Api[Any, Any], services: Services) -> Message | None:
    """Only ApiVersions can answer a version it does not know, in v0 and with what it does know."""
    if api.key != ApiKey.API_VERSIONS:
        return None
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised(services.cluster)
    )
