"""What a handler knows of the request in its hands: who asks, through which door, and of what broker."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.broker.controller.cluster import Cluster
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.leader_confirmation import LeaderConfirmations
from penstock.kafka.overtaken import Refusals
from penstock.kafka.security import (
    CLUSTER_NAME,
    REFUSAL_CODES,
    Authorizer,
    Operation,
    Principal,
    ResourceType,
    authorized_operations,
)
from penstock.model.clock import Clock
from penstock.model.configs import BrokerConfig
from penstock.model.errors import BrokerError
from penstock.replication.leader import Leadership
from penstock.wire.header import RequestHeader

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class Services:
    """The broker behind every connection, put together by the node."""

    broker_id: int
    clock: Clock
    replicas: ReplicaManager
    cluster: Cluster
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    metrics: BrokerMetrics
    authorizer: Authorizer
    sessions: FetchSessions
    refusals: Refusals
    confirmations: LeaderConfirmations
    spawn: Spawn  # runs a coroutine and keeps hold of it until it ends


class Context:
    """One request."""

    __slots__ = (
        "client_host",
        "confirmed",
        "header",
        "holds",
        "listener",
        "principal",
        "searched",
        "services",
    )

    # Set only for a request that searches partitions by timestamp.
    searched: set[tuple[str, int]]
    # Set only for a request that needs coordinators confirmed while the metadata store is away.
    confirmed: dict[Leadership, asyncio.Future[None]]

    def __init__(
        self,
        services: Services,
        header: RequestHeader,
        principal: Principal,
        listener: str,
        client_host: str,
    ) -> None:
        self.services = services
        self.header = header
        self.principal = principal
        self.listener = listener
        self.client_host = client_host
        self.holds = False  # what follows on the connection waits for its answer, whatever the API

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def broker_id(self) -> int:
        return self.services.broker_id

    @property
    def config(self) -> BrokerConfig:
        """The settings in force; some of them change while the broker runs."""
        return self.services.cluster.config

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def replicas(self) -> ReplicaManager:
        return self.services.replicas

    @property
    def cluster(self) -> Cluster:
        return self.services.cluster

    @property
    def groups(self) -> GroupCoordinator:
        return self.services.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.services.transactions

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return self.services.authorizer.allows(self.principal, operation, resource, name)

    def authorize(
        self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME
    ) -> None:
        """Raise with the resource's own refusal code unless the principal may do this."""
        if not self.services.authorizer.allows(self.principal, operation, resource, name):
            raise BrokerError(
                f"{self.principal} may not {operation.name.lower()} "
                f"{resource.name.lower()} '{name}'",
                REFUSAL_CODES[resource],
            )

    def permitted(
        self, operation: Operation, resource: ResourceType, names: Iterable[str]
    ) -> list[str]:
        """Those of `names` that the principal may see; listings leave out the others in silence."""
        return [name for name in names if self.allows(operation, resource, name)]

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        return authorized_operations(self.services.authorizer, self.principal, resource, name)
