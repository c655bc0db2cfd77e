"""Requests with many elements are handled in steps, in order, within limits. A real connection on a loop of asyncio."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.kafka.apis import APIS
from penstock.kafka.connection import Connection
from penstock.kafka.memory import FrameMemory
from penstock.kafka.server import ConnectionLimits, Listener, Loop
from penstock.model.errors import ErrorCode
from penstock.node.tasks import Tasks
from penstock.wire.api_keys import ApiKey
from penstock.wire.header import decode_response_header
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
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
from penstock.wire.schema import Message
from tests.support.bombs import zeros
from tests.support.context import BrokerContext, broker_context
from tests.support.raw_client import encode_request
from tests.support.stalls import BOUND_MS, Stalls, measured_stalls

SLACK = 3  # a core that others use too has cold caches
MANY = 20_000
WORD = 77


class Wire:
    """A client of one connection, on the loop of the broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self.memory = FrameMemory(64 << 20)
        broker.call(self._open)

    def _open(self) -> None:
        loop, tasks = asyncio.get_running_loop(), Tasks()
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self._theirs.setblocking(False)
        limits = ConnectionLimits(lambda: 10, lambda: 10)
        limits.admit("peer")
        shared = Loop(loop, self.memory, 100 << 20, tasks.spawn)
        listener = Listener("PLAINTEXT", ours, self._broker.services, shared, limits, 60)
        self.connection = Connection(ours, listener, shared, "peer")
        listener._connections.add(self.connection)

    def ask(self, *frames: bytes) -> list[bytes]:
        """Send the frames, then ApiVersions; the responses before that of ApiVersions."""
        last = encode_request(ApiVersionsRequest(), 0, WORD)
        return self._broker.run(self._exchange(b"".join(frames) + last))

    async def _exchange(self, sent: bytes) -> list[bytes]:
        loop = asyncio.get_running_loop()
        tasks = Tasks()
        tasks.spawn(loop.sock_sendall(self._theirs, sent), "send")
        found: list[bytes] = []
        try:
            while True:
                frame = await self._read(int.from_bytes(await self._read(4), "big"))
                if int.from_bytes(frame[:4], "big") == WORD:
                    return found
                found.append(frame)
        finally:
            await tasks.close()

    async def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = await asyncio.get_running_loop().sock_recv(self._theirs, size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return bytes(data)

    def close(self) -> None:
        async def closed() -> None:
            self.connection.close("the test ends", expected=True)
            self._theirs.close()
            await asyncio.sleep(0)

        self._broker.run(closed())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerContext]:
    with broker_context(tmp_path_factory.mktemp("broker")) as context:
        context.create_topic("t", 4)
        yield context


@pytest.fixture
def wire(started: BrokerContext) -> Iterator[Wire]:
    opened = Wire(started)
    yield opened
    opened.close()


@contextmanager
def short_stalls() -> Iterator[Stalls]:
    with measured_stalls() as stalls:
        yield stalls
    assert stalls.longest_ms < SLACK * BOUND_MS, stalls


def decoded(frame: bytes, answer: type[Message], version: int) -> Any:
    view = memoryview(frame)
    _, at = decode_response_header(view, answer.api_key, version)
    return answer.decode(view[at:], version)


def test_many_topics_are_described_without_holding_the_loop(wire: Wire) -> None:
    count = 3 * MANY
    names = [MetadataRequestTopic(name=f"n-{number}") for number in range(count)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    with short_stalls():
        (frame,) = wire.ask(encode_request(request, 8))
    found = decoded(frame, MetadataResponse, 8).topics
    assert [topic.name for topic in found] == [f"n-{number}" for number in range(count)]


def test_a_name_that_is_repeated_is_described_once(wire: Wire) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")] * MANY, allow_auto_topic_creation=False
    )
    (frame,) = wire.ask(encode_request(request, 8))
    assert [len(topic.partitions) for topic in decoded(frame, MetadataResponse, 8).topics] == [4]


def test_offsets_of_many_partitions_are_listed_in_order(wire: Wire) -> None:
    asked = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(MANY)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=asked)])
    with short_stalls():
        (frame,) = wire.ask(encode_request(request, 5))
    (topic,) = decoded(frame, ListOffsetsResponse, 5).topics
    assert [it.partition_index for it in topic.partitions] == list(range(MANY))
    assert [it.error_code for it in topic.partitions[:5]] == [0, 0, 0, 0, 3]


def test_a_partition_is_searched_by_time_once_in_a_request(wire: Wire) -> None:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=5) for _ in range(1000)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=asked)])
    (frame,) = wire.ask(encode_request(request, 5))
    (topic,) = decoded(frame, ListOffsetsResponse, 5).topics
    assert [it.error_code for it in topic.partitions] == [0] + 999 * [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("wait_ms", [0, 10])
def test_many_partitions_are_fetched_without_holding_the_loop(
    wire: Wire, wait_ms: int, session_epoch: int
) -> None:
    wanted = [FetchPartition(partition=i % 4, partition_max_bytes=1 << 20) for i in range(4)]
    wanted += [FetchPartition(partition=i, partition_max_bytes=1 << 20) for i in range(4, MANY)]
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic="t", partitions=wanted)],
    )
    with short_stalls():
        (frame,) = wire.ask(encode_request(request, 11))
    (topic,) = decoded(frame, FetchResponse, 11).responses
    assert [it.partition_index for it in topic.partitions] == list(range(MANY))


def test_a_large_frame_of_few_elements_is_handled_at_once(wire: Wire) -> None:
    now_ms = 0
    batch = zeros(100, now_ms)
    data = PartitionProduceData(index=0, records=memoryview(bytes(batch) + bytes(200_000)))
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    (frame,) = wire.ask(encode_request(request, 9))
    (topic,) = decoded(frame, ProduceResponse, 9).responses
    assert topic.partition_responses[0].error_code == 87  # INVALID_RECORD: not one batch


def produces(count: int, started: BrokerContext, acks: int = 1) -> ProduceRequest:
    batch = memoryview(zeros(10, started.services.clock.wall_ms()))
    data = [PartitionProduceData(index=i % 4, records=batch) for i in range(count)]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


def test_many_batches_are_appended_without_holding_the_loop(
    wire: Wire, started: BrokerContext
) -> None:
    request = encode_request(produces(MANY - 10, started), 9)
    with short_stalls():
        (frame,) = wire.ask(request)
    (topic,) = decoded(frame, ProduceResponse, 9).responses
    assert [it.index for it in topic.partition_responses] == [i % 4 for i in range(MANY - 10)]
    assert {it.error_code for it in topic.partition_responses} == {0}


def test_batches_without_a_topic_are_rejected_without_holding_the_loop(wire: Wire) -> None:
    data = [PartitionProduceData(index=i, records=memoryview(b"")) for i in range(MANY - 10)]
    topics = [TopicProduceData(name="missing", partition_data=data)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    with short_stalls():
        (frame,) = wire.ask(encode_request(request, 9))
    (topic,) = decoded(frame, ProduceResponse, 9).responses
    assert {it.error_code for it in topic.partition_responses} == {3}


@pytest.mark.parametrize("count", [300, 3000])  # in the scratch buffer, and in one of its own
def test_records_of_many_partitions_outlive_the_receive_buffer(
    wire: Wire, started: BrokerContext, count: int
) -> None:
    end = started.partition("t").log.next_offset
    request = encode_request(produces(count, started), 9)
    after = encode_request(produces(1, started), 9)
    with short_stalls():
        first, second = wire.ask(request, after)
    (topic,) = decoded(first, ProduceResponse, 9).responses
    assert {it.error_code for it in topic.partition_responses} == {0}
    offsets = [it.base_offset for it in topic.partition_responses if it.index == 0]
    assert offsets == list(range(end, end + count // 4))
    (topic,) = decoded(second, ProduceResponse, 9).responses
    assert topic.partition_responses[0].base_offset == end + count // 4, "it did not overtake"
    assert wire.memory.used_bytes == 0


def test_a_produce_without_acknowledgement_in_many_parts_is_not_answered(
    wire: Wire, started: BrokerContext
) -> None:
    end = started.partition("t").log.next_offset
    assert wire.ask(encode_request(produces(3000, started, acks=0), 9)) == []
    assert started.partition("t").log.next_offset == end + 750


@pytest.mark.parametrize("large", [False, True])
def test_too_many_elements_close_the_connection_before_they_are_made(
    wire: Wire, large: bool
) -> None:
    count = APIS[ApiKey.FIND_COORDINATOR].max_elements + 1
    request = FindCoordinatorRequest(coordinator_keys=["k" * (200 * large)] * max(count, 17_000))
    with short_stalls(), pytest.raises(ConnectionError):
        wire.ask(encode_request(request, 4))
    assert wire.memory.used_bytes == 0


def test_a_connection_that_closes_meanwhile_gives_its_memory_back(
    wire: Wire, started: BrokerContext
) -> None:
    asked = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(MANY)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=asked)])

    async def close_early() -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(wire._theirs, encode_request(request, 5))
        wire.connection.close("it had enough", expected=True)
        for _ in range(1000):
            await asyncio.sleep(0)

    started.run(close_early())
    assert wire.memory.used_bytes == 0
