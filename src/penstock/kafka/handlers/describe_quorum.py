"""DescribeQuorum: the metadata store and the elected controller, in the form of Kafka's metadata quorum.

There is no KRaft log. What Kafka's tools show stands for this:
- the leader is the active controller, and the leader epoch is the controller epoch;
- the high watermark is the revision of the metadata store;
- the voters are the registered brokers, each of which may become the controller;
- the end offset of a broker is the revision that it last reported, and its last fetch that report.

Brokers report with their heartbeats, so an idle broker looks as old as `broker.heartbeat.interval.ms`.
Only the controller receives these reports: other brokers forward the request.
"""

import asyncio
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import BrokerInfo
from penstock.model.errors import ErrorCode
from penstock.model.ids import parse_topic_id
from penstock.model.units import INT_MAX
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

METADATA_TOPIC: Final = "__cluster_metadata"
_NODES_FROM: Final = 2
_UNKNOWN: Final = -1
_NO_DIRECTORY: Final = bytes(16)


def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    if not _is_of_metadata(request):
        return _unknown_partitions(request)
    image = context.cluster.image
    voters = sorted(image.brokers.values())
    leader_id = _UNKNOWN if image.controller_id is None else image.controller_id
    quorum = PartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=min(image.controller_epoch, INT_MAX),
        high_watermark=image.revision,
        current_voters=[_state(broker, leader_id, context) for broker in voters],
    )
    response = DescribeQuorumResponse(
        topics=[TopicData(topic_name=METADATA_TOPIC, partitions=[quorum])]
    )
    if context.version >= _NODES_FROM:
        response.nodes = [_node(broker, context) for broker in voters]
    return response


def _is_of_metadata(request: DescribeQuorumRequest) -> bool:
    """As in Kafka: the request names this one partition, and nothing else."""
    named = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    return len(request.topics) == 1 and named == [(METADATA_TOPIC, 0)]


def _unknown_partitions(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=f"only partition 0 of {METADATA_TOPIC} has a quorum",
                        leader_id=_UNKNOWN,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _state(broker: BrokerInfo, leader_id: int, context: Context) -> ReplicaState:
    cluster = context.cluster
    now_ms = context.clock.wall_ms()
    state = ReplicaState(replica_id=broker.id, log_end_offset=_UNKNOWN)
    if context.version >= _NODES_FROM:
        state.replica_directory_id = _directory_id(broker)
    report = cluster.last_report(broker.id)
    if broker.id == leader_id:
        state.log_end_offset = cluster.image.revision
        state.last_fetch_timestamp = state.last_caught_up_timestamp = now_ms
    elif report is not None:
        monotonic_s = asyncio.get_running_loop().time()
        state.log_end_offset = report.applied
        state.last_fetch_timestamp = now_ms - _ms(monotonic_s - report.heard_s)
        if report.caught_up_s is not None:
            state.last_caught_up_timestamp = now_ms - _ms(monotonic_s - report.caught_up_s)
    return state


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _directory_id(broker: BrokerInfo) -> bytes:
    try:
        return parse_topic_id(broker.directory_id)
    except ValueError:  # an id that is not a UUID: of a directory from somewhere else
        return _NO_DIRECTORY


def _node(broker: BrokerInfo, context: Context) -> Node:
    """Where the broker is reached through the listener of this request."""
    endpoint = broker.listeners.get(context.listener)
    listeners = []
    if endpoint is not None:
        listeners.append(Listener(name=context.listener, host=endpoint.host, port=endpoint.port))
    return Node(node_id=broker.id, listeners=listeners)
