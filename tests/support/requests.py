"""Produce and fetch by hand, for tests in which the exact error code matters."""

import time
from collections.abc import Sequence

from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.raw_client import RawClient

PRODUCE_VERSION, FETCH_VERSION = 9, 11


def produce_request(
    topic: str, values: Sequence[bytes], partition: int = 0, acks: int = -1
) -> ProduceRequest:
    now_ms = time.time_ns() // 1_000_000  # retention must not find them old
    batch = build_batch([Record(n, now_ms, None, v) for n, v in enumerate(values)])
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def produce(
    client: RawClient, topic: str, values: Sequence[bytes], partition: int = 0
) -> PartitionProduceResponse:
    """One batch with acks=all, and what the broker says of it."""
    request = produce_request(topic, values, partition)
    answer = client.ask(request, ProduceResponse, PRODUCE_VERSION)
    return answer.responses[0].partition_responses[0]


def fetch_request(
    topic: str, offset: int = 0, partition: int = 0, *, wait_ms: int = 0
) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


def fetch(client: RawClient, topic: str, offset: int = 0, partition: int = 0) -> PartitionData:
    answer = client.ask(fetch_request(topic, offset, partition), FetchResponse, FETCH_VERSION)
    return answer.responses[0].partitions[0]
