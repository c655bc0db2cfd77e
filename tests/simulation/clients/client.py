"""What every simulated client does: it finds leaders and coordinators, and keeps connections."""

import asyncio
from typing import Final, TypeVar

from penstock.client.connection import Address, Connection
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.schema import Message
from tests.simulation.clocks import SimClock
from tests.simulation.loop import SimLoop
from tests.simulation.machine import PORT, host_of

Response = TypeVar("Response", bound=Message)

TOPIC: Final = "t"  # the topic that every simulated cluster has
HOST: Final = "client"
TIMEOUT_MS: Final = 1_500
PAUSE_S: Final = 0.05
GROUP: Final = 0  # key types of FindCoordinator
TRANSACTION: Final = 1


class Client:
    """Knows the leader of each partition, from the newest epoch that a broker named (KIP-320)."""

    def __init__(self, loop: SimLoop, brokers: list[int], name: str) -> None:
        self.loop = loop
        self.name = name
        self.clock = SimClock(loop.world)
        self.is_stopping = False
        self.brokers = brokers
        self.topic_ids: dict[str, bytes] = {}
        self._connections: dict[int, Connection] = {}
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}  # broker and leader epoch
        self._coordinators: dict[tuple[int, str], int] = {}

    async def connection(self, broker_id: int) -> Connection:
        known = self._connections.get(broker_id)
        if known is None or known.is_closed:
            known = await Connection.open(
                Address(host_of(broker_id), PORT), client_id=self.name, timeout_ms=TIMEOUT_MS
            )
            self._connections[broker_id] = known
        return known

    async def any_connection(self) -> Connection:
        return await self.connection(self.loop.world.rng.choice(self.brokers))

    async def refresh(self, topic: str = TOPIC) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        connection = await self.any_connection()
        response = await connection.request(request, MetadataResponse, timeout_ms=TIMEOUT_MS)
        for found in response.topics:
            if found.error_code:
                continue
            if self.topic_ids.get(topic) != found.topic_id:
                self._forget_leaders(topic)  # epochs of another topic of that name
            self.topic_ids[topic] = found.topic_id
            for partition in found.partitions:
                key, epoch = (topic, partition.partition_index), partition.leader_epoch
                if epoch >= self._leaders.get(key, (-1, -1))[1]:
                    self._leaders[key] = partition.leader_id, epoch

    def _forget_leaders(self, topic: str) -> None:
        for key in [it for it in self._leaders if it[0] == topic]:
            del self._leaders[key]

    async def leader(self, topic: str, partition: int) -> tuple[Connection, int]:
        """The connection to the leader, and its epoch."""
        broker_id, epoch = self._leaders.get((topic, partition), (-1, -1))
        if broker_id < 0:
            raise BrokerError(f"{topic}-{partition} has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        return await self.connection(broker_id), epoch

    async def coordinator(self, key_type: int, key: str) -> Connection:
        """The connection to the coordinator of a group or a transactional id."""
        broker_id = self._coordinators.get((key_type, key))
        if broker_id is None:
            connection = await self.any_connection()
            response = await connection.request(
                FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]),
                FindCoordinatorResponse,
                timeout_ms=TIMEOUT_MS,
            )
            found = response.coordinators[0]
            if found.error_code:
                raise BrokerError(f"no coordinator of {key}", ErrorCode(found.error_code))
            broker_id = self._coordinators[key_type, key] = found.node_id
        return await self.connection(broker_id)

    def forget_coordinator(self, key_type: int, key: str) -> None:
        """The next call of `coordinator` asks a broker again."""
        self._coordinators.pop((key_type, key), None)

    async def pause(self) -> None:
        await asyncio.sleep(PAUSE_S * self.loop.world.rng.uniform(0.5, 2))

    async def recover(self, topic: str = TOPIC) -> None:
        """Pause after a failed request, then refresh the metadata."""
        await self.pause()
        try:
            await self.refresh(topic)
        except BrokerError:
            pass
