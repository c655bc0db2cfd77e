"""Moves coordinators: it gives partitions of __consumer_offsets to other brokers, and elects their leaders."""

import asyncio
from typing import Final

from penstock.model.errors import BrokerError
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tests.simulation.clients.admin import move_partition
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import SimLoop

_OFFSETS: Final = "__consumer_offsets"
_PREFERRED: Final = 0
_PAUSE_S: Final = 3.0
_BACK_S: Final = (0.02, 0.5)
_RETURNS: Final = 0.5  # of all moves, after which the coordinator goes away and comes back
_REPLICAS: Final = 3


class Mover(Client):
    """What an operator may do at any time: no request waits until the one before has taken effect."""

    def __init__(self, loop: SimLoop, brokers: list[int], partitions: int) -> None:
        super().__init__(loop, brokers, "mover")
        self._partitions = partitions

    async def run(self) -> None:
        world = self.loop.world
        while not self.is_stopping:
            await asyncio.sleep(world.pause_s(_PAUSE_S))
            index = world.rng.randrange(self._partitions)
            replicas = world.rng.sample(self.brokers, _REPLICAS)
            await self._lead(index, replicas)
            if world.rng.random() < _RETURNS:
                first, second, *others = replicas
                await self._lead(index, [second, first, *others])
                await self._lead(index, replicas)

    async def _lead(self, index: int, replicas: list[int]) -> None:
        """Let the first of these brokers lead the partition."""
        await move_partition(self, _OFFSETS, index, replicas)
        await asyncio.sleep(self.loop.world.rng.uniform(*_BACK_S))
        request = ElectLeadersRequest(
            election_type=_PREFERRED,
            topic_partitions=[TopicPartitions(topic=_OFFSETS, partitions=[index])],
            timeout_ms=TIMEOUT_MS // 2,
        )
        try:
            connection = await self.any_connection()
            await connection.request(request, ElectLeadersResponse, timeout_ms=TIMEOUT_MS)
        except BrokerError:
            await self.pause()
