"""Produce requests that arrive together: written as one where that is possible, answered as if each had come alone."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.topic import Mirror
from penstock.kafka.handlers import produce
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, DiskFull, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.files import Disk, SegmentFile
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.context import BrokerContext
from tests.support.raw_client import encode_request
from tests.support.wired import Client, Door, door_to

ALL, LEADER, NONE = -1, 1, 0
VERSION = 9


@pytest.fixture
def door(broker: BrokerContext) -> Iterator[Door]:
    with door_to(broker) as opened:
        yield opened


@pytest.fixture
def client(door: Door) -> Client:
    return door.connect()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each write had."""
    counted: list[int] = []
    append, append_all = SegmentFile.append, SegmentFile.append_all

    def one(file: SegmentFile, data: Any) -> None:
        append(file, data)
        if file.suffix == ".log":
            counted.append(1)

    def several(file: SegmentFile, parts: Any, total: int) -> None:
        append_all(file, parts, total)
        counted.append(len(parts))

    monkeypatch.setattr(SegmentFile, "append", one)
    monkeypatch.setattr(SegmentFile, "append_all", several)
    return counted


def batch(broker: BrokerContext, value: bytes = b"value", **fields: Any) -> memoryview:
    now_ms = broker.services.clock.wall_ms()
    return memoryview(build_batch([Record(0, now_ms, b"k", value, ())], **fields))


def request(
    records: memoryview, topic: str = "orders", index: int = 0, acks: int = LEADER, **fields: Any
) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=records)
    named = TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=600_000, topic_data=[named], **fields)


def send_at_once(client: Client, *requests: ProduceRequest, version: int = VERSION) -> None:
    frames = [encode_request(it, version, number) for number, it in enumerate(requests)]
    client.socket.sendall(b"".join(frames))
    client.tick()


def answers(client: Client, count: int, version: int = VERSION) -> list[PartitionProduceResponse]:
    """In the order of their requests."""
    found = []
    for number in range(count):
        correlation_id, response = client.receive_as(ProduceResponse, version)
        assert correlation_id == number
        found.append(response.responses[0].partition_responses[0])
    return found


def begin(broker: BrokerContext, topic: str = "orders", **config: str) -> None:
    """A topic with a first message."""
    broker.create_topic(topic, config={key.replace("_", "."): it for key, it in config.items()})
    broker.append(topic)


@pytest.mark.parametrize("acks", [LEADER, ALL])
@pytest.mark.parametrize("version", range(3, 13))
def test_they_are_one_write_and_each_has_its_answer(
    broker: BrokerContext, client: Client, writes: list[int], acks: int, version: int
) -> None:
    begin(broker)
    writes.clear()
    asked = [request(batch(broker, b"v" * number), acks=acks) for number in range(4)]
    send_at_once(client, *asked, version=version)
    found = answers(client, 4, version)
    assert [(it.error_code, it.base_offset) for it in found] == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert writes == [4]
    assert broker.partition("orders").high_watermark == 5


def test_by_topic_id_too(broker: BrokerContext, client: Client, writes: list[int]) -> None:
    begin(broker)
    writes.clear()
    asked = []
    for _ in range(3):
        asked.append(request(batch(broker)))
        asked[-1].topic_data[0].topic_id = broker.cluster.image.topics["orders"].id
    send_at_once(client, *asked, version=13)
    assert [it.base_offset for it in answers(client, 3, 13)] == [1, 2, 3]
    assert writes == [3]


def test_they_are_counted_one_by_one(broker: BrokerContext, client: Client) -> None:
    begin(broker)
    metrics = broker.replicas.topic("orders").metrics
    before = metrics.produce_requests.value, metrics.messages_in.value, metrics.bytes_in.value
    requests = broker.services.metrics.request("Produce").requests.value
    asked = [request(batch(broker)) for _ in range(3)]
    send_at_once(client, *asked)
    answers(client, 3)
    size = len(batch(broker))
    assert metrics.produce_requests.value == before[0] + 3
    assert metrics.messages_in.value == before[1] + 3
    assert metrics.bytes_in.value == before[2] + 3 * size
    assert broker.services.metrics.request("Produce").requests.value == requests + 3


def test_idempotent_ones_go_together_and_again_are_duplicates(
    broker: BrokerContext, client: Client, writes: list[int]
) -> None:
    begin(broker)
    writes.clear()
    asked = [
        request(batch(broker, producer_id=7, producer_epoch=0, base_sequence=number), acks=ALL)
        for number in range(3)
    ]
    for _ in range(2):
        send_at_once(client, *asked)
        assert [it.base_offset for it in answers(client, 3)] == [1, 2, 3]
    assert writes == [3]
    assert broker.partition("orders").log.next_offset == 4


def test_where_each_append_is_synced_they_wait_for_the_disk(
    broker: BrokerContext, client: Client, writes: list[int]
) -> None:
    begin(broker, flush_messages="1")
    writes.clear()
    send_at_once(client, *(request(batch(broker), acks=ALL) for _ in range(3)))
    assert [it.base_offset for it in answers(client, 3)] == [1, 2, 3]
    assert writes == [3]
    assert broker.partition("orders").log.recovery_point == 4


def test_a_topic_that_looks_into_batches_has_none_looked_for(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(broker, compression_type="lz4")
    monkeypatch.setattr(produce, "twins", lambda *_: pytest.fail("it cannot use them"))
    send_at_once(client, *(request(batch(broker)) for _ in range(3)))
    assert [it.base_offset for it in answers(client, 3)] == [1, 2, 3]


def test_one_that_is_refused_is_refused_alone(broker: BrokerContext, client: Client) -> None:
    begin(broker, max_message_bytes="1000")
    asked = [batch(broker), batch(broker, b"v" * 2000), batch(broker)]
    send_at_once(client, *map(request, asked))
    found = answers(client, 3)
    assert [it.error_code for it in found] == [0, ErrorCode.MESSAGE_TOO_LARGE, 0]
    assert [it.base_offset for it in found] == [1, -1, 2]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (
            lambda broker: broker.forbid(Operation.WRITE, ResourceType.TOPIC, "orders"),
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        (
            lambda broker: broker.run(broker.cluster.delete_topics(["orders"])),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            lambda broker: broker.call(lambda: broker.partition("orders").follow(None)),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
    ],
)
def test_what_holds_for_all_is_told_to_each(
    broker: BrokerContext, client: Client, spoil: Callable[[BrokerContext], Any], code: ErrorCode
) -> None:
    begin(broker)
    spoil(broker)
    send_at_once(client, *(request(batch(broker)) for _ in range(3)))
    assert [it.error_code for it in answers(client, 3)] == [code] * 3


def test_a_disk_that_was_full_is_not_tried_again_before_there_is_room(
    broker: BrokerContext, client: Client, writes: list[int]
) -> None:
    begin(broker)
    writes.clear()
    broker.replicas.disk_is_full(DiskFull("no room"))
    send_at_once(client, *(request(batch(broker)) for _ in range(2)))
    found = answers(client, 2)
    broker.replicas.disk_has_room()
    assert [it.error_code for it in found] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert writes == []


def test_only_who_leads_a_topic_of_its_own_takes_them(broker: BrokerContext) -> None:
    def run_to(partition: Partition) -> object:
        run = [batch(broker), batch(broker)]
        now_ms = broker.services.clock.wall_ms()
        return broker.call(lambda: partition.append_run(run, now_ms=now_ms, zstd=True))

    topics = ("led", "followed", "failed", "mirror")
    for topic in topics:
        begin(broker, topic)
    led, followed, failed, mirror = map(broker.partition, topics)
    broker.call(lambda: followed.follow(None))
    failed.failure = BrokerError("damaged")
    mirror.topic.mirror = Mirror("east", 1)
    assert run_to(led) is not None
    assert [run_to(it) for it in (followed, failed, mirror)] == [None, None, None]


def test_a_full_disk_refuses_each_and_keeps_none(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(broker)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "pwrite", staticmethod(full))
        patch.setattr(Disk, "pwritev", staticmethod(full))
        send_at_once(client, *(request(batch(broker)) for _ in range(3)))
        found = answers(client, 3)
    broker.replicas.disk_has_room()
    assert [it.error_code for it in found] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert broker.partition("orders").log.next_offset == 1


def test_a_fault_of_the_disk_refuses_each(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(broker)
    faults: list[Exception] = []
    monkeypatch.setattr(broker.replicas, "disk_failed", faults.append)

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Disk, "pwrite", staticmethod(broken))
    monkeypatch.setattr(Disk, "pwritev", staticmethod(broken))
    send_at_once(client, *(request(batch(broker)) for _ in range(2)))
    found = answers(client, 2)
    monkeypatch.undo()
    assert [it.error_code for it in found] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert faults
    assert broker.partition("orders").log.next_offset == 1


@pytest.mark.parametrize("count", [1, 3])
def test_too_many_open_files_refuse_each_as_one_alone(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """They come as they were sent to whoever tries each by itself."""
    begin(broker)
    broker.partition("orders").log._files.close_all()
    real = os.open

    def no_more(path: str, *arguments: Any) -> int:
        if path.endswith(".log"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_more)
        send_at_once(client, *(request(batch(broker)) for _ in range(count)))
        found = answers(client, count)
    assert [it.error_code for it in found] == [ErrorCode.KAFKA_STORAGE_ERROR] * count


@pytest.mark.parametrize("acks", [LEADER, ALL])
def test_those_that_overtook_another_are_refused_as_it_was(
    broker: BrokerContext, client: Client, acks: int
) -> None:
    begin(broker)
    numbered = [batch(broker, producer_id=7, producer_epoch=0, base_sequence=it) for it in range(4)]
    partition = broker.partition("orders")
    broker.call(lambda: partition.follow(None))
    send_at_once(client, request(numbered[0], acks=acks))
    image = broker.cluster.image.topics["orders"].partitions[0]
    broker.call(lambda: partition.lead(broker.services.broker_id, image))
    assert answers(client, 1)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    send_at_once(client, *(request(it, acks=acks) for it in numbered[1:]))
    refused = answers(client, 3)
    assert [it.error_code for it in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    send_at_once(client, *(request(it, acks=acks) for it in numbered))
    assert [it.base_offset for it in answers(client, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [8, 9])
def test_one_that_ends_before_its_records_costs_the_one_before_it_nothing(
    broker: BrokerContext, client: Client, version: int
) -> None:
    begin(broker)
    good, whole = (encode_request(request(batch(broker)), version, it) for it in range(2))
    after = 4 + len(batch(broker)) if version < 9 else 1 + len(batch(broker)) + 3
    short = whole[4:-after]
    client.socket.sendall(good + len(short).to_bytes(4, "big") + short)
    client.tick()
    assert [it.base_offset for it in answers(client, 1, version)] == [1]
    assert not client.is_connected


def test_a_malformed_one_behind_them_ends_the_connection_after_their_answers(
    broker: BrokerContext, client: Client
) -> None:
    begin(broker)
    good = [encode_request(request(batch(broker)), VERSION, number) for number in range(2)]
    bad = encode_request(request(batch(broker)), VERSION, 2).replace(b"\2\7orders", b"\2\xff" * 4)
    client.socket.sendall(b"".join(good) + bad)
    client.tick()
    assert [it.base_offset for it in answers(client, 2)] == [1, 2]
    assert not client.is_connected


# Whatever comes --------------------------------------------------------------------------------

PIECE = st.tuples(
    st.sampled_from([0, 0, 0, 1]),  # partition
    st.sampled_from([LEADER, LEADER, ALL, NONE]),
    st.sampled_from([1, 10, 300, 1500]),  # bytes
    st.sampled_from([-1, -1, 0, 1, 2]),  # sequence
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(PIECE, min_size=1, max_size=12), cuts=st.lists(st.integers(1, 900), max_size=4)
)
def test_it_makes_no_difference_how_requests_arrive(
    broker: BrokerContext, pieces: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    broker.reset()
    outcomes = []
    for topic, at_once in (("one-by-one", False), ("all-at-once", True)):
        broker.create_topic(topic, 2, {"max.message.bytes": "1000", "segment.bytes": "2000"})
        frames = []
        for number, (index, acks, size, sequence) in enumerate(pieces):
            producer = {}
            if sequence >= 0:
                producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            records = batch(broker, b"v" * size, **producer)
            frames.append(encode_request(request(records, topic, index, acks), VERSION, number))
        with door_to(broker) as door:
            outcomes.append(exchanged(door.connect(), frames, cuts if at_once else None))
        for index in range(2):
            log = broker.partition(topic, index).log
            found = log.read(0, 1 << 20, upto_offset=log.next_offset)
            outcomes[-1].append(b"".join(piece.read() for piece in found.slices))
    alone, together = outcomes
    assert together == alone


def exchanged(client: Client, frames: list[bytes], cuts: list[int] | None) -> list[Any]:
    """All that was answered, and whether the connection is still there."""
    data, found = b"".join(frames), list[Any]()
    sizes = [*map(len, frames)] if cuts is None else [*cuts, len(data)]
    for size in sizes:
        if client.is_connected:
            client.socket.sendall(data[:size])
            data = data[size:]
            client.tick()
    try:
        client._read()
    except ConnectionError:
        pass
    while (answer := client._next()) is not None:
        body = ProduceResponse.decode(memoryview(answer)[5:], VERSION)
        part = body.responses[0].partition_responses[0]
        found.append((answer[:4], part.error_code, part.base_offset))
    return found


def test_the_handler_declines_what_has_no_twin(broker: BrokerContext) -> None:
    begin(broker)
    asked = request(batch(broker))
    context = broker.context(asked.api_key, VERSION)
    whole = memoryview(encode_request(asked, VERSION))[4:]
    assert produce.handle_together(asked, context, whole, 21, memoryview(b"\0\0\0\1x")) is None
    assert broker.partition("orders").log.next_offset == 1
