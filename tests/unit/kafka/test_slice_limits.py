"""From how many partitions, and how many bytes, a Produce is appended in slices: it holds the loop for less than 50 ms."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.kafka.handlers import produce
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.context import BrokerContext, broker_context
from tests.support.raw_client import encode_request
from tests.support.wired import Client, door_to

TOPIC = "many"
COUNT = 41  # partitions
VERSION = 9


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerContext]:
    with broker_context(tmp_path_factory.mktemp("broker")) as made:
        made.create_topic(TOPIC, partitions=COUNT)
        yield made


@pytest.fixture
def client(broker: BrokerContext) -> Iterator[Client]:
    with door_to(broker) as door:
        yield door.connect()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of partitions that were appended together."""
    found: list[int] = []
    append_all = produce._append_all

    def counted(request: ProduceRequest, *args: Any, **options: Any) -> Any:
        found.append(sum(len(topic.partition_data) for topic in request.topic_data))
        return append_all(request, *args, **options)

    monkeypatch.setattr(produce, "_append_all", counted)
    return found


@pytest.mark.parametrize(
    ("count", "each_bytes", "expected"),
    [(40, 40, [40]), (40, 100_000, [40]), (41, 40, [20, 20, 1]), (40, 110_000, [20, 20])],
)
def test_a_request_is_sliced_beyond_40_partitions_or_4_mib(
    broker: BrokerContext,
    client: Client,
    counts: list[int],
    count: int,
    each_bytes: int,
    expected: list[int],
) -> None:
    now_ms = broker.services.clock.wall_ms()
    batch = memoryview(build_batch([Record(0, now_ms, b"k", bytes(each_bytes), ())]))
    data = [PartitionProduceData(index=index, records=batch) for index in range(count)]
    topic = TopicProduceData(name=TOPIC, partition_data=data)
    request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[topic])
    unsent = memoryview(encode_request(request, VERSION))
    while unsent:
        with suppress(BlockingIOError):
            unsent = unsent[client.socket.send(unsent) :]
        client.tick(1)
    client.receive_as(ProduceResponse, VERSION)
    assert counts == expected
