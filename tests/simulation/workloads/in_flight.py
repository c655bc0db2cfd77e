"""Idempotent producers with several batches in flight, and copies of their requests that arrive late."""

import asyncio
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.clients.in_flight import (
    Batch,
    GaveUp,
    Identity,
    PartitionSender,
    Rejected,
    now_ns,
    numbered_batch,
    post_batch,
)
from tests.simulation.clients.readers import Reader
from tests.simulation.loop import Broken, SimLoop
from tests.simulation.workloads.workload import Cluster, Topic
from tests.support.checker import History, Partition, Send

_TOPIC: Final = Topic("flight", 1, (("segment.bytes", "4096"),))
_PRODUCERS: Final = 2  # per partition
_PAUSE_S: Final = 0.3
_BATCHES_MAX: Final = 8  # at a time
_SWAPPED: Final = 0.05  # of neighbours
_LATE: Final = 0.15  # of all rounds, after which an old request arrives again
_KEPT: Final = 12  # requests that may arrive again
_NEW_EPOCH: Final = 0.05  # of all rounds
_LIMIT_S: Final = 9.0  # as delivery.timeout.ms


class PipeliningProducer(Client):
    """Sends several batches at a time. After its time limit it goes on in a new epoch, as KafkaProducer does."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.acked = 0
        self._history = history
        self._identity = Identity(-1, 0)
        self._sequence = 0
        self._count = 0
        self._old: list[Batch] = []
        self._sender = PartitionSender(self, place, self._accepted)

    async def run(self) -> None:
        await self._begin()
        rng = self.loop.world.rng
        while not self.is_stopping:
            batches = [self._batch(rng.randint(1, 2)) for _ in range(rng.randint(1, _BATCHES_MAX))]
            await self._send(batches)
            if rng.random() < _NEW_EPOCH:
                self._bump_epoch()
            if rng.random() < _LATE:
                await self._arrive_late()
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _begin(self) -> None:
        while self._identity.producer_id < 0:
            try:
                connection = await self.any_connection()
                response = await connection.request(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                    InitProducerIdResponse,
                    timeout_ms=TIMEOUT_MS,
                )
                if not response.error_code:
                    self._identity = Identity(response.producer_id, 0)
            except BrokerError:
                pass
            await self.recover(self.place[0])

    def _batch(self, count: int) -> Batch:
        sends = []
        for _ in range(count):
            self._count += 1
            sends.append(
                Send(self.name, self.place, f"{self.name}-{self._count}".encode(), now_ns(self))
            )
        self._history.sends += sends
        batch = numbered_batch(self, self._identity, self._sequence, sends)
        self._sequence += count
        return batch

    async def _send(self, batches: list[Batch]) -> None:
        self._sender.swaps = _SWAPPED if batches[0].sequence else 0.0
        try:
            await self._sender.send(batches, _LIMIT_S)
        except Rejected as error:
            if error.code is not ErrorCode.INVALID_TIMESTAMP:  # the clock of the broker is wrong
                raise Broken(f"{self.name}: {error}") from None
            self._bump_epoch()
        except GaveUp:
            self._bump_epoch()
        self._old = (self._old + batches)[-_KEPT:]

    def _bump_epoch(self) -> None:
        """Batches without a response are not sent again."""
        self._identity = Identity(self._identity.producer_id, self._identity.epoch + 1)
        self._sequence = 0

    def _accepted(self, batch: Batch) -> None:
        self.acked += len(batch.sends)

    async def _arrive_late(self) -> None:
        """A copy of an old request comes out of the network. Nobody waits for its response."""
        batch = self.loop.world.rng.choice(self._old)
        try:
            connection, _ = await self.leader(*self.place)
            post_batch(self, connection, self.place, batch, self._ignore)
        except BrokerError:
            pass

    def _ignore(self, code: int, offset: int) -> None:
        """A copy is known, or rejected; the log tells in the end."""


class InFlight:
    """Pipelining producers and a reader of each partition. The history's checker judges them."""

    topics: tuple[Topic, ...] = (_TOPIC,)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producers: list[PipeliningProducer] = []
        self._readers: list[Reader] = []
        self._producing: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> int:
        return sum(producer.acked for producer in self._producers)

    @property
    def written(self) -> int:
        return self.operations

    def begin(self) -> None:
        cluster = self._cluster
        for index in range(_TOPIC.partitions):
            place = _TOPIC.name, index
            for number in range(_PRODUCERS):
                producer = PipeliningProducer(
                    cluster.loop, cluster.brokers, f"f{index}.{number}", place, cluster.history
                )
                self._producers.append(producer)
                self._producing.append(cluster.run_client(producer, producer.run()))
            reader = Reader(cluster.loop, cluster.brokers, f"rf{index}", place, cluster.history)
            self._readers.append(reader)
            cluster.run_client(reader, reader.run())

    def stop(self) -> None:
        for producer in self._producers:
            producer.is_stopping = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._producing)

    def is_caught_up(self) -> bool:
        ends = self._cluster.invariants.ends()
        return all(reader.position >= ends.get(reader.place, 0) for reader in self._readers)

    def judge(self) -> None:
        for reader in self._readers:
            reader.is_stopping = True
