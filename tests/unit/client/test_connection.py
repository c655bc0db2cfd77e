"""Every test runs its own event loop: the subject is a client, and its peer is a scripted broker."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import pytest
import uvloop

from penstock.client.connection import Address, Connection, parse_address, parse_bootstrap
from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.schema import Message
from tests.support.fake_broker import HANG_UP, SILENCE, FakeBroker
from tests.support.ports import kept_port

PATIENCE_MS = 10_000


def run(scenario: Callable[[FakeBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            broker.on(MetadataRequest, cluster_named("c"))
            await scenario(broker)

    asyncio.run(main())


def cluster_named(name: str) -> Callable[[Message], Message]:
    return lambda _: MetadataResponse(cluster_id=name)


async def connect(broker: FakeBroker) -> Connection:
    return await Connection.open(broker.address, client_id="test", timeout_ms=PATIENCE_MS)


async def cluster_id(connection: Connection) -> str | None:
    answer = await connection.request(MetadataRequest(), MetadataResponse, timeout_ms=PATIENCE_MS)
    return answer.cluster_id


def test_a_request_goes_out_in_the_highest_version_that_both_sides_have() -> None:
    async def scenario(broker: FakeBroker) -> None:
        broker.on(MetadataRequest, cluster_named("old"), range(0, 6))
        connection = await connect(broker)
        assert await cluster_id(connection) == "old"
        header, _ = broker.requests[-1]
        assert header.api_version == 5
        assert header.client_id == "test"
        assert connection.version_for(MetadataRequest, at_most=3) == 3
        await connection.close()

    run(scenario)


def test_versions_are_agreed_with_a_broker_that_knows_only_old_api_versions() -> None:
    async def scenario(broker: FakeBroker) -> None:
        broker.speak_api_versions_up_to(0)
        connection = await connect(broker)
        assert await cluster_id(connection) == "c"
        await connection.close()

    run(scenario)


def test_pipelined_requests_each_get_their_own_answer() -> None:
    async def scenario(broker: FakeBroker) -> None:
        names = iter(f"cluster-{number}" for number in range(100))
        broker.on(MetadataRequest, lambda _: MetadataResponse(cluster_id=next(names)))
        connection = await connect(broker)
        answers = await asyncio.gather(*(cluster_id(connection) for _ in range(100)))
        assert answers == [f"cluster-{number}" for number in range(100)]
        assert broker.connections == 1
        await connection.close()

    run(scenario)


def test_a_refused_connection_says_how_to_start_a_broker() -> None:
    async def scenario() -> None:
        address = Address("127.0.0.1", kept_port())
        with pytest.raises(ClientError) as caught:
            await Connection.open(address, client_id="test", timeout_ms=PATIENCE_MS)
        assert str(caught.value) == (
            f"cannot reach {address}: connection refused; is a broker running there? "
            "start one with: penstock serve"
        )
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(scenario())


def test_a_connection_that_breaks_leaves_the_outcome_open() -> None:
    async def scenario(broker: FakeBroker) -> None:
        broker.on(MetadataRequest, lambda _: HANG_UP)
        connection = await connect(broker)
        with pytest.raises(ClientError, match="was closed before it answered") as caught:
            await cluster_id(connection)
        assert caught.value.outcome_unknown
        assert caught.value.is_retriable
        with pytest.raises(ClientError) as caught:
            await cluster_id(connection)
        assert not caught.value.outcome_unknown, "the second request was never sent"
        await connection.close()
        assert connection.is_closed

    run(scenario)


def test_silence_ends_with_the_timeout_and_the_connection() -> None:
    async def scenario(broker: FakeBroker) -> None:
        broker.on(MetadataRequest, lambda _: SILENCE)
        connection = await connect(broker)
        with pytest.raises(ClientError, match="to Metadata in 1 ms") as caught:
            await connection.request(MetadataRequest(), MetadataResponse, timeout_ms=1)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        await connection.close()

    run(scenario)


def test_what_was_given_up_does_not_arrive_later() -> None:
    """Whoever asks again would be overtaken by an earlier self."""
    large = MetadataRequest(topics=[MetadataRequestTopic(name="t" * 30_000)] * 40)

    async def scenario(broker: FakeBroker) -> None:
        connection = await connect(broker)
        (writer,) = broker._writers
        peer = cast(asyncio.Transport, writer.transport)
        peer.pause_reading()
        with pytest.raises(ClientError, match="no answer"):
            await connection.request(large, MetadataResponse, timeout_ms=200)
        peer.resume_reading()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
        assert broker.count(MetadataRequest) == 0

    run(scenario)


def test_a_cancelled_request_does_not_disturb_the_next_one() -> None:
    async def scenario(broker: FakeBroker) -> None:
        connection = await connect(broker)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(cluster_id(connection))
            second = tasks.create_task(cluster_id(connection))
            await asyncio.sleep(0)
            first.cancel()
        assert second.result() == "c"
        await connection.close()

    run(scenario)


def test_an_api_that_the_broker_lacks_is_refused_by_name() -> None:
    async def scenario(broker: FakeBroker) -> None:
        connection = await connect(broker)
        with pytest.raises(ClientError, match="has no version of ListOffsets") as caught:
            await connection.request(
                ListOffsetsRequest(), ListOffsetsResponse, timeout_ms=PATIENCE_MS
            )
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert await cluster_id(connection) == "c", "the connection is still good"
        await connection.close()

    run(scenario)


@pytest.mark.parametrize(
    "nonsense", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\2hi", b"\0\0\0\4\0\0\0\x63"]
)
def test_what_is_not_kafka_is_called_so(nonsense: bytes) -> None:
    async def scenario(broker: FakeBroker) -> None:
        broker.on(MetadataRequest, lambda _: nonsense)
        connection = await connect(broker)
        with pytest.raises(ClientError, match="does not speak the Kafka protocol"):
            await cluster_id(connection)
        await connection.close()

    run(scenario)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1234", Address("localhost", 1234)),
        ("localhost", Address("localhost", 9092)),
        ("[::1]:1234", Address("::1", 1234)),
        ("[::1]", Address("::1", 9092)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":9092", "host:", "host:x", "host:0", "host:70000", "a,,b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_bootstrap(text)


@pytest.mark.parametrize("new_loop", [None, uvloop.new_event_loop])
def test_hanging_up_more_than_once_does_no_harm(
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection = await connect(broker)
            connection.abort()
            connection.abort()
            await connection.closed()
            connection.abort()
            assert connection.is_closed

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
