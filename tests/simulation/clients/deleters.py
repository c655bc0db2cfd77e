"""A client that deletes records: up to any offset, also in the middle of a batch, or up to the high watermark."""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import Partition

_PAUSE_S: Final = 1.0
_TO_THE_END: Final = 0.25  # of the requests
_TOO_FAR: Final = 0.1
_HIGH_WATERMARK: Final = -1


class Deleter(Client):
    """`request` hears of each offset before it is sent (None: all)."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        place: Partition,
        end: Callable[[], int],
        request: Callable[[int | None], None],
    ) -> None:
        super().__init__(loop, brokers, name)
        self.topic, self.partition = place
        self._end = end  # of the committed records, about
        self._request = request
        self.deleted_upto = 0  # acknowledged
        self.done = 0

    async def run(self) -> None:
        await self.recover(self.topic)
        while not self.is_stopping:
            try:
                await self._delete(self._choose())
            except BrokerError:
                await self.recover(self.topic)
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    def _choose(self) -> int:
        rng, end = self.loop.world.rng, self._end()
        chosen = rng.random()
        if chosen < _TO_THE_END:
            return _HIGH_WATERMARK
        if chosen < _TO_THE_END + _TOO_FAR:
            return end + rng.randint(1, 1000)
        return rng.randint(max(0, end - 40), end)

    async def _delete(self, offset: int) -> None:
        connection, _ = await self.leader(self.topic, self.partition)
        self._request(None if offset == _HIGH_WATERMARK else offset)
        partition = DeleteRecordsPartition(partition_index=self.partition, offset=offset)
        topic = DeleteRecordsTopic(name=self.topic, partitions=[partition])
        response = await connection.request(
            DeleteRecordsRequest(topics=[topic], timeout_ms=TIMEOUT_MS // 2),
            DeleteRecordsResponse,
            timeout_ms=TIMEOUT_MS,
        )
        result = response.topics[0].partitions[0]
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return
        if result.error_code:
            raise BrokerError("not deleted", ErrorCode(result.error_code))
        if result.low_watermark < offset:
            raise Broken(f"{self.name}: {offset} was wanted, {result.low_watermark} is the start")
        self.deleted_upto = max(self.deleted_upto, result.low_watermark)
        self.done += 1
