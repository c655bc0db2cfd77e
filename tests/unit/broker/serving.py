"""Lets brokers of one test reach each other: what the controller is asked over the wire, without the rest of a broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.broker.cluster import Cluster
from penstock.metadata.image import Endpoint
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
from penstock.wire.schema import Message
from tests.support.fake_broker import FakeBroker


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[dict[str, Endpoint]]:
    """The listeners under which the broker can be reached by now."""

    def heartbeat(request: Message) -> Message:
        assert isinstance(request, BrokerHeartbeatRequest)
        try:
            return cluster.heartbeat(request)
        except BrokerError as error:
            return BrokerHeartbeatResponse(error_code=error.code)

    async def alter_partition(request: Message) -> Message:
        assert isinstance(request, AlterPartitionRequest)
        try:
            return await cluster.decide_isrs(request)
        except BrokerError as error:
            return AlterPartitionResponse(error_code=error.code)

    async def producer_ids(_: Message) -> Message:
        try:
            block = await cluster.allocate_producer_ids()
        except BrokerError as error:
            return AllocateProducerIdsResponse(error_code=error.code)
        return AllocateProducerIdsResponse(
            producer_id_start=block.start, producer_id_len=len(block)
        )

    async with FakeBroker() as server:
        server.on(BrokerHeartbeatRequest, heartbeat)
        server.on(AlterPartitionRequest, alter_partition)
        server.on(AllocateProducerIdsRequest, producer_ids)
        yield {"PLAINTEXT": Endpoint(*server.address)}
