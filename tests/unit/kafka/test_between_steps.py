"""What other work changes between two steps of a large request: nothing is lost, and nothing fails."""

import asyncio
import gc
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.partitions.turns import Turns
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.bombs import zeros
from tests.support.context import BrokerContext, broker_context
from tests.support.raw_client import encode_request
from tests.support.wired import door_to

TOPIC = "many"
COUNT = 1500  # partitions: looked at in steps
GROWING = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerContext]:
    with broker_context(tmp_path) as made:
        yield made


def one_record(broker: BrokerContext, value: bytes = b"v") -> memoryview:
    now_ms = broker.services.clock.wall_ms()
    return memoryview(build_batch([Record(0, now_ms, None, value, ())]))


def append(broker: BrokerContext, index: int) -> None:
    now_ms = broker.services.clock.wall_ms()
    broker.partition(TOPIC, index).append(one_record(broker), now_ms=now_ms)


def fetch(
    indexes: Sequence[int],
    session: tuple[int, int],
    *,
    wait_ms: int = 0,
    forgotten: Sequence[int] = (),
) -> FetchRequest:
    asked = [
        FetchPartition(partition=it, fetch_offset=0, partition_max_bytes=1 << 20) for it in indexes
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 30,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=TOPIC, partitions=asked)] if asked else [],
        forgotten_topics_data=(
            [ForgottenTopic(topic=TOPIC, partitions=list(forgotten))] if forgotten else []
        ),
    )


def indexes_with_data(response: FetchResponse) -> list[int]:
    found = [data for topic in response.responses for data in topic.partitions]
    return [data.partition_index for data in found if data.records]


def produce(topic: str, batch: bytes | bytearray | memoryview, acks: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def test_partitions_that_grow_between_the_look_and_the_response_are_told_of(
    broker: BrokerContext,
) -> None:
    broker.create_topic(TOPIC, partitions=COUNT)
    with door_to(broker) as door:
        client = door.connect()
        frame = encode_request(fetch(range(COUNT), (0, 0)), 12)

        async def send_and_grow() -> None:
            await asyncio.get_running_loop().sock_sendall(client.socket, frame)
            for index in range(GROWING):  # one in each turn of the loop
                await asyncio.sleep(0)
                append(broker, index)

        broker.run(send_and_grow())
        response = client.receive_as(FetchResponse, 12)[1]
        told = set(indexes_with_data(response))
        for epoch in range(1, 6):
            client.send(fetch([], (response.session_id, epoch), wait_ms=20), 12)
            told.update(indexes_with_data(client.receive_as(FetchResponse, 12)[1]))
    assert told >= set(range(GROWING))


def test_a_fetch_whose_session_forgets_partitions_meanwhile_succeeds(broker: BrokerContext) -> None:
    broker.create_topic(TOPIC, partitions=COUNT)
    with door_to(broker) as door:
        client, other = door.connect(), door.connect()
        client.send(fetch(range(COUNT), (0, 0)), 12)
        session = client.receive_as(FetchResponse, 12)[1].session_id
        for index in range(COUNT):
            broker.call(partial(append, broker, index))
        client.tick(20)
        frames = [
            encode_request(fetch([], (session, 1)), 12, 1),
            encode_request(fetch([], (session, 2), forgotten=range(1000)), 12, 2),
        ]

        async def send() -> None:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client.socket, frames[0])
            for _ in range(7):  # the first is in the middle of its steps
                await asyncio.sleep(0)
            await loop.sock_sendall(other.socket, frames[1])

        broker.run(send())
        responses = [it.receive_as(FetchResponse, 12)[1] for it in (client, other)]
    assert [it.error_code for it in responses] == [0, 0]


def test_a_client_that_leaves_takes_the_waiting_of_its_large_fetch_with_it(
    broker: BrokerContext,
) -> None:
    broker.create_topic(TOPIC, partitions=1)
    partition = broker.partition(TOPIC, 0)
    with door_to(broker) as door:
        client = door.connect()
        frame = encode_request(fetch([0] * 5000, (0, -1), wait_ms=2_000_000_000), 11)

        async def send() -> None:
            await asyncio.get_running_loop().sock_sendall(client.socket, frame)
            for _ in range(300):
                await asyncio.sleep(0)

        broker.run(send())
        assert door.loop.memory.used_bytes == 0, "nobody needs the frame any more"
        client.socket.close()
        client.tick(500)
        assert not partition.watchers


def test_batches_behind_a_large_one_without_acks_are_kept_when_the_client_leaves(
    broker: BrokerContext,
) -> None:
    broker.create_topic("keyed", config={"cleanup.policy": "compact"})
    now_ms = broker.services.clock.wall_ms()
    frames = [
        encode_request(produce("keyed", zeros(size, now_ms), 0), 9)
        for size in (100_000, 10, 10, 10)
    ]
    with door_to(broker) as door:
        client = door.connect()
        client.socket.sendall(b"".join(frames))
        client.socket.close()

        deadline_s = time.monotonic() + 60
        while broker.partition("keyed").log.next_offset < len(frames):
            assert time.monotonic() < deadline_s
            client.tick()


def test_a_large_batch_of_an_old_producer_enters_a_topic_with_zstd(broker: BrokerContext) -> None:
    broker.create_topic("dense", config={"compression.type": "zstd"})
    now_ms = broker.services.clock.wall_ms()
    record = Record(0, now_ms, b"k", os.urandom(100_000), ())
    response = broker.ask(produce("dense", build_batch([record], codec=Codec.GZIP), 1), 6)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0


def test_two_schedulers_leave_garbage_collection_as_it_was() -> None:
    before = gc.get_threshold()
    first, second = (Turns().without_full_collection() for _ in range(2))
    with first:
        second.__enter__()
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
