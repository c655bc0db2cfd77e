"""A topic with unclean leader elections: acknowledged records may be lost, and everything else still holds.

In one leader epoch an offset has one record, whoever reads it; readers may lose their place, and find it again; in
the end all replicas hold the same, and records can be written and read.
"""

import asyncio
from typing import Final

from penstock.model.errors import BrokerError
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.clients.readers import Reader
from tests.simulation.loop import Broken, SimLoop
from tests.simulation.workloads.workload import Cluster, Topic
from tests.support.checker import History

NAME: Final = "x-lossy"
_TOPIC: Final = Topic(
    NAME,
    1,
    (
        ("min.insync.replicas", "1"),
        ("segment.bytes", "4096"),
        ("unclean.leader.election.enable", "true"),
    ),
)
_PAUSE_S: Final = 0.12


class LossyProducer(Client):
    """Sends each value until it is acknowledged, and knows no order. Nothing is promised of what it sent."""

    def __init__(self, loop: SimLoop, brokers: list[int]) -> None:
        super().__init__(loop, brokers, "lossy-producer")
        self.acked = 0
        self._sent = 0

    async def run(self) -> None:
        while not self.is_stopping:
            self._sent += 1
            while not await self._attempt(f"lossy-{self._sent}".encode()):
                await self.recover(NAME)
            self.acked += 1
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _attempt(self, value: bytes) -> bool:
        batch = build_batch([Record(0, self.clock.wall_ms(), None, value)])
        data = PartitionProduceData(index=0, records=memoryview(bytes(batch)))
        try:
            connection, _ = await self.leader(NAME, 0)
            topic = TopicProduceData(
                topic_id=self.topic_ids[NAME], name=NAME, partition_data=[data]
            )
            request = ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS // 2, topic_data=[topic])
            response = await connection.request(request, ProduceResponse, timeout_ms=TIMEOUT_MS)
        except BrokerError:
            return False
        return not response.responses[0].partition_responses[0].error_code


class LossyReader(Reader):
    """Begins anew where its place is gone."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], known: dict[tuple[int, int], bytes]
    ) -> None:
        """`known`: the value at each offset in each leader epoch."""
        super().__init__(loop, brokers, "lossy-reader", (NAME, 0), History())
        self._known = known

    def _lost(self, what: str) -> None:  # noqa: ARG002 - that may be here
        self.position = 0
        self._read_epoch = -1
        self._session = self._follower = None

    def _seen(self, offset: int, epoch: int, value: bytes) -> None:
        before = self._known.setdefault((offset, epoch), value)
        if before != value:
            raise Broken(f"{NAME}: offset {offset} of epoch {epoch} is {before!r}, and {value!r}")


class Lossy:
    """One producer, one reader, and what they found."""

    topics: tuple[Topic, ...] = (_TOPIC,)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = LossyProducer(cluster.loop, cluster.brokers)
        self._known: dict[tuple[int, int], bytes] = {}
        self._reader = LossyReader(cluster.loop, cluster.brokers, self._known)
        self._producing: asyncio.Task[None] | None = None

    @property
    def operations(self) -> int:
        return self._producer.acked

    @property
    def written(self) -> int:
        return 0

    def begin(self) -> None:
        self._producing = self._cluster.run_client(self._producer, self._producer.run())
        self._cluster.run_client(self._reader, self._reader.run())

    def stop(self) -> None:
        self._producer.is_stopping = True

    def is_done(self) -> bool:
        return self._producing is not None and self._producing.done()

    def is_caught_up(self) -> bool:
        """The reader went past the record that was acknowledged last, when all was well again."""
        last = f"lossy-{self._producer.acked}".encode()
        return last in self._known.values()

    def judge(self) -> None:
        self._reader.is_stopping = True
