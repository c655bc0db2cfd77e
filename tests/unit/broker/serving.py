"""Lets brokers of one test reach each other: what the controller is asked over the wire, without the rest of a broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from penstock.broker.controller.cluster import Cluster
from penstock.metadata.image import Endpoint
from penstock.metadata.rules.controller import TopicSpec
from penstock.model.errors import BrokerError
from penstock.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from penstock.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from penstock.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.schema import Message
from tests.support.fake_broker import FakeBroker


class Served:
    """What a broker's listener would answer to other brokers."""

    def __init__(self, cluster: Cluster, server: FakeBroker) -> None:
        self.server = server
        self._cluster = cluster
        server.on(BrokerHeartbeatRequest, self._heartbeat)
        server.on(AlterPartitionRequest, self._alter_partition)
        server.on(AllocateProducerIdsRequest, self._producer_ids)
        server.on(CreateTopicsRequest, self._create_topics)

    @classmethod
    async def open(cls, cluster: Cluster) -> Self:
        return cls(cluster, await FakeBroker().__aenter__())

    async def close(self) -> None:
        await self.server.__aexit__(None, None, None)

    @property
    def listeners(self) -> dict[str, Endpoint]:
        return {"PLAINTEXT": Endpoint(*self.server.address)}

    def _heartbeat(self, request: Message) -> Message:
        assert isinstance(request, BrokerHeartbeatRequest)
        try:
            return self._cluster.heartbeat(request)
        except BrokerError as error:
            return BrokerHeartbeatResponse(error_code=error.code)

    async def _alter_partition(self, request: Message) -> Message:
        assert isinstance(request, AlterPartitionRequest)
        try:
            return await self._cluster.decide_isrs(request)
        except BrokerError as error:
            return AlterPartitionResponse(error_code=error.code)

    async def _producer_ids(self, _: Message) -> Message:
        try:
            block = await self._cluster.allocate_producer_ids()
        except BrokerError as error:
            return AllocateProducerIdsResponse(error_code=error.code)
        return AllocateProducerIdsResponse(
            producer_id_start=block.start, producer_id_len=len(block)
        )

    async def _create_topics(self, request: Message) -> Message:
        assert isinstance(request, CreateTopicsRequest)
        specs = [
            TopicSpec(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                config={config.name: config.value for config in topic.configs},
            )
            for topic in request.topics
        ]
        outcomes = await self._cluster.create_topics(specs)
        results = [
            CreatableTopicResult(
                name=spec.name,
                error_code=outcome.code if isinstance(outcome, BrokerError) else 0,
                error_message=str(outcome),
            )
            for spec, outcome in zip(specs, outcomes, strict=True)
        ]
        return CreateTopicsResponse(topics=results)


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[dict[str, Endpoint]]:
    """The listeners under which the broker can be reached by now."""
    served = await Served.open(cluster)
    try:
        yield served.listeners
    finally:
        await served.close()
