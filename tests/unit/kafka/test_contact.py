"""A leader without the metadata store acknowledges alone only while all who are in sync follow it (B5, B6)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.partitions.fetcher import FETCHES_IN_FLIGHT
from penstock.broker.partitions.partition import Partition
from penstock.kafka.contact import check_contact
from penstock.kafka.context import Context
from penstock.kafka.handlers import produce
from penstock.kafka.security import ANONYMOUS
from penstock.metadata.image import BrokerInfo, PartitionImage
from penstock.model.errors import ErrorCode, NotLeader
from penstock.wire.api_keys import ApiKey
from penstock.wire.header import RequestHeader
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.engine import Engine, running_engine
from tests.support.readers import ALL, Server
from tests.unit.kafka.handlers.test_replica_fetch import Quiet
from tests.unit.storage.logs import batch

ME, ANN = 1, 2
EPOCH = 77  # of ANN's session
TTLS_MS = 2 * 2000  # the default of broker.session.timeout.ms
_LOOKS_S = 0.05
_DEADLINE_MS = 5_000
FETCH_VERSION, PRODUCE_VERSION = 17, 13


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with running_engine(tmp_path) as started:
        started.replicas.replication = Quiet()
        yield started


@pytest.fixture
def server(engine: Engine) -> Server:
    server = Server(engine)
    brokers = {ANN: BrokerInfo(ANN, EPOCH, {}, None, False, "d")}
    image = SimpleNamespace(brokers=brokers, topics={}, topics_by_id={})
    cluster = server.services.cluster
    cluster.image, cluster.endpoints = image, lambda _: []
    server.services.broker_id = ME
    return server


def led(
    engine: Engine, isr: tuple[int, ...] = (ME, ANN), *, min_insync_replicas: int = 1
) -> Partition:
    partition = engine.partition(min_insync_replicas=min_insync_replicas)
    partition.lead(ME, PartitionImage(ME, 4, 9, (ME, ANN), isr))
    return partition


def fetch(server: Server, partition: Partition, **fields: Any) -> Any:
    """As a follower that has everything. Without `session_id`: the first of a session."""
    asked = FetchPartition(
        partition=0,
        current_leader_epoch=fields.pop("leader_epoch", 4),
        last_fetched_epoch=-1,
        fetch_offset=0,
        partition_max_bytes=ALL,
    )
    first = {
        "session_epoch": 0,
        "topics": [FetchTopic(topic_id=partition.topic.id, partitions=[asked])],
    }
    replica = ReplicaState(replica_id=ANN, replica_epoch=EPOCH)
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": ALL}
    request = FetchRequest(**{"replica_state": replica, **limits, **first, **fields})
    return server.fetch(request, FETCH_VERSION)


def test_who_has_fetched_within_two_sessions_is_in_touch(engine: Engine, server: Server) -> None:
    partition = led(engine)
    with pytest.raises(NotLeader):
        check_contact(partition, server.services)
    fetch(server, partition)
    engine.clock.advance(TTLS_MS)
    check_contact(partition, server.services)
    engine.clock.advance(1)
    with pytest.raises(NotLeader, match="broker 2"):
        check_contact(partition, server.services)


def test_a_session_in_which_an_idle_partition_is_not_named_again_counts(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    session_id = fetch(server, partition).session_id
    for number in range(1, 4):
        engine.clock.advance(TTLS_MS - 1)
        fetch(server, partition, session_id=session_id, session_epoch=number, topics=[])
    check_contact(partition, server.services)
    partition.lead(ME, PartitionImage(ME, 5, 10, (ME, ANN), (ME, ANN)))
    with pytest.raises(NotLeader):
        check_contact(partition, server.services)  # of an earlier epoch it says nothing


def test_a_leader_that_is_alone_in_sync_goes_on(engine: Engine, server: Server) -> None:
    check_contact(led(engine, isr=(ME,)), server.services)


def test_a_replica_that_knows_of_a_later_epoch_suspends_what_one_leader_acknowledges(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    fetch(server, partition)
    data = fetch(server, partition, leader_epoch=5).responses[0].partitions[0]
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    with pytest.raises(NotLeader, match="later leader epoch"):
        check_contact(partition, server.services)


@pytest.mark.parametrize("acks", [1, -1])
def test_only_who_is_cut_off_from_the_store_looks_whether_it_is_followed(
    engine: Engine, server: Server, acks: int
) -> None:
    partition = led(engine)
    header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "test")
    context = Context(server.services, header, ANONYMOUS, "TEST", "host")

    def code() -> int:
        request = ProduceRequest(
            acks=acks,
            timeout_ms=1,
            topic_data=[
                TopicProduceData(
                    topic_id=partition.topic.id,
                    partition_data=[PartitionProduceData(index=0, records=batch(b"x"))],
                )
            ],
        )

        async def handled() -> Any:
            answer = produce.handle(request, context)
            return answer if not hasattr(answer, "__await__") else await answer  # type: ignore[misc]

        told: Any = engine.runner.run(handled())
        return int(told.responses[0].partition_responses[0].error_code)

    after_append = ErrorCode.NONE if acks == 1 else ErrorCode.REQUEST_TIMED_OUT
    assert code() == after_append
    engine.replicas.connection_changed(False)
    assert code() == (ErrorCode.NOT_LEADER_OR_FOLLOWER if acks == 1 else after_append)
    engine.replicas.connection_changed(True)
    assert code() == after_append


def confirm(engine: Engine, server: Server, partition: Partition) -> "asyncio.Future[None]":
    """Ask for a confirmation, and let the poller look."""

    async def begun() -> asyncio.Future[None]:
        confirmed: asyncio.Future[None] = server.services.confirmations.confirm(partition)
        await asyncio.sleep(0)
        return confirmed

    return engine.runner.run(begun())


def wait(engine: Engine, confirmed: "asyncio.Future[None]") -> None:
    async def waited() -> None:
        await asyncio.wait_for(confirmed, 5)

    engine.runner.run(waited())


def fetch_round(engine: Engine, server: Server, partition: Partition, session_id: int) -> None:
    """One fetch of the follower, and time for the poller to see it."""
    session = server.sessions._sessions[session_id]
    engine.clock.advance(1)
    fetch(server, partition, session_id=session_id, session_epoch=session.epoch, topics=[])
    engine.runner.run(asyncio.sleep(_LOOKS_S))


def test_a_leader_is_confirmed_by_one_fetch_more_than_a_follower_has_in_flight(
    engine: Engine, server: Server
) -> None:
    """All that are in flight may have been sent before their sender began to lead."""
    partition = led(engine)
    session_id = fetch(server, partition).session_id
    confirmed = confirm(engine, server, partition)
    for _ in range(FETCHES_IN_FLIGHT + 1):
        engine.runner.run(asyncio.sleep(_LOOKS_S))
        assert not confirmed.done(), "what was sent before says nothing"
        fetch_round(engine, server, partition, session_id)
    wait(engine, confirmed)


def test_a_request_counts_only_rounds_that_began_after_it_arrived(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    session_id = fetch(server, partition).session_id
    first = confirm(engine, server, partition)
    engine.clock.advance(1)
    second = confirm(engine, server, partition)  # the first round began before
    for _ in range(FETCHES_IN_FLIGHT + 1):
        assert not first.done()
        fetch_round(engine, server, partition, session_id)
    assert first.done()
    assert not second.done()
    fetch_round(engine, server, partition, session_id)
    assert second.done()
    wait(engine, second)


def test_requests_share_one_poller_and_each_has_its_own_deadline(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    fetch(server, partition)
    confirmations = server.services.confirmations
    first = [confirm(engine, server, partition) for _ in range(3)]
    assert len(server.tasks) == 1
    engine.clock.advance(_DEADLINE_MS - 1)
    last = confirm(engine, server, partition)
    engine.clock.advance(2)
    engine.runner.run(asyncio.sleep(_LOOKS_S))
    assert [isinstance(it.exception(), NotLeader) for it in first] == [True] * 3
    assert not last.done()
    last.cancel()  # its client is gone
    engine.runner.run(asyncio.sleep(_LOOKS_S))
    assert not confirmations._running


@pytest.mark.parametrize("is_led_on", [True, False])
def test_a_leader_that_nobody_follows_is_not_confirmed(
    engine: Engine, server: Server, is_led_on: bool
) -> None:
    partition = led(engine)
    fetch(server, partition)
    confirmed = confirm(engine, server, partition)
    if is_led_on:
        engine.clock.advance(60_000)
    else:
        partition.lead(ME, PartitionImage(ME, 5, 10, (ME, ANN), (ME, ANN)))
    with pytest.raises(NotLeader):
        wait(engine, confirmed)


def test_a_leader_with_too_few_in_sync_is_not_confirmed(engine: Engine, server: Server) -> None:
    """A replica that left the ISR may be elected (KIP-966)."""
    partition = led(engine, isr=(ME,), min_insync_replicas=2)
    with pytest.raises(NotLeader, match=r"min\.insync\.replicas"):
        wait(engine, confirm(engine, server, partition))


def test_a_leader_that_is_alone_in_sync_is_confirmed(engine: Engine, server: Server) -> None:
    wait(engine, confirm(engine, server, led(engine, isr=(ME,))))


def test_a_replica_that_does_not_lead_is_not_confirmed(engine: Engine, server: Server) -> None:
    partition = led(engine)
    partition.follow(PartitionImage(ANN, 5, 10, (ME, ANN), (ME, ANN)))
    with pytest.raises(NotLeader):
        confirm(engine, server, partition)
