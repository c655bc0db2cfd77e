"""Moves partitions of __consumer_offsets to other brokers, where there are enough of them."""

import asyncio
from typing import Final

from tests.simulation.clients.admin import move_partition
from tests.simulation.clients.client import Client
from tests.simulation.loop import SimLoop

_PAUSE_S: Final = 4.0
_REPLICAS: Final = 3
_PARTITIONS: Final = 3


class Mover(Client):
    """What an operator may do at any time: coordinators move with the partitions."""

    def __init__(self, loop: SimLoop, brokers: list[int]) -> None:
        super().__init__(loop, brokers, "mover")

    async def run(self) -> None:
        world = self.loop.world
        while not self.is_stopping and len(self.brokers) > _REPLICAS:
            replicas = world.rng.sample(self.brokers, _REPLICAS)
            index = world.rng.randrange(_PARTITIONS)
            await move_partition(self, "__consumer_offsets", index, replicas)
            await asyncio.sleep(world.pause_s(_PAUSE_S))
