"""Transactions per second, what they cost beside plain idempotent producing, and how long a commit takes: `make bench B=transactions`.

The load are raw clients that send one produce request a transaction, with batches that were built beforehand, and wait for
each answer. A transaction has so many messages in all, of 100 bytes, and at least one in each partition. "idempotent" is
the same produce requests without transactions; "cost" is how much longer a round takes with one. The last table has
librdkafka, which knows transactions version 1 only.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, Final, NamedTuple

import confluent_kafka

from benchmarks.rig import (
    CpuMeter,
    Used,
    parser,
    percentiles,
    port_of,
    print_heading,
    print_machine,
    print_row,
    running_broker,
    topic,
    touch_memory,
)
from penstock.client.connection import Address, Connection
from penstock.model.errors import ErrorCode
from penstock.records.batch import renew_checksum
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.testing import Broker
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PARTITIONS: Final = (1, 10, 100)
MESSAGES: Final = (1, 100, 10_000)
MESSAGE_BYTES: Final = 100
_PATIENCE_MS: Final = 60_000
_WARMUP_S: Final = 0.5
_PRODUCER: Final = Struct(">qhi")  # id, epoch, sequence
_PRODUCER_AT: Final = 43
_NEW_PRODUCE, _NEW_END = 12, 5
_OLD_ADD, _OLD_PRODUCE, _OLD_END = 3, 9, 3


class Shape(NamedTuple):
    partitions: int
    messages: int

    @property
    def per_partition(self) -> int:
        return max(1, self.messages // self.partitions)


class Rounds:
    """One client; each `go` is one round, and returns how long its commit took."""

    def __init__(self, connection: Connection, name: str, shape: Shape, number: int) -> None:
        self._connection = connection
        self._topic = name
        self._shape = shape
        self._id: str | None = f"{name}-{number}"
        self._producer = (-1, -1)
        self._sequence = 0
        self._batch = bytearray()

    async def begin(self, kind: str) -> Callable[[], Awaitable[float]]:
        """Ready to go: idempotent, or with transactions of version 1 or 2."""
        transactional = kind != "idempotent"
        if not transactional:
            self._id = None
        value = bytes(MESSAGE_BYTES)
        records = [Record(n, 1, None, value) for n in range(self._shape.per_partition)]
        self._batch = build_batch(
            records,
            producer_id=0,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        if self._id is not None:
            find = FindCoordinatorRequest(coordinator_keys=[self._id], key_type=1)
            await self._ask(find, FindCoordinatorResponse)
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=60_000)
        answer = await self._ask(request, InitProducerIdResponse)
        assert not answer.error_code, ErrorCode(answer.error_code).name
        self._producer = (answer.producer_id, answer.producer_epoch)
        return {"idempotent": self._plain, "v1": self._version_1, "v2": self._version_2}[kind]

    async def _plain(self) -> float:
        begun_s = time.perf_counter()
        await self._produce(_OLD_PRODUCE)
        return time.perf_counter() - begun_s

    async def _version_1(self) -> float:
        await self._add()
        await self._produce(_OLD_PRODUCE)
        return (await self._end(_OLD_END))[0]

    async def _version_2(self) -> float:
        await self._produce(_NEW_PRODUCE)
        took_s, answer = await self._end(_NEW_END)
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequence = 0
        return took_s

    async def _produce(self, version: int) -> None:
        batch = self._batch
        _PRODUCER.pack_into(batch, _PRODUCER_AT, *self._producer, self._sequence)
        renew_checksum(memoryview(batch))
        parts = [
            PartitionProduceData(index=index, records=memoryview(batch))
            for index in range(self._shape.partitions)
        ]
        data = TopicProduceData(name=self._topic, partition_data=parts)
        request = ProduceRequest(
            transactional_id=self._id, acks=-1, timeout_ms=30_000, topic_data=[data]
        )
        answer = await self._ask(request, ProduceResponse, version)
        for part in answer.responses[0].partition_responses:
            assert not part.error_code, part.error_message
        self._sequence += self._shape.per_partition

    async def _add(self) -> None:
        assert self._id is not None
        names = AddPartitionsToTxnTopic(
            name=self._topic, partitions=list(range(self._shape.partitions))
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[names],
        )
        answer = await self._ask(request, AddPartitionsToTxnResponse, _OLD_ADD)
        for part in answer.results_by_topic_v3_and_below[0].results_by_partition:
            assert not part.partition_error_code, ErrorCode(part.partition_error_code).name

    async def _end(self, version: int) -> tuple[float, EndTxnResponse]:
        assert self._id is not None
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=True,
        )
        begun_s = time.perf_counter()
        answer = await self._ask(request, EndTxnResponse, version)
        took_s = time.perf_counter() - begun_s
        assert not answer.error_code, ErrorCode(answer.error_code).name
        return took_s, answer

    async def _ask(self, request: Any, response: Any, at_most: int | None = None) -> Any:
        return await self._connection.request(
            request, response, timeout_ms=_PATIENCE_MS, at_most=at_most
        )


class Run(NamedTuple):
    rounds_s: float
    commits_s: list[float]
    used: Used

    @property
    def cpu_us(self) -> float:
        """Of the broker, for each round."""
        return self.used.share / self.rounds_s * 1e6


async def run(
    broker: Broker, name: str, shape: Shape, kind: str, clients: int, seconds: float
) -> Run:
    address = Address("127.0.0.1", port_of(broker))
    connections = [
        await Connection.open(address, client_id="bench", timeout_ms=_PATIENCE_MS)
        for _ in range(clients)
    ]
    rounds = [Rounds(c, name, shape, number) for number, c in enumerate(connections)]
    work = [await each.begin(kind) for each in rounds]
    commits: list[float] = []
    begin_s = time.monotonic() + _WARMUP_S
    end_s = begin_s + seconds

    async def go_on(go: Callable[[], Awaitable[float]]) -> None:
        while (now_s := time.monotonic()) < end_s:
            took_s = await go()
            if now_s >= begin_s:
                commits.append(took_s)

    async def measured() -> Used:
        await asyncio.sleep(_WARMUP_S)
        meter = CpuMeter(broker.pid)
        await asyncio.sleep(seconds)
        return meter.lap()

    async with asyncio.TaskGroup() as tasks:
        meter = tasks.create_task(measured())
        for go in work:
            tasks.create_task(go_on(go))
    for connection in connections:
        await connection.close()
    return Run(len(commits) / seconds, commits, meter.result())


def measure(broker: Broker, shape: Shape, kind: str, clients: int, seconds: float) -> Run:
    touch_memory(1 << 30)
    with topic(broker, shape.partitions) as name:
        return asyncio.run(run(broker, name, shape, kind, clients, seconds))


def compare(broker: Broker, clients: int, seconds: float) -> None:
    print(f"\n{clients} producer{'s' if clients > 1 else ''} at once\n")
    print_heading(
        "partitions",
        "messages",
        "idempotent rounds/s",
        "v1 txn/s",
        "cost",
        "commit p50 / p99 ms",
        "v2 txn/s",
        "cost",
        "commit p50 / p99 ms",
        "v2 messages/s",
        "broker CPU µs: idempotent, v1, v2",
        "bound by",
    )
    for partitions in PARTITIONS:
        for messages in MESSAGES:
            shape = Shape(partitions, messages)
            plain = measure(broker, shape, "idempotent", clients, seconds)
            cells: list[object] = [partitions, messages, f"{plain.rounds_s:,.0f}"]
            old = measure(broker, shape, "v1", clients, seconds)
            new = measure(broker, shape, "v2", clients, seconds)
            for found in (old, new):
                p50, p99 = percentiles(found.commits_s, 0.50, 0.99)
                cells += [
                    f"{found.rounds_s:,.0f}",
                    f"{plain.rounds_s / found.rounds_s:.1f} times",
                    f"{p50 * 1e3:.2f} / {p99 * 1e3:.2f}",
                ]
            rate = new.rounds_s * shape.per_partition * partitions
            cpu = ", ".join(f"{found.cpu_us:,.0f}" for found in (plain, old, new))
            print_row(*cells, f"{rate:,.0f}", cpu, new.used.bound)


# librdkafka --------------------------------------------------------------------------------------


def librdkafka(broker: Broker, seconds: float) -> None:
    print("\nlibrdkafka, one producer; idempotent: the same messages and a flush\n")
    print_heading(
        "partitions", "messages", "idempotent rounds/s", "txn/s", "cost", "commit p50 / p99 ms"
    )
    for partitions in PARTITIONS:
        for messages in MESSAGES:
            shape = Shape(partitions, messages)
            with topic(broker, partitions) as name:
                plain, _ = _librdkafka_run(broker, name, shape, seconds, transactional=False)
            with topic(broker, partitions) as name:
                rate, commits = _librdkafka_run(broker, name, shape, seconds, transactional=True)
            p50, p99 = percentiles(commits, 0.50, 0.99)
            print_row(
                partitions,
                messages,
                f"{plain:,.0f}",
                f"{rate:,.0f}",
                f"{plain / rate:.1f} times",
                f"{p50 * 1e3:.2f} / {p99 * 1e3:.2f}",
            )


def _librdkafka_run(
    broker: Broker, name: str, shape: Shape, seconds: float, *, transactional: bool
) -> tuple[float, list[float]]:
    config: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "queue.buffering.max.messages": 1_000_000,
    }
    if transactional:
        config["transactional.id"] = name
    producer: Any = confluent_kafka.Producer(config)
    if transactional:
        producer.init_transactions(60)
    value, commits = bytes(MESSAGE_BYTES), []
    begin_s = time.monotonic() + _WARMUP_S
    while (now_s := time.monotonic()) < begin_s + seconds:
        if transactional:
            producer.begin_transaction()
        for index in range(shape.partitions):
            for _ in range(shape.per_partition):
                producer.produce(name, value, partition=index)
        commit_s = time.perf_counter()
        if transactional:
            producer.commit_transaction(60)
        else:
            assert producer.flush(60) == 0
        if now_s >= begin_s:
            commits.append(time.perf_counter() - commit_s)
    return len(commits) / seconds, commits


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="of each case")
    options.add_argument("--clients", type=int, default=16, help="producers at once")
    arguments = options.parse_args()
    print_machine()
    with running_broker(data=arguments.data) as broker:
        compare(broker, 1, arguments.seconds)
        compare(broker, arguments.clients, arguments.seconds)
        librdkafka(broker, arguments.seconds)


if __name__ == "__main__":
    main()
