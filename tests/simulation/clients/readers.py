"""Readers: from the start of a partition to its end, without a group."""

from collections.abc import Callable
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.record import decode_records
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import History, Partition, Seen

_WRONG_EPOCHS: Final = 0.02  # of all fetches
_FAR_AHEAD: Final = 1000


class Reader(Client):
    """Reads one partition from offset 0 until it is stopped."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.topic, self.partition = place
        self._history = history
        self.position = 0
        self._answered: dict[int, int] = {}  # the last leader epoch of each broker that it knows
        self.observe: Callable[[int], None] = lambda _offset: None

    async def run(self) -> None:
        while not self.is_stopping:
            if not await self._attempt():
                await self.recover(self.topic)

    async def _attempt(self) -> bool:
        try:
            connection, leader_epoch = await self.leader(self.topic, self.partition)
            broker_id = self._leaders[self.topic, self.partition][0]
            epoch = self._epoch_to_name(broker_id, leader_epoch)
            wanted = FetchPartition(
                partition=self.partition,
                current_leader_epoch=epoch,
                fetch_offset=self.position,
                partition_max_bytes=4096,
            )
            topic = FetchTopic(
                topic=self.topic, topic_id=self.topic_ids[self.topic], partitions=[wanted]
            )
            response = await connection.request(
                FetchRequest(
                    max_wait_ms=500,
                    min_bytes=1,
                    topics=[topic],
                ),
                FetchResponse,
                timeout_ms=TIMEOUT_MS,
            )
        except BrokerError:
            return False
        if response.error_code or not response.responses:
            return False
        data = response.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Broken(f"{self.name} at {self.position} is out of range in epoch {epoch}")
        if data.error_code:
            return epoch != leader_epoch
        if epoch != leader_epoch:
            raise Broken(f"{self.name}: broker {broker_id} answered in epoch {epoch}, not its own")
        self._answered[broker_id] = epoch
        if data.records:
            assert isinstance(data.records, memoryview)
            self._take(data.records)
        return True

    def _epoch_to_name(self, broker_id: int, leader_epoch: int) -> int:
        """Now and then one that must be rejected (KIP-320): older than that in which the broker led, or far ahead."""
        rng = self.loop.world.rng
        if rng.random() >= _WRONG_EPOCHS:
            return leader_epoch
        led_in = self._answered.get(broker_id, 0)
        return led_in - 1 if led_in and rng.random() < 0.5 else leader_epoch + _FAR_AHEAD

    def _take(self, data: memoryview) -> None:
        for start, header in iter_headers(data):
            for record in decode_records(data[start : start + header.size_bytes]):
                if record.offset >= self.position:
                    assert record.value is not None
                    seen = Seen(self.name, 0, self.place, record.offset, record.value)
                    self._history.seen.append(seen)
                    self.position = record.offset + 1
                    self.observe(record.offset)
