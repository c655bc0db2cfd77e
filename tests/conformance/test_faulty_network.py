"""Networks and peers that misbehave: nothing is lost or doubled, and nobody else notices."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.testing import Broker
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
from tests.support.clients import CLIENTS, CONFLUENT, PATIENCE_S, Client, Sent
from tests.support.failures import NotInTime
from tests.support.proxy import Proxy
from tests.support.raw_client import RawClient, encode_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

UNSUPPORTED_VERSION = 35
VALUE = bytes(1000)


def produce(topic: str, value: bytes = VALUE, acks: int = -1) -> ProduceRequest:
    batch = build_batch([Record(0, 1_700_000_000_000, None, value)])
    data = PartitionProduceData(index=0, records=memoryview(batch))
    topic_data = TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic_data])


def fetch(
    topic: str, offset: int = 0, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20
) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def latest_offset(topic: str) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition])])


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; a test never waits for time to pass."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise NotInTime(f"it did not come about within {PATIENCE_S:g} s")
        time.sleep(0.01)


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic()


# Through a proxy ---------------------------------------------------------------------------------


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as started:
        yield started


@pytest.fixture
def behind_proxy(proxy: Proxy) -> Iterator[Broker]:
    """A broker that tells its clients the proxy's address."""
    with Broker({"advertised.listeners": proxy.address}, subprocess=True) as started:
        proxy.point_at(started.bootstrap)
        yield started


def idempotent_producer(
    bootstrap: str, failures: list[object], **more: object
) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.size": 4096,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "message.timeout.ms": 240_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
            **more,
        }
    )


def test_an_idempotent_producer_loses_and_doubles_nothing_when_connections_drop_amid_sends(
    proxy: Proxy, behind_proxy: Broker
) -> None:
    topic = behind_proxy.create_topic()
    values = [b"%06d" % number + bytes(200) for number in range(5000)]
    failures: list[object] = []
    proxy.cut_after((5_000, 60_000), seed=7)

    producer = idempotent_producer(proxy.address, failures)
    for value in values:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(4 * PATIENCE_S) == 0
    assert not failures, failures[0]
    assert proxy.cuts > 5, "it was cut again and again"

    proxy.cut_no_more()
    received = CONFLUENT.consume(proxy.address, topic, len(values))
    assert [message.value for message in received] == values
    with RawClient(behind_proxy.bootstrap) as client:
        answer = client.ask(latest_offset(topic), ListOffsetsResponse, 5)
    assert answer.topics[0].partitions[0].offset == len(values), "nothing came twice"


def test_a_stall_that_outlasts_the_producers_patience_doubles_nothing(
    proxy: Proxy, behind_proxy: Broker
) -> None:
    topic = behind_proxy.create_topic()
    values = [b"%06d" % number for number in range(2000)]
    failures: list[object] = []
    producer = idempotent_producer(
        proxy.address, failures, **{"socket.timeout.ms": 1000, "request.timeout.ms": 1000}
    )
    for number, value in enumerate(values):
        if number in (500, 1000, 1500):
            proxy.stall()
            accepted = proxy.accepted
            producer.produce(topic, value, partition=0)
            until(lambda: proxy.accepted > accepted)  # noqa: B023 - called at once
            proxy.flow()  # what was held up arrives now, on connections that were given up
        else:
            producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(4 * PATIENCE_S) == 0
    assert not failures, failures[0]

    received = CONFLUENT.consume(proxy.address, topic, len(values))
    assert [message.value for message in received] == values
    with RawClient(behind_proxy.bootstrap) as client:
        answer = client.ask(latest_offset(topic), ListOffsetsResponse, 5)
    assert answer.topics[0].partitions[0].offset == len(values)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_clients_reach_a_broker_by_its_advertised_address_alone(
    proxy: Proxy, behind_proxy: Broker, client: Client
) -> None:
    topic = behind_proxy.create_topic()
    proxy.delay(0.005)
    accepted = proxy.accepted

    client.produce(proxy.address, topic, [Sent(b"k", b"%d" % n) for n in range(100)], "none")
    received = client.consume(proxy.address, topic, 100)

    assert [message.value for message in received] == [b"%d" % n for n in range(100)]
    assert proxy.accepted >= accepted + 2
    with RawClient(proxy.address) as raw:
        brokers = raw.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    assert [f"{broker.host}:{broker.port}" for broker in brokers] == [proxy.address]


# Peers that do not behave ------------------------------------------------------------------------


def test_a_reader_that_does_not_read_holds_up_nobody_and_gets_all_in_the_end(
    broker: Broker, topic: str
) -> None:
    large = bytes(900_000)
    requests = 100
    with RawClient(broker.bootstrap) as slow, RawClient(broker.bootstrap) as other:
        assert code_of(other.ask(produce(topic, large), ProduceResponse, 9)) == ErrorCode.NONE
        for number in range(requests):
            slow.send(fetch(topic), 11, number)

        for _ in range(20):
            assert code_of(other.ask(produce(topic), ProduceResponse, 9)) == ErrorCode.NONE

        for number in range(requests):
            correlation_id, fetched = slow.receive_as(FetchResponse, 11)
            records = fetched.responses[0].partitions[0].records
            assert correlation_id == number
            assert isinstance(records, memoryview)
            _, header = next(iter_headers(records))
            assert header.base_offset == 0
            assert header.size_bytes > len(large)


def test_requests_in_flight_are_answered_in_order_whatever_they_are(
    broker: Broker, topic: str
) -> None:
    kinds: list[tuple[Message, type[Message], int]] = [
        (produce(topic), ProduceResponse, 9),
        (MetadataRequest(topics=[]), MetadataResponse, 9),
        (fetch(topic), FetchResponse, 11),
        (latest_offset(topic), ListOffsetsResponse, 5),
        (ApiVersionsRequest(), ApiVersionsResponse, 0),
        (fetch(topic, max_wait_ms=50, offset=1_000_000), FetchResponse, 11),  # out of range
    ]
    sequence = [kinds[number % len(kinds)] for number in range(600)]
    burst = b"".join(
        encode_request(request, version, number)
        for number, (request, _, version) in enumerate(sequence)
    )
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(burst)
        for number, (_, answer, version) in enumerate(sequence):
            correlation_id, _ = client.receive_as(answer, version)
            assert correlation_id == number


def test_a_long_poll_holds_up_only_its_own_connection(broker: Broker, topic: str) -> None:
    with RawClient(broker.bootstrap) as waiting, RawClient(broker.bootstrap) as other:
        waiting.send(fetch(topic, max_wait_ms=60_000), 11, 1)
        waiting.send(ApiVersionsRequest(), 0, 2)
        assert other.is_served()
        other.ask(produce(topic), ProduceResponse, 9)

        correlation_id, fetched = waiting.receive_as(FetchResponse, 11)
        assert correlation_id == 1
        assert fetched.responses[0].partitions[0].records
        assert waiting.receive_as(ApiVersionsResponse, 0)[0] == 2


def test_a_request_may_arrive_byte_by_byte(broker: Broker, topic: str) -> None:
    with RawClient(broker.bootstrap) as client:
        for byte in encode_request(produce(topic, b"slow"), 9):
            client.socket.sendall(bytes((byte,)))
        assert code_of(client.receive_as(ProduceResponse, 9)[1]) == ErrorCode.NONE


@pytest.mark.parametrize("size", [1_000, 900_000], ids=["small", "large"])
def test_half_a_request_is_no_request(broker: Broker, topic: str, size: int) -> None:
    request = encode_request(produce(topic, bytes(size)), 9)
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(request[: len(request) // 2])
        client.socket.shutdown(socket.SHUT_WR)
        assert client.await_hang_up() == b""
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(latest_offset(topic), ListOffsetsResponse, 5)
        assert answer.topics[0].partitions[0].offset == 0


def test_large_requests_share_bounded_memory_and_each_gets_its_turn() -> None:
    buffers, waiting = 4, 8
    limit_bytes = buffers << 20
    with (
        Broker({"queued.max.request.bytes": limit_bytes}, subprocess=True) as broker,
        ExitStack() as stack,
    ):
        topic = broker.create_topic()
        request = encode_request(produce(topic, bytes(900_000)), 9)
        half = len(request) // 2
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(buffers)]
        for client in clients:
            client.socket.sendall(request[:half])
        until(lambda: metric(broker, "penstock_request_memory_bytes") == limit_bytes)

        threads = stack.enter_context(ThreadPoolExecutor(waiting))
        others = [threads.submit(ask_to_produce, broker.bootstrap, request) for _ in range(waiting)]
        with RawClient(broker.bootstrap) as small:
            assert small.ask(produce(topic), ProduceResponse, 9).responses, "it needs no buffer"
        assert not any(other.done() for other in others)
        assert metric(broker, "penstock_request_memory_bytes") == limit_bytes

        for client in clients:
            client.socket.sendall(request[half:])
            assert code_of(client.receive_as(ProduceResponse, 9)[1]) == ErrorCode.NONE
        assert [other.result() for other in others] == [ErrorCode.NONE] * waiting
        until(lambda: metric(broker, "penstock_request_memory_bytes") == 0)


def ask_to_produce(bootstrap: str, request: bytes) -> int:
    with RawClient(bootstrap) as client:
        client.socket.sendall(request)
        return code_of(client.receive_as(ProduceResponse, 9)[1])


def code_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def metric(broker: Broker, name: str) -> float:
    with urlopen(f"http://{broker.http}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


# What closes a connection, and nothing else ------------------------------------------------------


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, whose log and limits are the test's too."""
    settings = {"socket.request.max.bytes": 100_000, "auto.create.topics.enable": False}
    with Broker(settings, subprocess=True, data_dir=tmp_path / "data") as started:
        yield started


OFFENCES = {
    "too large": (b"\x00\x01\x86\xa1" + bytes(20), "a frame of 100001 bytes; the limit is 100000"),
    "negative": (b"\xff\xff\xff\xff" + bytes(20), "a frame of -1 bytes"),
    "unknown api": (b"\0\0\0\x0b\x27\x0f\0\0\0\0\0\1\xff\xff\0", "api 9999 is not known"),
    "unknown version": (b"\0\0\0\x0b\0\3\0\x63\0\0\0\1\xff\xff\0", "Metadata v99 is not supported"),
    "malformed": (b"\0\0\0\x0e\0\3\0\1\0\0\0\1\xff\xff\x7f\xff\xff\xff", "malformed request"),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_frame_out_of_order_closes_its_connection_with_a_reason_and_no_other(
    logged: Broker, offence: str
) -> None:
    frame, reason = OFFENCES[offence]
    with RawClient(logged.bootstrap) as offender, RawClient(logged.bootstrap) as bystander:
        assert bystander.is_served()
        offender.send(ApiVersionsRequest(), 0, 5)
        offender.socket.sendall(frame)

        assert offender.receive_as(ApiVersionsResponse, 0)[0] == 5, "what came before is answered"
        assert offender.await_hang_up() == b""
        assert bystander.is_served()
    until(lambda: reason in logged.log)
    assert "Traceback" not in logged.log


def test_a_failed_produce_without_acknowledgement_closes_its_connection(logged: Broker) -> None:
    topic = logged.create_topic()
    with RawClient(logged.bootstrap) as client:
        client.send(produce(topic, acks=0), 9)
        assert client.is_served(), "one that succeeds is silent"
        client.send(produce("no-such-topic", acks=0), 9)
        assert client.await_hang_up() == b""
    until(lambda: "acks=0 failed" in logged.log)


def test_api_versions_of_an_unknown_version_is_answered_in_version_0_with_code_35(
    broker: Broker,
) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\x4d\xff\xff\0")
        correlation_id, answer = client.receive_as(ApiVersionsResponse, 0)
        assert (correlation_id, answer.error_code) == (0x4D, UNSUPPORTED_VERSION)
        supported = {api.api_key: api.max_version for api in answer.api_keys}
        assert supported[ApiVersionsRequest.api_key] >= 3, "the client can choose a version now"
        assert client.is_served()


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_topic_id_before_version_12_is_refused_in_its_answer(
    broker: Broker, version: int
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"\1" * 16, name=None)])
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(request, MetadataResponse, version)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    with Broker({"connections.max.idle.ms": 3000}, subprocess=True) as broker:
        topic = broker.create_topic()
        with RawClient(broker.bootstrap) as idle, RawClient(broker.bootstrap) as waiting:
            assert idle.is_served()
            waiting.send(fetch(topic, max_wait_ms=10_000), 11)

            assert idle.await_hang_up() == b""
            assert (
                waiting.receive_as(FetchResponse, 11)[1].responses[0].partitions[0].error_code
                == ErrorCode.NONE
            )
            assert waiting.await_hang_up() == b"", "idle now"


@pytest.mark.parametrize(
    ("setting", "others_are_welcome"),
    [("max.connections", False), ("max.connections.per.ip", True)],
)
def test_connections_past_a_limit_are_refused_and_room_that_frees_up_is_used(
    setting: str, others_are_welcome: bool
) -> None:
    limit = 4
    with Broker({setting: limit}, subprocess=True) as broker:
        clients = [RawClient(broker.bootstrap) for _ in range(limit)]
        assert all(client.is_served() for client in clients)
        with RawClient(broker.bootstrap) as refused:
            assert not refused.is_served()
        with RawClient(broker.bootstrap, source="127.0.0.2") as elsewhere:
            assert elsewhere.is_served() == others_are_welcome
        assert all(client.is_served() for client in clients)
        until(lambda: f"({setting})" in broker.log)

        clients.pop().socket.close()
        until(lambda: _is_admitted(broker.bootstrap))
        for client in clients:
            client.socket.close()


def _is_admitted(bootstrap: str) -> bool:
    with RawClient(bootstrap) as client:
        return client.is_served()
