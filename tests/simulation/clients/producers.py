"""Producers: idempotent with acks=all, and one with acks=1 that sends to one broker only."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.client.connection import Connection
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.clients.client import PAUSE_S, TIMEOUT_MS, TOPIC, Client
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import History, Outcome, Partition, Send

NEVER: Final = frozenset(  # a correct producer gets these only if the broker lost something
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_REQUEST,
    }
)

_IN_FLIGHT: Final = 5
_PIPELINED_S: Final = 0.08  # between two batches
_NEW_ROUND: Final = 0.02  # after this share of the batches the producer asks for the leader again


class Producer(Client):
    """Idempotent, acks=all, one partition, one batch in flight."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.topic, self.partition = place
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
            await asyncio.sleep(self.loop.world.pause_s(0.08))

    async def _begin(self) -> None:
        while self._producer_id < 0:
            try:
                connection = await self.any_connection()
                response = await connection.request(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                    InitProducerIdResponse,
                    timeout_ms=TIMEOUT_MS,
                )
                if not response.error_code:
                    self._producer_id = response.producer_id
            except BrokerError:
                pass
            await self.recover(self.topic)

    async def _send(self, values: list[bytes]) -> None:
        sends = self._noted(values)
        batch = bytes(self._batch(values))
        while True:
            base_offset = await self._attempt(batch)
            if base_offset is not None:
                break
            await self.recover(self.topic)
        self._acknowledged(sends, base_offset)
        self._sequence += len(values)

    def _noted(self, values: list[bytes]) -> list[Send]:
        now_ns = round(self.loop.time() * 1e9)
        sends = [Send(self.name, self.place, value, now_ns) for value in values]
        self._history.sends += sends
        return sends

    def _acknowledged(self, sends: list[Send], base_offset: int) -> None:
        for number, send in enumerate(sends):
            send.outcome = Outcome.DONE
            send.offset = base_offset + number
            send.acked_ns = round(self.loop.time() * 1e9)
        self.acked += len(sends)

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
        """Return the acknowledged offset; None means: send the batch again."""
        try:
            connection, _ = await self.leader(self.topic, self.partition)
        except BrokerError:
            return None
        return await self._attempt_on(connection, batch)

    async def _attempt_on(self, connection: Connection, batch: bytes) -> int | None:
        try:
            response = await connection.request(
                ProduceRequest(
                    acks=-1,
                    timeout_ms=TIMEOUT_MS // 2,
                    topic_data=[
                        TopicProduceData(
                            topic_id=self.topic_ids[self.topic],
                            name=self.topic,
                            partition_data=[
                                PartitionProduceData(
                                    index=self.partition, records=memoryview(batch)
                                )
                            ],
                        )
                    ],
                ),
                ProduceResponse,
                timeout_ms=TIMEOUT_MS,
            )
        except BrokerError:
            return None
        result = response.responses[0].partition_responses[0]
        if result.error_code in NEVER:
            raise Broken(f"{self.name} received error {result.error_code}: {result.error_message}")
        return None if result.error_code else result.base_offset


class Unacked(NamedTuple):
    """A batch that was sent, or is to be sent."""

    batch: bytes
    sequence: int
    sends: list[Send]


class PipelinedProducer(Producer):
    """Has several batches in flight on one connection, as clients do; when one fails, all that follow are sent again."""

    async def run(self) -> None:
        await self._begin()
        left: list[Unacked] = []
        while left or not self.is_stopping:
            left = await self._round(left)
            await self.recover(self.topic)

    async def _round(self, again: list[Unacked]) -> list[Unacked]:
        """Send these, then new ones, until one fails; those that are not acknowledged then."""
        try:
            connection, _ = await self.leader(self.topic, self.partition)
        except BrokerError:
            return again
        waiting, in_flight = deque(again), deque[tuple[Unacked, asyncio.Task[int | None]]]()
        rng = self.loop.world.rng
        while True:
            oldest = in_flight[0][0] if in_flight else None
            if len(in_flight) < _IN_FLIGHT and (waiting or self._may_begin(oldest)):
                is_new = not waiting
                one = self._next() if is_new else waiting.popleft()
                sending = self.loop.spawn(self._attempt_on(connection, one.batch), self.name)
                in_flight.append((one, sending))
                await asyncio.sleep(self.loop.world.pause_s(_PIPELINED_S) if is_new else 0)
            elif in_flight:
                await asyncio.wait([in_flight[0][1]])
            else:
                return []
            while in_flight and in_flight[0][1].done():
                one, sent = in_flight.popleft()
                base_offset = sent.result()
                if base_offset is None:
                    return [one, *await self._rest(in_flight), *waiting]
                self._acknowledged(one.sends, base_offset)
            if connection.is_closed or rng.random() < _NEW_ROUND:
                return [*await self._rest(in_flight), *waiting]

    def _may_begin(self, oldest: Unacked | None) -> bool:
        """Brokers know the last five batches again: the oldest without a response stays one of them."""
        is_far = oldest is not None and self._sequence - oldest.sequence >= _IN_FLIGHT
        return not (self.is_stopping or is_far)

    async def _rest(
        self, in_flight: Iterable[tuple[Unacked, asyncio.Task[int | None]]]
    ) -> list[Unacked]:
        """Await the last responses of a round."""
        left: list[Unacked] = []
        for one, sent in in_flight:
            base_offset = await sent
            if base_offset is None:
                left.append(one)
            else:
                self._acknowledged(one.sends, base_offset)
        return left

    def _next(self) -> Unacked:
        value = f"{self.name}-{self._sequence}".encode()
        sends = self._noted([value])
        batch = bytes(self._batch([value]))
        self._sequence += 1
        return Unacked(batch, self._sequence - 1, sends)


class LeaderAcked(Client):
    """Sends to one broker only, with acks=1, and notes the time of each response."""

    def __init__(self, loop: SimLoop, broker_id: int, history: History) -> None:
        super().__init__(loop, [broker_id], "alone")
        self.acked_s: list[float] = []
        self.refused_s: list[float] = []
        self._history = history
        self._sent = 0

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                if TOPIC not in self.topic_ids:
                    await self.refresh()
                await self._send()
            except BrokerError:
                self.refused_s.append(self.loop.time())
            await asyncio.sleep(PAUSE_S)

    async def _send(self) -> None:
        self._sent += 1
        value = f"{self.name}-{self._sent}".encode()
        self._history.sends.append(Send(self.name, (TOPIC, 0), value, 0))
        batch = build_batch([Record(0, self.clock.wall_ms(), None, value)])
        data = PartitionProduceData(index=0, records=memoryview(bytes(batch)))
        topic = TopicProduceData(topic_id=self.topic_ids[TOPIC], name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=1, timeout_ms=500, topic_data=[topic])
        connection = await self.connection(self.brokers[0])
        response = await connection.request(request, ProduceResponse, timeout_ms=TIMEOUT_MS)
        result = response.responses[0].partition_responses[0]
        times_s = self.refused_s if result.error_code else self.acked_s
        times_s.append(self.loop.time())
