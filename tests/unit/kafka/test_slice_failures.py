"""A large Produce that fails is answered as a small one would be, and counted in the metrics."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.kafka import slices
from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.bombs import zeros
from tests.support.context import BROKER_ID, BrokerContext, broker_context
from tests.support.frames import counted_buffers
from tests.support.raw_client import encode_request
from tests.support.wired import Client, Door, door_to

TOPIC = "many"
COUNT = 300  # partitions
FIRST = 0
OTHER = 77  # a broker
VERSION = 9


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerContext]:
    with broker_context(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def broker(started: BrokerContext) -> Iterator[BrokerContext]:
    yield started
    started.reset()


@pytest.fixture
def door(broker: BrokerContext) -> Iterator[Door]:
    broker.create_topic(TOPIC, partitions=COUNT)
    with door_to(broker) as opened:
        yield opened


def produce(*, acks: int, transactional_id: str | None = None) -> ProduceRequest:
    of_producer: Any = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    fields = of_producer | {"transactional": True} if transactional_id is not None else {}
    batch = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())], **fields))
    data = [PartitionProduceData(index=index, records=batch) for index in range(COUNT)]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=600_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )


def codes(client: Client) -> list[int]:
    (topic,) = client.receive_as(ProduceResponse, VERSION)[1].responses
    assert [data.index for data in topic.partition_responses] == list(range(COUNT))
    return [data.error_code for data in topic.partition_responses]


@pytest.mark.parametrize("error", [BrokerError("later", ErrorCode.NOT_COORDINATOR), ValueError()])
def test_a_failure_before_the_first_slice_refuses_all_partitions(
    broker: BrokerContext,
    door: Door,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def prepare(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(broker.services.transactions, "prepare", prepare)
    client = door.connect()
    with caplog.at_level(logging.CRITICAL):
        client.send(produce(acks=-1, transactional_id="t"), VERSION)
        found = codes(client)
    expected = error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR
    assert found == COUNT * [expected]
    assert client.is_connected
    assert not door.loop.memory.used_bytes


def test_a_failed_acknowledgement_refuses_its_slice_only(
    broker: BrokerContext,
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def committed(_: Partition, __: int) -> asyncio.Future[None]:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(ValueError())
        return failed

    monkeypatch.setattr(Partition, "committed", committed)
    led = PartitionImage(BROKER_ID, 4, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER))
    broker.call(lambda: broker.partition(TOPIC, FIRST).lead(BROKER_ID, led))
    client = door.connect()
    with caplog.at_level(logging.CRITICAL):
        client.send(produce(acks=-1), VERSION)
        found = codes(client)
    assert found[FIRST] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert found[COUNT // 2 :] == (COUNT - COUNT // 2) * [ErrorCode.NONE]
    assert client.is_connected


@pytest.mark.parametrize("acks", [0, 1])
def test_a_sliced_request_is_counted_once(broker: BrokerContext, door: Door, acks: int) -> None:
    counted = broker.services.metrics.request("Produce").requests
    before = counted.value
    client = door.connect()
    client.send(produce(acks=acks), VERSION)
    client.socket.shutdown(socket.SHUT_WR) if not acks else codes(client)
    while client.is_connected and not acks:
        client.tick(1)
    assert counted.value == before + 1


def test_a_batch_that_is_opened_does_not_keep_the_frame_of_a_client_that_is_gone(
    broker: BrokerContext, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_PARTS_PER_TURN", 1)
    broker.create_topic("keyed", partitions=COUNT, config={"cleanup.policy": "compact"})
    led = PartitionImage(BROKER_ID, 4, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER))
    first, last = broker.partition("keyed", FIRST), broker.partition("keyed", COUNT - 1)
    broker.call(lambda: first.lead(BROKER_ID, led))
    request = produce(acks=-1)
    request.topic_data[0].name = "keyed"
    large = memoryview(zeros(100_000, broker.services.clock.wall_ms()))
    request.topic_data[0].partition_data[FIRST].records = large
    client = door.connect()
    with counted_buffers() as buffers:
        client.socket.sendall(encode_request(request, VERSION))
        while not broker.partition("keyed", FIRST + 1).log.next_offset:
            client.tick(1)
        broker.call(lambda: client.connection.close("reset by peer"))
        while not first.log.next_offset:
            client.tick(1)
        client.tick()
        assert not last.log.next_offset
        assert buffers.made
        assert not buffers.alive()
