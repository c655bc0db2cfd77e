"""Peers that do not read their answers hold a bounded number of files open, and nobody else is kept from reading."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.files import FileSlice, OpenFiles, SegmentFile
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.support.context import BrokerContext
from tests.support.raw_client import encode_request
from tests.support.wired import Client, Door, door_to

PARTITIONS = 300
RECORD_BYTES = 20_000  # too much to be copied
OPEN_MAX, QUEUED_MAX = 16, 32
VERSION = 12


@pytest.fixture
def door(broker: BrokerContext) -> Iterator[Door]:
    broker.create_topic("many", partitions=PARTITIONS)
    now_ms = broker.services.clock.wall_ms()
    for index in range(PARTITIONS):
        record = Record(0, now_ms, None, bytes(RECORD_BYTES), ())
        batch = memoryview(build_batch([record]))
        broker.call(partial(broker.partition("many", index).append, batch, now_ms=now_ms))
    opened = files(broker)
    opened.close_all()
    before = opened.limit, opened.queued_max
    opened.limit, opened.queued_max = OPEN_MAX, QUEUED_MAX
    with door_to(broker) as door:
        yield door
    opened.limit, opened.queued_max = before


def files(broker: BrokerContext) -> OpenFiles:
    return broker.replicas.directory.files


def segments_open() -> int:
    """Descriptors of segment files that this process has."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}").endswith(".log")
    return found


def fetch_all(offset: int = 0) -> FetchRequest:
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(PARTITIONS)
    ]
    topics = [FetchTopic(topic="many", partitions=wanted)]
    return FetchRequest(max_wait_ms=0, max_bytes=1 << 30, topics=topics)


def with_data(response: FetchResponse) -> list[int]:
    return [
        data.partition_index
        for topic in response.responses
        for data in topic.partitions
        if data.records
    ]


def deaf(door: Door, requests: int) -> Client:
    """Sends requests together, and reads no answer."""
    client = door.connect()
    client.connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.socket.setblocking(True)
    client.socket.settimeout(0.01)
    frames = b"".join(encode_request(fetch_all(), VERSION, number) for number in range(requests))
    with suppress(TimeoutError):
        client.socket.sendall(frames)
    client.socket.setblocking(False)
    client.tick(20)
    return client


def test_peers_that_read_nothing_hold_few_files(broker: BrokerContext, door: Door) -> None:
    before = segments_open()
    clients = [deaf(door, requests=20) for _ in range(10)]
    assert files(broker).queued <= QUEUED_MAX + len(clients)
    assert segments_open() - before <= OPEN_MAX + QUEUED_MAX + len(clients)
    for client in clients:
        broker.call(partial(client.connection.close, "gone"))
    assert files(broker).queued == 0, "what was queued for them is given back"


def test_others_read_on_beside_peers_that_read_nothing(door: Door) -> None:
    for _ in range(5):
        deaf(door, requests=5)
    reader, seen = door.connect(), set[int]()
    left = list(range(PARTITIONS))
    while left:
        request = fetch_all()
        request.topics[0].partitions = [request.topics[0].partitions[index] for index in left]
        reader.send(request, VERSION)
        found = with_data(reader.receive_as(FetchResponse, VERSION)[1])
        assert found, "a fetch gets something"
        seen.update(found)
        left = [index for index in left if index not in seen]
    assert seen == set(range(PARTITIONS))


def test_one_answer_has_a_limited_number_of_files(broker: BrokerContext, door: Door) -> None:
    files(broker).queued_max = 10_000
    reader = door.connect()
    reader.send(fetch_all(), VERSION)
    assert len(with_data(reader.receive_as(FetchResponse, VERSION)[1])) == 64
    assert files(broker).queued == 0


def test_a_queued_slice_counts_until_it_is_released_or_dropped(tmp_path: Path) -> None:
    opened = OpenFiles()
    segment = SegmentFile(opened, str(tmp_path), 0, ".log")
    segment.create()
    pieces = [FileSlice(segment, 0, 0) for _ in range(3)]
    for piece in pieces:
        piece.queue()
        piece.queue()
    assert opened.queued == 1
    pieces.pop().release()
    assert opened.queued == 1
    pieces[0].release()
    pieces[0].release()
    assert opened.queued == 1
    pieces.clear()
    assert opened.queued == 0
