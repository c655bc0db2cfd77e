"""DescribeCluster: the brokers as this listener's clients reach them, the controller, the cluster id."""

from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import Endpoint
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2  # endpoint types of KIP-919
_NOWHERE: Final = Endpoint("", -1)
_OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)


def handle(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    _check_endpoint_type(request.endpoint_type)
    controller_id = context.cluster.image.controller_id
    return DescribeClusterResponse(
        cluster_id=context.cluster.cluster_id,
        controller_id=-1 if controller_id is None else controller_id,
        brokers=_brokers(context) + (_fenced(context) if request.include_fenced_brokers else []),
        cluster_authorized_operations=_operations(request, context),
    )


def _brokers(context: Context) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(
            broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker, endpoint in context.cluster.endpoints(context.listener)
    ]


def _fenced(context: Context) -> list[DescribeClusterBroker]:
    """Registered, and not taking part (KIP-1073); who does not run has no address."""
    return [
        DescribeClusterBroker(
            broker_id=broker.id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=True,
        )
        for broker in context.cluster.image.brokers.values()
        if broker.fenced
        for endpoint in [broker.listeners.get(context.listener, _NOWHERE)]
    ]


def _check_endpoint_type(endpoint_type: int) -> None:
    if endpoint_type == _CONTROLLERS:
        raise BrokerError(
            "this is an endpoint of brokers, not of controllers",
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        )
    if endpoint_type != _BROKERS:
        raise BrokerError(
            f"unknown endpoint type {endpoint_type}; 1 is brokers",
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        )


def _operations(request: DescribeClusterRequest, context: Context) -> int:
    if not request.include_cluster_authorized_operations:
        return _OPERATIONS_NOT_ASKED_FOR
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    except BrokerError:
        return 0
    return context.operations(ResourceType.CLUSTER)
