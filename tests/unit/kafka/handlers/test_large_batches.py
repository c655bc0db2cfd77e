"""The broker rejects batches that decompress to too much, and opens large ones without holding the event loop."""

from collections.abc import Callable

import pytest

from penstock.kafka.apis import APIS
from penstock.model.errors import ErrorCode
from penstock.records.batch import HEADER, parse_header, renew_checksum
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.opening import MAX_BATCH_HEADERS, MAX_RECORD_HEADERS, MAX_RECORDS
from penstock.records.record import Record
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.bombs import many_headers, many_records, zeros
from tests.support.context import BrokerContext
from tests.support.stalls import BOUND_MS, measured_stalls

COMPACTED = {"cleanup.policy": "compact"}
MB = 1 << 20
SLACK = 3  # a core that others use too has cold caches


def request(*batches: bytearray, topic: str = "keyed", acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=i, records=memoryview(it)) for i, it in enumerate(batches)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def produce(broker: BrokerContext, *batches: bytearray) -> list[PartitionProduceResponse]:
    answer = broker.ask(request(*batches), 9)
    return [partition for topic in answer.responses for partition in topic.partition_responses]


def at_time(broker: BrokerContext, timestamp: int) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name="keyed", partitions=[asked])
    answer = broker.ask(ListOffsetsRequest(topics=[topic]), 7)
    found = answer.topics[0].partitions[0]
    assert isinstance(found, ListOffsetsPartitionResponse)
    return found


BOMBS: dict[str, tuple[Callable[[int], bytearray], ErrorCode]] = {
    "headers of one record": (lambda now: many_headers(30_000_000, now), ErrorCode.INVALID_RECORD),
    "headers in gzip": (
        lambda now: many_headers(4 * MB, now, Codec.GZIP),
        ErrorCode.INVALID_RECORD,
    ),
    "bytes": (lambda now: zeros(65 * MB, now), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_compression_bomb_is_rejected_without_holding_the_loop(
    broker: BrokerContext, name: str
) -> None:
    make, code = BOMBS[name]
    broker.create_topic("keyed", config=COMPACTED)
    bomb = make(broker.services.clock.wall_ms())
    with measured_stalls() as stalls:
        (refused,) = produce(broker, bomb)
    assert refused.error_code == code, refused.error_message
    assert broker.partition("keyed").log.next_offset == 0
    assert stalls.longest_ms < SLACK * BOUND_MS, stalls


def test_limits_are_above_what_honest_producers_send() -> None:
    assert MAX_RECORDS >= 1_000_000
    assert MAX_RECORD_HEADERS >= 10_000
    assert MAX_BATCH_HEADERS >= 1_000_000


def test_an_honest_large_batch_enters_a_compacted_topic(broker: BrokerContext) -> None:
    broker.create_topic("keyed", 2, config=COMPACTED)
    now_ms = broker.services.clock.wall_ms()
    with measured_stalls() as stalls:
        first, second = produce(broker, zeros(10 * MB, now_ms), many_records(20_000, now_ms))
    assert (first.error_code, first.base_offset) == (0, 0), first.error_message
    assert (second.error_code, second.base_offset) == (0, 0), second.error_message
    assert broker.partition("keyed", 1).log.next_offset == 20_000
    assert stalls.longest_ms < SLACK * BOUND_MS, stalls


def test_each_partition_of_a_mixed_request_gets_its_own_answer(broker: BrokerContext) -> None:
    broker.create_topic("keyed", 4, config=COMPACTED)
    now_ms = broker.services.clock.wall_ms()
    small = build_batch([Record(0, now_ms, b"k", b"v", ())])
    keyless = build_batch([Record(0, now_ms, None, bytes(100_000), ())])
    answers = produce(broker, small, zeros(MB, now_ms), keyless, small[:])
    assert [it.index for it in answers] == [0, 1, 2, 3]
    expected = [0, 0, ErrorCode.INVALID_RECORD, 0]
    assert [it.error_code for it in answers] == expected
    assert [it.batch_index for it in answers[2].record_errors] == [0]


def test_a_large_batch_gets_the_codec_of_its_topic(broker: BrokerContext) -> None:
    broker.create_topic("keyed", config={"compression.type": "lz4"})
    (answer,) = produce(broker, zeros(MB, broker.services.clock.wall_ms()))
    assert answer.error_code == 0
    read = broker.partition("keyed").log.read(0, 1 << 20, upto_offset=1)
    assert read.slices[0].read()[22] == Codec.LZ4


@pytest.mark.parametrize("acks", [0, 1])
def test_what_follows_on_the_connection_waits_for_the_large_batch(
    broker: BrokerContext, acks: int
) -> None:
    broker.create_topic("keyed", config=COMPACTED)
    asked = request(zeros(MB, broker.services.clock.wall_ms()), acks=acks)
    context = broker.context(0, 9)

    async def handled() -> object:
        data = asked.topic_data[0].partition_data[0]
        assert isinstance(data.records, memoryview)
        received = data.records
        reply = APIS[0].handle(asked, context)
        received[:] = bytes(len(received))  # the receive buffer is used for something else
        assert context.holds
        return await reply  # type: ignore[misc] # not None: it has to wait

    answer = broker.run(handled())
    assert (answer is None) == (acks == 0)
    assert broker.partition("keyed").log.next_offset == 1


def test_a_search_by_time_does_not_hold_the_loop_and_walks_no_headers(
    broker: BrokerContext,
) -> None:
    broker.create_topic("keyed")
    now_ms = broker.services.clock.wall_ms()
    batches = [many_headers(16 * MB, now_ms), many_records(30_000, now_ms + 5)]
    for batch in batches:
        assert produce(broker, batch)[0].error_code == 0
    with measured_stalls() as stalls:
        found = [at_time(broker, now_ms + later) for later in (0, 5, 6)]
    assert [(it.error_code, it.offset) for it in found] == [(0, 0), (0, 1), (0, -1)]
    assert stalls.longest_ms < SLACK * BOUND_MS, stalls


def test_a_search_by_time_returns_the_first_offset_of_a_batch_with_too_many_records(
    broker: BrokerContext,
) -> None:
    broker.create_topic("keyed")
    now_ms = broker.services.clock.wall_ms()
    batch = many_records(MAX_RECORDS + 1, now_ms)
    assert produce(broker, batch)[0].error_code == 0
    assert at_time(broker, now_ms).offset == 0


def test_a_search_by_time_opens_a_bounded_number_of_batches(
    broker: BrokerContext,
) -> None:
    """Their headers name a timestamp that no record in them has."""
    broker.create_topic("keyed")
    now_ms = broker.services.clock.wall_ms()
    honest = build_batch([Record(0, now_ms, b"k", b"v", ())])
    for _ in range(120):
        liar = honest[:]
        HEADER.pack_into(liar, 0, *parse_header(liar)._replace(max_timestamp_ms=now_ms + 9))
        renew_checksum(memoryview(liar))
        assert produce(broker, liar)[0].error_code == 0
    found = at_time(broker, now_ms + 9)
    assert (found.error_code, found.offset) == (0, 100)
