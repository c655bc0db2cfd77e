"""A topic whose records expire, by age and by size, and are deleted by a client; segments are small."""

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
from tests.simulation.clients.deleters import Deleter
from tests.simulation.clients.log_readers import LogReader
from tests.simulation.clients.producers import Producer
from tests.simulation.loop import Broken
from tests.simulation.workloads.workload import Cluster, Topic
from tests.support.checker import History

TOPIC: Final = Topic(
    "retained",
    1,
    (
        ("segment.bytes", "2000"),
        ("retention.ms", "4000"),
        ("retention.bytes", "40000"),
        ("file.delete.delay.ms", "300"),
        ("flush.ms", "800"),
    ),
    is_whole=False,
)
_PLACE: Final = (TOPIC.name, 0)
_PAUSE_S: Final = 0.3
_PADDING_BYTES: Final = (0, 50, 800)


class PaddedProducer(Producer):
    """As its base, with records of different sizes."""

    async def run(self) -> None:
        await self._begin()
        world = self.loop.world
        while not self.is_stopping:
            values = [
                b"%s-%d " % (self.name.encode(), self._sequence + number)
                + b"x" * world.rng.choice(_PADDING_BYTES)
                for number in range(world.rng.randint(1, 3))
            ]
            await self._send(values)
            await asyncio.sleep(world.pause_s(_PAUSE_S))


class CarelessProducer(Client):
    """Sends with acks=1, and nothing twice: a leader has much that is not replicated yet."""

    sent = 0

    async def run(self) -> None:
        await self.recover(TOPIC.name)
        while not self.is_stopping:
            try:
                await self._send()
            except BrokerError:
                await self.recover(TOPIC.name)
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _send(self) -> None:
        self.sent += 1
        value = b"%s-%d " % (self.name.encode(), self.sent) + b"y" * 700
        batch = build_batch([Record(0, self.clock.wall_ms(), None, value)])
        data = PartitionProduceData(index=0, records=memoryview(bytes(batch)))
        topic = TopicProduceData(
            topic_id=self.topic_ids[TOPIC.name], name=TOPIC.name, partition_data=[data]
        )
        connection, _ = await self.leader(TOPIC.name, 0)
        request = ProduceRequest(acks=1, timeout_ms=500, topic_data=[topic])
        response = await connection.request(request, ProduceResponse, timeout_ms=TIMEOUT_MS)
        if response.responses[0].partition_responses[0].error_code:
            await self.recover(TOPIC.name)


class Retained:
    """Producers, a reader, and a client that deletes records."""

    topics: tuple[Topic, ...] = (TOPIC,)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._history = History()
        self._values: dict[int, bytes] = {}  # as they were read
        loop, brokers = cluster.loop, cluster.brokers
        self._producer = PaddedProducer(loop, brokers, "padded", _PLACE, self._history)
        self._careless = CarelessProducer(loop, brokers, "careless")
        self._deleter = Deleter(loop, brokers, "deleter", _PLACE, self._end, self._request)
        self._reader = LogReader(loop, brokers, "retained-reader", _PLACE, has_gaps=False)
        self._reader.observe = self._observe
        self._reader.has_started = self._has_started
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> int:
        return self._producer.acked + self._deleter.done

    @property
    def written(self) -> int:
        return 0

    def begin(self) -> None:
        for client in (self._producer, self._careless, self._deleter):
            self._tasks.append(self._cluster.run_client(client, client.run()))
        self._cluster.run_client(self._reader, self._reader.run())

    def stop(self) -> None:
        for client in (self._producer, self._careless, self._deleter):
            client.is_stopping = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._tasks)

    def is_caught_up(self) -> bool:
        return self._reader.position >= self._end()

    def _end(self) -> int:
        return self._cluster.invariants.ends().get(_PLACE, 0)

    def _request(self, offset: int | None) -> None:
        topic_id = self._deleter.topic_ids[TOPIC.name]
        self._cluster.invariants.starts.request((topic_id, 0), offset)

    def _observe(self, record: Record) -> None:
        assert record.value is not None
        self._values[record.offset] = record.value
        self._cluster.invariants.read((self._reader.topic_ids[TOPIC.name], 0), record.offset)

    def _has_started(self, start: int, before: int) -> None:
        """Records are missing only up to where a leader's log began."""
        place = self._reader.topic_ids[TOPIC.name], 0
        highest = self._cluster.invariants.starts.highest.get(place, 0)
        if start > highest:
            raise Broken(f"the log starts at {start}, leaders deleted up to {highest}")
        if start < before:
            raise Broken(f"offset {before} is out of range, and the log starts at {start}")

    def judge(self) -> None:
        self._reader.is_stopping = True
        for send in self._history.sends:
            self._check(send.offset, send.value, "acknowledged")
            if send.offset is not None and send.offset >= self._reader.position:
                raise Broken(
                    f"{send.value[:20]!r} was acknowledged at {send.offset},"
                    f" and the reader is at the end, {self._reader.position}"
                )
        for host, log in self._cluster.contents(TOPIC.name):
            if log and log[0].offset < self._deleter.deleted_upto:
                raise Broken(
                    f"{host} has {log[0].offset}, {self._deleter.deleted_upto} was the start"
                )
            for record in log:
                self._check(record.offset, record.value or b"", f"in the log of {host}")

    def _check(self, offset: int | None, value: bytes, where: str) -> None:
        if offset is not None and self._values.setdefault(offset, value) != value:
            raise Broken(
                f"{value[:20]!r} was {where} at {offset}, {self._values[offset][:20]!r} read"
            )
