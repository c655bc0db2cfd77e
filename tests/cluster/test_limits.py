"""Much of everything, and clients that do not behave: memory stays bounded, and everybody else is served."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from penstock.model.errors import ErrorCode
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.messages.produce import ProduceResponse
from tests.support.history import read_all, send
from tests.support.raw_client import RawClient, encode_request
from tests.support.requests import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    fetch_request,
    produce,
    produce_request,
)
from tests.support.server import PATIENCE_S, Server, rd, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MIB = 1 << 20
METADATA_VERSION = 9
MANY_TOPICS = 2000
MANY_CONNECTIONS = 1000

needs_prlimit = pytest.mark.skipif(
    shutil.which("prlimit") is None, reason="prlimit is not installed"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as started:
        yield started


def memory_bytes(server: Server) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


def check_served(server: Server, topic: str) -> None:
    """Somebody else, on a connection of their own, notices nothing."""
    with RawClient(server.bootstrap) as client:
        for _ in range(20):
            assert produce(client, topic, [b"x"]).error_code == ErrorCode.NONE


def takes_connections(server: Server, topic: str) -> bool:
    """Whether a new connection is served, not closed because there are too many."""
    try:
        check_served(server, topic)
    except ConnectionError:
        return False
    return True


# Much --------------------------------------------------------------------------------------------


def test_two_thousand_topics_cost_little_memory_and_are_there_after_a_crash(
    server: Server,
) -> None:
    before_bytes = memory_bytes(server)
    names = [f"topic-{number:04d}" for number in range(MANY_TOPICS)]
    for start in range(0, MANY_TOPICS, 250):
        wanted = [rd.NewTopic(name, 1) for name in names[start : start + 250]]
        for future in server.admin.create_topics(wanted).values():
            future.result(PATIENCE_S)
    assert set(server.topics()) == set(names)
    assert memory_bytes(server) - before_bytes < 100 * MIB
    with RawClient(server.bootstrap) as client:
        for name in names[::10]:
            assert produce(client, name, [name.encode()]).base_offset == 0
    server.crash()
    assert set(server.topics()) == set(names)
    with RawClient(server.bootstrap) as client:
        for name in names[::100]:
            assert produce(client, name, [b"more"]).base_offset == 1
    assert [message.value for message in read_all(server.bootstrap, names[0])] == [
        names[0].encode(),
        b"more",
    ]


def connections(server: Server) -> float:
    return server.metric("kafka_server_socket_server_metrics_connection_count")


def test_a_thousand_connections_are_served_and_forgotten_when_they_go(server: Server) -> None:
    topic = server.create_topic("t")
    before, before_bytes = connections(server), memory_bytes(server)
    with ExitStack() as opened:
        clients = [
            opened.enter_context(RawClient(server.bootstrap)) for _ in range(MANY_CONNECTIONS)
        ]
        for client in clients:
            client.send(MetadataRequest(topics=[]), METADATA_VERSION)
        for client in clients:
            assert client.receive_as(MetadataResponse, METADATA_VERSION)[1].brokers
        assert connections(server) >= before + MANY_CONNECTIONS
        for number, client in enumerate(clients):
            assert produce(client, topic, [b"x"]).base_offset == number
        assert memory_bytes(server) - before_bytes < 100 * MIB
        for client in clients[::2]:  # and some wait for what comes
            client.send(fetch_request(topic, MANY_CONNECTIONS, wait_ms=60_000), FETCH_VERSION)
        check_served(server, topic)
        for client in clients[::2]:
            assert client.receive()
    until(lambda: connections(server) <= before, "all have been forgotten")
    check_served(server, topic)


@needs_prlimit
def test_a_broker_that_runs_out_of_file_descriptors_goes_on_with_those_it_has(
    tmp_path: Path,
) -> None:
    settings = {"penstock.open.files.max": 32}
    with Server(tmp_path, settings, run_in=["prlimit", "--nofile=150"]) as server:
        topics = [
            server.create_topic(f"topic-{number}", segment_bytes=10_000) for number in range(60)
        ]
        with RawClient(server.bootstrap) as client:
            for _ in range(10):
                for topic in topics:  # many more files than descriptors
                    assert produce(client, topic, [bytes(3000)]).error_code == ErrorCode.NONE
            with ExitStack() as opened:
                for _ in range(200):
                    opened.enter_context(socket.create_connection(address(server), PATIENCE_S))
                until(
                    lambda: server.events("accept-failed") or server.events("connection-refused"),
                    "no more can be taken",
                )
                for topic in topics[:20]:
                    assert produce(client, topic, [b"x"]).error_code in (
                        ErrorCode.NONE,
                        ErrorCode.KAFKA_STORAGE_ERROR,  # its file could not be opened just now
                    )
            until(lambda: served_anew(server, topics[0]), "new connections are taken again")
            for topic in topics:
                assert produce(client, topic, [b"x"]).error_code == ErrorCode.NONE
        assert server.metric("penstock_data_directory_offline") == 0
        assert len(read_all(server.bootstrap, topics[-1])) == 11
        assert "Traceback" not in server.log


def address(server: Server) -> tuple[str, int]:
    host, port = server.bootstrap.split(":")
    return host, int(port)


def served_anew(server: Server, topic: str) -> bool:
    """Whether there are descriptors again for a connection and for a file."""
    try:
        with RawClient(server.bootstrap) as client:
            return produce(client, topic, [b"x"]).error_code == ErrorCode.NONE
    except OSError:
        return False


# Clients that do not behave ----------------------------------------------------------------------


@needs_prlimit
def test_segment_files_do_not_lock_out_a_new_client(tmp_path: Path) -> None:
    with Server(tmp_path, run_in=["prlimit", "--nofile=256"]) as server:
        topic = server.create_topic("many", partitions=250)
        with RawClient(server.bootstrap) as client:
            for partition in range(250):
                assert produce(client, topic, [b"x"], partition).error_code == ErrorCode.NONE
            with ExitStack() as opened:
                for _ in range(50):
                    other = opened.enter_context(RawClient(server.bootstrap))
                    assert produce(other, topic, [b"x"]).error_code == ErrorCode.NONE
                for partition in range(250):
                    assert produce(client, topic, [b"x"], partition).error_code == ErrorCode.NONE
        assert server.events("open-files-limited")
        assert not server.events("accept-failed")
        assert server.stop() == 0
        assert not server.events("unclean-stop")


@needs_prlimit
def test_a_flood_of_connections_takes_no_data_directory_offline(tmp_path: Path) -> None:
    """Each append is synced, and each sync opens files beside those of the segments."""
    settings = {"log.flush.interval.messages": 1}
    with Server(tmp_path, settings, run_in=["prlimit", "--nofile=256"]) as server:
        topics = [server.create_topic(f"topic-{number}") for number in range(100)]
        with RawClient(server.bootstrap) as client, ExitStack() as opened:
            for number in range(456):
                opened.enter_context(socket.create_connection(address(server), PATIENCE_S))
                if number % 4 == 0:  # new topics, whose files and directories are new
                    assert produce(client, topics[number // 4 % 100], [b"x"]).error_code in (
                        ErrorCode.NONE,
                        ErrorCode.KAFKA_STORAGE_ERROR,
                    )
        until(
            lambda: takes_connections(server, topics[0]),
            "the broker has noticed that they are closed",
        )
        with RawClient(server.bootstrap) as client:
            for topic in topics:
                assert produce(client, topic, [b"x"]).error_code == ErrorCode.NONE
        assert server.metric("penstock_data_directory_offline") == 0
        assert "Traceback" not in server.log


def test_large_requests_under_way_share_a_bounded_memory_and_all_come_through(
    tmp_path: Path,
) -> None:
    """As in Kafka, what is allowed may be passed by one request, so that whoever has begun can end."""
    allowed_bytes, buffer_bytes = 16 * MIB, 8 * MIB
    limit_bytes = allowed_bytes + buffer_bytes
    settings = {"queued.max.request.bytes": allowed_bytes, "message.max.bytes": 8 * MIB}
    with Server(tmp_path, settings) as server, ExitStack() as opened:
        topic = server.create_topic("t")
        before_bytes = memory_bytes(server)
        frame = encode_request(produce_request(topic, [bytes(4 * MIB)]), PRODUCE_VERSION)
        clients = [opened.enter_context(RawClient(server.bootstrap)) for _ in range(20)]
        for client in clients:  # all begin, none ends: five times what is allowed
            client.socket.setblocking(False)
        sent = [push(client, frame, 0, len(frame) - 1) for client in clients]
        for _ in range(20):
            check_served(server, topic)
            sent = [
                push(client, frame, done, len(frame) - 1)
                for client, done in zip(clients, sent, strict=True)
            ]
        assert server.metric("penstock_request_memory_bytes") <= limit_bytes
        assert memory_bytes(server) - before_bytes < limit_bytes + 100 * MIB
        for client, done in zip(clients, sent, strict=True):
            client.socket.setblocking(True)
            client.socket.settimeout(PATIENCE_S)
            if done == len(frame) - 1:
                client.socket.sendall(frame[done:])
        for client, done in zip(clients, sent, strict=True):
            if done < len(frame) - 1:
                client.socket.sendall(frame[done:])
            _, answer = client.receive_as(ProduceResponse, PRODUCE_VERSION)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        until(lambda: server.metric("penstock_request_memory_bytes") == 0, "it is given back")


def push(client: RawClient, data: bytes, start: int, stop: int) -> int:
    """As much as the socket takes; how far it came."""
    while start < stop:
        try:
            start += client.socket.send(data[start : min(stop, start + MIB)])
        except BlockingIOError:
            break
    return start


def test_a_client_that_reads_no_answers_does_not_make_the_broker_grow(server: Server) -> None:
    large, many = server.create_topic("large"), server.create_topic("many", partitions=500)
    send(server.bootstrap, large, [bytes(900_000)])
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=many)])
    requests = {
        "fetch": encode_request(fetch_request(large), FETCH_VERSION),
        "metadata": encode_request(metadata, METADATA_VERSION),
    }
    for name, request in requests.items():
        before_bytes = memory_bytes(server)
        with RawClient(server.bootstrap) as deaf:
            deaf.socket.setblocking(False)
            flood = request * (64 * MIB // len(request))
            sent = 0
            for _ in range(20):
                sent = push(deaf, flood, sent, len(flood))
                check_served(server, large)
            assert sent < len(flood), "the broker stopped taking more"
            grown = memory_bytes(server) - before_bytes
            assert grown < 64 * MIB, f"{name}: {grown} bytes"
    check_served(server, large)
