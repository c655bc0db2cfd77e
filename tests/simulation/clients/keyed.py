"""Producers of keyed records: an idempotent one, and one whose transactions commit or abort (protocol version 2).

Every record has a header with its identity, so that tombstones have one too.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.clients.client import TIMEOUT_MS, TRANSACTION, Client
from tests.simulation.clients.producers import NEVER
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import Outcome, Partition

ID: Final = "id"  # name of the header
_TOMBSTONES: Final = 0.2
_FRESH_KEYS: Final = 0.1  # written once, to be kept for ever
_ABORTED: Final = 0.4
_PAUSE_S: Final = 0.15
_PADDING_BYTES: Final = (0, 0, 40, 300)


@dataclass(slots=True)
class Written:
    """One record, and what its producer knows of it."""

    name: str
    key: bytes
    value: bytes | None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    acked_s: float = 0.0


class KeyedProducer(Client):
    """Idempotent, acks=all, one batch in flight. All producers share few keys."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, keys: int
    ) -> None:
        super().__init__(loop, brokers, name)
        self.topic, self.partition = place
        self.written: list[Written] = []
        self._keys = keys
        self._producer = (-1, -1)  # id and epoch
        self._sequence = 0

    @property
    def acked(self) -> int:
        return sum(it.outcome is Outcome.DONE for it in self.written)

    async def run(self) -> None:
        await self.recover(self.topic)
        await self._begin(None)
        rng = self.loop.world.rng
        while not self.is_stopping:
            await self._send_all(self._write(rng.randint(1, 3)))
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _begin(self, transactional_id: str | None) -> None:
        """Get a producer id and epoch. What the producer left open before is aborted."""
        while True:
            try:
                if transactional_id is None:
                    connection = await self.any_connection()
                else:
                    connection = await self.coordinator(TRANSACTION, transactional_id)
                response = await connection.request(
                    InitProducerIdRequest(
                        transactional_id=transactional_id, transaction_timeout_ms=5000
                    ),
                    InitProducerIdResponse,
                    timeout_ms=TIMEOUT_MS,
                )
                if not response.error_code:
                    self._producer = response.producer_id, response.producer_epoch
                    self._sequence = 0
                    return
            except BrokerError:
                pass
            if transactional_id is not None:
                self.forget_coordinator(TRANSACTION, transactional_id)
            await self.recover(self.topic)

    def _write(self, count: int) -> list[Written]:
        rng, made = self.loop.world.rng, list[Written]()
        for _ in range(count):
            name = f"{self.name}-{len(self.written) + len(made)}"
            is_fresh = rng.random() < _FRESH_KEYS
            key = name if is_fresh else f"k{rng.randrange(self._keys)}"
            has_value = is_fresh or rng.random() >= _TOMBSTONES
            padding = "x" * rng.choice(_PADDING_BYTES)
            made.append(
                Written(name, key.encode(), f"{name} {padding}".encode() if has_value else None)
            )
        self.written += made
        return made

    async def _send_all(self, records: list[Written]) -> None:
        batch = self._batch(records, transactional=False)
        while (base_offset := await self._attempt(batch, None)) is None:
            await self.recover(self.topic)
        self._acked(records, base_offset)
        for record in records:
            record.outcome = Outcome.DONE

    def _acked(self, records: Iterable[Written], base_offset: int) -> None:
        for number, record in enumerate(records):
            record.offset = base_offset + number
            record.acked_s = self.loop.world.now_s

    def _batch(self, records: list[Written], *, transactional: bool) -> bytes:
        now_ms = self.clock.wall_ms()
        producer_id, epoch = self._producer
        built = build_batch(
            [
                Record(number, now_ms, it.key, it.value, ((ID, it.name.encode()),))
                for number, it in enumerate(records)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
            transactional=transactional,
        )
        self._sequence += len(records)
        return bytes(built)

    async def _attempt(self, batch: bytes, transactional_id: str | None) -> int | None:
        """Return the acknowledged offset; None means: send the batch again."""
        try:
            result = await self._produce(batch, transactional_id)
        except BrokerError:
            return None
        if result.error_code in NEVER:
            raise Broken(f"{self.name} received error {result.error_code}: {result.error_message}")
        return None if result.error_code else result.base_offset

    async def _produce(
        self, batch: bytes, transactional_id: str | None
    ) -> PartitionProduceResponse:
        connection, _ = await self.leader(self.topic, self.partition)
        data = PartitionProduceData(index=self.partition, records=memoryview(batch))
        topic = TopicProduceData(
            topic_id=self.topic_ids[self.topic], name=self.topic, partition_data=[data]
        )
        response = await connection.request(
            ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                timeout_ms=TIMEOUT_MS // 2,
                topic_data=[topic],
            ),
            ProduceResponse,
            timeout_ms=TIMEOUT_MS,
        )
        return response.responses[0].partition_responses[0]


class TransactionalKeyedProducer(KeyedProducer):
    """Each transaction has one or two batches. After any error it begins anew, which ends what was open."""

    async def run(self) -> None:
        await self.recover(self.topic)
        await self._begin(self.name)
        rng = self.loop.world.rng
        while not self.is_stopping:
            records = self._write(rng.randint(1, 2))
            more = self._write(rng.randint(0, 1))
            try:
                await self._transact(records, more, commit=rng.random() >= _ABORTED)
            except BrokerError:
                self.forget_coordinator(TRANSACTION, self.name)
                await self.recover(self.topic)
                await self._begin(self.name)
            await asyncio.sleep(self.loop.world.pause_s(2 * _PAUSE_S))

    async def _transact(self, records: list[Written], more: list[Written], *, commit: bool) -> None:
        for record in (*records, *more):
            record.outcome = Outcome.FAILED  # unless the end says otherwise
        for part in filter(None, (records, more)):
            self._acked(part, await self._send_part(part))
            await asyncio.sleep(self.loop.world.pause_s(0.05))
        if commit:
            for record in (*records, *more):
                record.outcome = Outcome.UNKNOWN
        await self._end(commit=commit)
        if commit:
            for record in (*records, *more):
                record.outcome = Outcome.DONE
                record.acked_s = self.loop.world.now_s

    async def _send_part(self, records: list[Written]) -> int:
        batch = self._batch(records, transactional=True)
        code = 0
        for _ in range(3):
            result = await self._produce(batch, self.name)
            if not result.error_code:
                return result.base_offset
            code = result.error_code
            await self.recover(self.topic)
        raise BrokerError("the transaction is given up", ErrorCode(code))

    async def _end(self, *, commit: bool) -> None:
        connection = await self.coordinator(TRANSACTION, self.name)
        producer_id, epoch = self._producer
        response = await connection.request(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
            ),
            EndTxnResponse,
            timeout_ms=TIMEOUT_MS,
        )
        if response.error_code:
            raise BrokerError("the end is unknown", ErrorCode(response.error_code))
        self._producer = response.producer_id, response.producer_epoch
        self._sequence = 0
