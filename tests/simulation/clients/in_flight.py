"""Sends the batches of one partition with up to five in flight, and retries them in order."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.support.checker import Outcome, Partition, Send

IN_FLIGHT_MAX: Final = 5
_LAST_V1_PRODUCE: Final = 11
RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Rejected(Exception):
    """The broker rejected a request with an error that a retry does not mend."""

    def __init__(self, request: str, code: int) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{request}: {self.code.name}")


class GaveUp(Exception):
    """The client's own time limit has passed: nobody knows what became of the batches."""


@dataclass(frozen=True)
class Identity:
    """Whose batches these are."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    version: int = 2  # of transactions, which the client speaks

    @property
    def last_produce(self) -> int | None:
        is_old = self.transactional_id is not None and self.version < 2
        return _LAST_V1_PRODUCE if is_old else None


@dataclass(eq=False)
class Batch:
    """The records of some sends, numbered."""

    identity: Identity
    sequence: int
    sends: Sequence[Send]
    data: bytes
    sent_ns: int = 0
    code: int | None = None  # of the last response; None: not sent yet
    is_acked: bool = False
    is_final: bool = field(default=False)  # the error, since nothing before it was unresolved


def numbered_batch(client: Client, identity: Identity, sequence: int, sends: list[Send]) -> Batch:
    now_ms = client.clock.wall_ms()
    records = [Record(number, now_ms, None, send.value) for number, send in enumerate(sends)]
    data = build_batch(
        records,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=identity.transactional_id is not None,
    )
    return Batch(identity, sequence, sends, bytes(data))


class PartitionSender:
    """Sends to one partition. `accepted` is called for each acknowledged batch."""

    def __init__(
        self,
        client: Client,
        place: Partition,
        accepted: Callable[[Batch], None] = lambda _batch: None,
    ) -> None:
        self.place = place
        self._client = client
        self._accepted = accepted
        self.swaps = 0.0  # share of neighbours that arrive in the wrong order

    async def send(self, batches: Sequence[Batch], limit_s: float) -> None:
        """Return when all are acknowledged. Raise Rejected or GaveUp."""
        left = list(batches)
        ends_s = self._client.loop.time() + limit_s
        while True:
            await _Round(self._client, self.place, left, self._accepted, self.swaps).run()
            left = [batch for batch in left if not batch.is_acked]
            if not left:
                return
            for batch in left:
                if batch.is_final:
                    assert batch.code is not None
                    raise Rejected(f"Produce to {self.place[0]}-{self.place[1]}", batch.code)
            if self._client.loop.time() > ends_s:
                raise GaveUp(f"{len(left)} batches to {self.place}")
            await self._client.recover(self.place[0])


class _Round:
    """One attempt on one connection: until all batches have a response, or one failed and none is in flight."""

    def __init__(
        self,
        client: Client,
        place: Partition,
        batches: list[Batch],
        accepted: Callable[[Batch], None],
        swaps: float,
    ) -> None:
        self._client = client
        self._place = place
        self._batches = batches
        self._accepted = accepted
        self._swaps = swaps
        self._next = 0
        self._in_flight = 0
        self._has_failed = False
        self._connection: Connection | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        try:
            connection, _ = await self._client.leader(*self._place)
        except BrokerError:
            return
        self._connection = connection
        timer = self._client.loop.call_later(TIMEOUT_MS / 1000, connection.abort)
        try:
            self._fill()
            await self._ended.wait()
        finally:
            timer.cancel()

    def _fill(self) -> None:
        rng = self._client.loop.world.rng
        while (
            self._next < len(self._batches)
            and self._in_flight < IN_FLIGHT_MAX
            and not self._has_failed
        ):
            pair = self._batches[self._next : self._next + 2]
            is_swapped = (
                len(pair) == 2
                and self._in_flight + 2 <= IN_FLIGHT_MAX
                and rng.random() < self._swaps
            )
            following = pair[::-1] if is_swapped else pair[:1]
            self._next += len(following)
            for batch in following:
                self._post(batch)
        if not self._in_flight:
            self._ended.set()

    def _post(self, batch: Batch) -> None:
        assert self._connection is not None
        self._in_flight += 1
        if not batch.sent_ns:
            batch.sent_ns = now_ns(self._client)
        try:
            post_batch(
                self._client,
                self._connection,
                self._place,
                batch,
                lambda code, offset: self._responded(batch, code, offset),
            )
        except BrokerError as error:
            self._responded(batch, error.code, -1)

    def _responded(self, batch: Batch, code: int, offset: int) -> None:
        self._in_flight -= 1
        batch.code = code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            _acknowledge(self._client, batch, offset)
            self._accepted(batch)
        else:
            self._has_failed = True
            batch.is_final = code not in RETRIABLE and not (
                code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and self._has_unresolved_before(batch)
            )
        if not self._in_flight or not self._has_failed:
            self._fill()

    def _has_unresolved_before(self, batch: Batch) -> bool:
        return any(not it.is_acked for it in self._batches[: self._batches.index(batch)])


def post_batch(
    client: Client,
    connection: Connection,
    place: Partition,
    batch: Batch,
    responded: Callable[[int, int], None],
) -> None:
    """Send it without waiting; call `responded` with the error code and the offset."""
    topic, index = place
    part = PartitionProduceData(index=index, records=memoryview(batch.data))
    named = TopicProduceData(topic_id=client.topic_ids[topic], name=topic, partition_data=[part])
    request = ProduceRequest(
        transactional_id=batch.identity.transactional_id,
        acks=-1,
        timeout_ms=TIMEOUT_MS // 2,
        topic_data=[named],
    )
    version = connection.version_for(ProduceRequest, at_most=batch.identity.last_produce)

    def answered(answer: memoryview | ClientError) -> None:
        if isinstance(answer, ClientError):
            responded(answer.code, -1)
            return
        response = connection.decode(memoryview(bytes(answer)), ProduceResponse, version)
        row: PartitionProduceResponse = response.responses[0].partition_responses[0]
        responded(row.error_code, row.base_offset)

    connection.post(request, version, answered)


def _acknowledge(client: Client, batch: Batch, offset: int) -> None:
    batch.is_acked = True
    for number, send in enumerate(batch.sends):
        send.outcome = Outcome.DONE
        send.acked_ns = now_ns(client)
        if offset >= 0:
            send.offset = offset + number


def now_ns(client: Client) -> int:
    return round(client.loop.time() * 1e9)
