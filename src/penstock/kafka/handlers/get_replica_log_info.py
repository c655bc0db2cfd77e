"""GetReplicaLogInfo: how far the logs of this broker go, whoever leads them; the controller asks when nobody may (KIP-966)."""

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError
from penstock.wire.messages.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
)


def handle(request: GetReplicaLogInfoRequest, context: Context) -> GetReplicaLogInfoResponse:
    context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return GetReplicaLogInfoResponse(
        broker_epoch=context.cluster.epoch,
        topic_partition_log_info_list=[
            TopicPartitionLogInfo(
                topic_id=topic.topic_id,
                partition_log_info=[_info(topic.topic_id, it, context) for it in topic.partitions],
            )
            for topic in request.topic_partitions
        ],
    )


def refuse(request: GetReplicaLogInfoRequest, error: BrokerError) -> GetReplicaLogInfoResponse:
    return GetReplicaLogInfoResponse(
        topic_partition_log_info_list=[
            TopicPartitionLogInfo(
                topic_id=topic.topic_id,
                partition_log_info=[_refused(number, error) for number in topic.partitions],
            )
            for topic in request.topic_partitions
        ],
    )


def _info(topic_id: bytes, number: int, context: Context) -> PartitionLogInfo:
    try:
        replicas = context.replicas
        partition = replicas.hosted(replicas.topic_by_id(topic_id), number)
        log = partition.log
    except BrokerError as error:
        return _refused(number, error)
    return PartitionLogInfo(
        partition=number,
        last_written_leader_epoch=log.epochs.latest,
        current_leader_epoch=partition.leader_epoch,
        log_end_offset=log.next_offset,
    )


def _refused(number: int, error: BrokerError) -> PartitionLogInfo:
    return PartitionLogInfo(
        partition=number, error_code=error.code, error_message=str(error), log_end_offset=-1
    )
