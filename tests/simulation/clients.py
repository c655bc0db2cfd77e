"""Clients of a simulated cluster: producers that never give up, and readers. They write down what they are told."""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.client.connection import Address, Connection
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.record import Record, decode_records
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.loop import Broken, SimLoop
from tests.simulation.machine import PORT, SimClock, host_of
from tests.support.checker import History, Outcome, Seen, Send

TOPIC: Final = "t"
HOST: Final = "client"
_TIMEOUT_MS: Final = 1_500
_PAUSE_S: Final = 0.05
_NEVER: Final = frozenset(  # said to a producer that does everything right: something was lost
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_REQUEST,
    }
)


class Client:
    """Knows who leads, as of the newest epoch that it has heard of (KIP-320)."""

    def __init__(self, loop: SimLoop, brokers: list[int], name: str) -> None:
        self.loop = loop
        self.name = name
        self.clock = SimClock(loop.world)
        self.is_stopping = False
        self.brokers = brokers
        self._connections: dict[int, Connection] = {}
        self._leaders: dict[int, tuple[int, int]] = {}  # of each partition: who, and its epoch
        self.topic_id = bytes(16)

    async def connection(self, broker_id: int) -> Connection:
        known = self._connections.get(broker_id)
        if known is None or known.is_closed:
            known = await Connection.open(
                Address(host_of(broker_id), PORT), client_id=self.name, timeout_ms=_TIMEOUT_MS
            )
            self._connections[broker_id] = known
        return known

    async def refresh(self) -> None:
        broker_id = self.loop.world.rng.choice(self.brokers)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False
        )
        connection = await self.connection(broker_id)
        answer = await connection.request(request, MetadataResponse, timeout_ms=_TIMEOUT_MS)
        for topic in answer.topics:
            if topic.error_code:
                continue
            self.topic_id = topic.topic_id
            for partition in topic.partitions:
                epoch = partition.leader_epoch
                before = self._leaders.get(partition.partition_index, (-1, -1))
                if epoch >= before[1]:
                    self._leaders[partition.partition_index] = partition.leader_id, epoch

    async def leader(self, partition: int) -> tuple[Connection, int]:
        broker_id, epoch = self._leaders.get(partition, (-1, -1))
        if broker_id < 0:
            raise BrokerError("nobody leads", ErrorCode.LEADER_NOT_AVAILABLE)
        return await self.connection(broker_id), epoch

    async def trouble(self) -> None:
        """Ask again who leads, after a pause."""
        await asyncio.sleep(_PAUSE_S * self.loop.world.rng.uniform(0.5, 2))
        try:
            await self.refresh()
        except BrokerError:
            pass


async def create_topic(client: Client, partitions: int, configs: dict[str, str]) -> None:
    topic = CreatableTopic(
        name=TOPIC,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )
    while True:
        try:
            connection = await client.connection(client.loop.world.rng.choice(client.brokers))
            answer = await connection.request(
                CreateTopicsRequest(topics=[topic], timeout_ms=5000),
                CreateTopicsResponse,
                timeout_ms=6000,
            )
        except BrokerError:
            await asyncio.sleep(_PAUSE_S)
            continue
        if answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(_PAUSE_S)


async def delete_topic(client: Client) -> None:
    """By its name, until there is none."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=5000)
    while True:
        try:
            connection = await client.connection(client.loop.world.rng.choice(client.brokers))
            answer = await connection.request(request, DeleteTopicsResponse, timeout_ms=6000)
        except BrokerError:
            await asyncio.sleep(_PAUSE_S)
            continue
        if answer.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return
        await asyncio.sleep(_PAUSE_S)


async def move_partition(client: Client, index: int, replicas: list[int]) -> None:
    """Asks once: it may be refused, or the answer may be lost."""
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=2000, topics=[ReassignableTopic(name=TOPIC, partitions=[partition])]
    )
    try:
        connection = await client.connection(client.loop.world.rng.choice(client.brokers))
        await connection.request(request, AlterPartitionReassignmentsResponse, timeout_ms=3000)
    except BrokerError:
        pass


class Producer(Client):
    """Idempotent, acks=all, one batch of each partition at a time."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, partition: int, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.partition = partition
        self._history = history
        self._producer_id = -1
        self._sequence = 0
        self.acked = 0

    async def run(self) -> None:
        await self._begin()
        rng = self.loop.world.rng
        while not self.is_stopping:
            values = [
                f"{self.name}-{self._sequence + number}".encode()
                for number in range(rng.randint(1, 3))
            ]
            await self._send(values)
            await asyncio.sleep(rng.expovariate(1 / 0.08))

    async def _begin(self) -> None:
        while self._producer_id < 0:
            try:
                connection = await self.connection(self.loop.world.rng.choice(self.brokers))
                answer = await connection.request(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                    InitProducerIdResponse,
                    timeout_ms=_TIMEOUT_MS,
                )
                if not answer.error_code:
                    self._producer_id = answer.producer_id
            except BrokerError:
                pass
            await self.trouble()

    async def _send(self, values: list[bytes]) -> None:
        place = (TOPIC, self.partition)
        now_ns = round(self.loop.time() * 1e9)
        sends = [Send(self.name, place, value, now_ns) for value in values]
        self._history.sends += sends
        batch = bytes(self._batch(values))
        while True:
            base_offset = await self._attempt(batch)
            if base_offset is not None:
                break
            await self.trouble()
        for number, send in enumerate(sends):
            send.outcome = Outcome.DONE
            send.offset = base_offset + number
            send.acked_ns = round(self.loop.time() * 1e9)
        self._sequence += len(values)
        self.acked += len(values)

    def _batch(self, values: list[bytes]) -> bytearray:
        now_ms = self.clock.wall_ms()
        records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
        return build_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )

    async def _attempt(self, batch: bytes) -> int | None:
        """The offset at which it was acknowledged; None: try again."""
        try:
            connection, _ = await self.leader(self.partition)
            answer = await connection.request(
                ProduceRequest(
                    acks=-1,
                    timeout_ms=_TIMEOUT_MS // 2,
                    topic_data=[
                        TopicProduceData(
                            topic_id=self.topic_id,
                            name=TOPIC,
                            partition_data=[
                                PartitionProduceData(
                                    index=self.partition, records=memoryview(batch)
                                )
                            ],
                        )
                    ],
                ),
                ProduceResponse,
                timeout_ms=_TIMEOUT_MS,
            )
        except BrokerError:
            return None
        told = answer.responses[0].partition_responses[0]
        if told.error_code in _NEVER:
            raise Broken(f"{self.name} was told {told.error_code}: {told.error_message}")
        return None if told.error_code else told.base_offset


class LeaderAcked(Client):
    """Sends to one broker alone, whoever leads, and is content with its word (acks=1). When it had it is noted."""

    def __init__(self, loop: SimLoop, broker_id: int, history: History) -> None:
        super().__init__(loop, [broker_id], "alone")
        self.acked_s: list[float] = []
        self.refused_s: list[float] = []
        self._history = history
        self._sent = 0

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                if not any(self.topic_id):
                    await self.refresh()
                await self._send()
            except BrokerError:
                self.refused_s.append(self.loop.time())
            await asyncio.sleep(_PAUSE_S)

    async def _send(self) -> None:
        self._sent += 1
        value = f"{self.name}-{self._sent}".encode()
        self._history.sends.append(Send(self.name, (TOPIC, 0), value, 0))
        batch = build_batch([Record(0, self.clock.wall_ms(), None, value)])
        data = PartitionProduceData(index=0, records=memoryview(bytes(batch)))
        topic = TopicProduceData(topic_id=self.topic_id, name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=1, timeout_ms=500, topic_data=[topic])
        connection = await self.connection(self.brokers[0])
        answer = await connection.request(request, ProduceResponse, timeout_ms=_TIMEOUT_MS)
        told = answer.responses[0].partition_responses[0]
        times_s = self.refused_s if told.error_code else self.acked_s
        times_s.append(self.loop.time())


class Reader(Client):
    """From the start of a partition to its end, for ever."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, partition: int, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.partition = partition
        self._history = history
        self.position = 0
        self.observe: Callable[[int], None] = lambda _offset: None

    async def run(self) -> None:
        while not self.is_stopping:
            if not await self._attempt():
                await self.trouble()

    async def _attempt(self) -> bool:
        try:
            connection, epoch = await self.leader(self.partition)
            wanted = FetchPartition(
                partition=self.partition,
                current_leader_epoch=epoch,
                fetch_offset=self.position,
                partition_max_bytes=4096,
            )
            answer = await connection.request(
                FetchRequest(
                    max_wait_ms=200,
                    min_bytes=1,
                    topics=[FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=[wanted])],
                ),
                FetchResponse,
                timeout_ms=_TIMEOUT_MS,
            )
        except BrokerError:
            return False
        if answer.error_code or not answer.responses:
            return False
        data = answer.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Broken(f"{self.name} at {self.position} is out of range in epoch {epoch}")
        if data.error_code:
            return False
        if data.records:
            assert isinstance(data.records, memoryview)
            self._take(data.records)
        return True

    def _take(self, data: memoryview) -> None:
        for start, header in iter_headers(data):
            for record in decode_records(data[start : start + header.size_bytes]):
                if record.offset >= self.position:
                    assert record.value is not None
                    seen = Seen(self.name, 0, (TOPIC, self.partition), record.offset, record.value)
                    self._history.seen.append(seen)
                    self.position = record.offset + 1
                    self.observe(record.offset)
