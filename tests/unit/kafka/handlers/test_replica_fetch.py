"""Fetches of followers, and of consumers that are sent to a closer replica."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.throttles import Throttles
from penstock.kafka.promise import Promise
from penstock.metadata.image import BrokerInfo, PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tests.support.engine import Engine, running_engine
from tests.support.readers import ALL, Server, is_waiting

ME, ANN = 1, 2
EPOCH = 77  # of ANN's session
VERSION = 17


class Quiet:
    """A Replication that changes nothing."""

    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool:  # noqa: ARG002 - a Replication
        return False

    def fell_behind(self, partition: Partition) -> None: ...
    def isr_changes(self, partition: Partition, members: tuple[int, ...]) -> None: ...
    def made_durable(self, partition: Partition) -> None: ...


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with running_engine(tmp_path) as started:
        started.replicas.replication = Quiet()
        yield started


@pytest.fixture
def server(engine: Engine) -> Server:
    server = Server(engine)
    brokers = {
        number: BrokerInfo(number, epoch, {}, rack, False, "d")
        for number, epoch, rack in ((ME, 5, "a"), (ANN, EPOCH, "b"))
    }
    server.services.cluster.image = SimpleNamespace(brokers=brokers, topics={}, topics_by_id={})
    server.services.cluster.endpoints = lambda _: []
    server.services.cluster.look_again = lambda: None
    server.services.broker_id = ME
    return server


def led(engine: Engine, isr: tuple[int, ...] = (ME, ANN), **settings: Any) -> Partition:
    partition = engine.partition(min_insync_replicas=1, **settings)
    partition.lead(ME, PartitionImage(ME, 4, 9, (ME, ANN), isr))
    return partition


def request(
    partition: Partition, offset: int = 0, last_epoch: int = -1, **fields: Any
) -> FetchRequest:
    asked = FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=fields.pop("leader_epoch", 4),
        last_fetched_epoch=last_epoch,
        partition_max_bytes=ALL,
    )
    replica = ReplicaState(replica_id=ANN, replica_epoch=fields.pop("broker_epoch", EPOCH))
    topics = [FetchTopic(topic_id=partition.topic.id, partitions=[asked])]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": ALL, "session_epoch": -1}
    return FetchRequest(**{"replica_state": replica, "topics": topics, **limits, **fields})


def only(response: FetchResponse) -> PartitionData:
    return response.responses[0].partitions[0]


def test_a_follower_sees_what_is_not_committed_yet(engine: Engine, server: Server) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    data = only(server.fetch(request(partition), VERSION))
    assert (data.error_code, data.high_watermark, bool(data.records)) == (0, 0, True)
    only(server.fetch(request(partition, 1, 4), VERSION))
    assert partition.high_watermark == 1


def test_a_follower_of_an_earlier_session_is_refused(engine: Engine, server: Server) -> None:
    partition = led(engine)
    with pytest.raises(BrokerError) as refused:
        server.handle(request(partition, broker_epoch=EPOCH - 1), VERSION)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(BrokerError):
        server.handle(request(partition, replica_id=ANN), 14)  # which cannot say its session


def test_a_follower_that_is_not_admitted_yet_is_refused(engine: Engine, server: Server) -> None:
    """It may still be among the in-sync replicas of its last session: what it has now would go unnoticed after."""
    partition = led(engine)
    brokers = server.services.cluster.image.brokers
    brokers[ANN] = brokers[ANN]._replace(fenced=True)
    with pytest.raises(BrokerError) as refused:
        server.handle(request(partition), VERSION)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_fetch_that_waited_while_its_broker_began_another_session_counts_for_nothing(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    waiting = server.handle(request(partition, max_wait_ms=60_000), VERSION)
    brokers = server.services.cluster.image.brokers
    brokers[ANN] = brokers[ANN]._replace(epoch=EPOCH + 1)
    assert partition.leadership is not None
    before = partition.leadership.follower(ANN)
    assert before is not None
    engine.append(partition, b"one")
    engine.tick()
    assert only(waiting.result()).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert before.end_at_fetch == 0


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_leader_and_follower_must_agree_on_the_epoch(
    engine: Engine, server: Server, epoch: int, code: ErrorCode
) -> None:
    partition = led(engine)
    data = only(server.fetch(request(partition, leader_epoch=epoch), VERSION))
    assert data.error_code == code


def test_a_follower_is_told_where_the_logs_part(engine: Engine, server: Server) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    data = only(server.fetch(request(partition, 9, 3), VERSION))
    assert (data.error_code, data.records) == (0, b"")
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (3, 0)


def test_a_follower_that_is_too_far_behind_is_told_where_to_begin(
    engine: Engine, server: Server
) -> None:
    partition = led(engine, isr=(ME,))
    engine.append(partition, b"one")
    engine.append(partition, b"two")
    partition.delete_records_before(1)
    data = only(server.fetch(request(partition), VERSION))
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)


def test_a_follower_that_waits_hears_of_what_is_written_at_the_end_of_the_tick(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    waiting = server.handle(request(partition, max_wait_ms=60_000), VERSION)
    assert is_waiting(waiting)
    engine.append(partition, b"one")
    engine.tick()
    assert only(waiting.result()).records


def test_a_follower_in_a_session_that_asks_again_no_longer_waits(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    begun = server.fetch(request(partition, session_epoch=0), VERSION)
    on = {"session_id": begun.session_id, "max_wait_ms": 60_000}
    first = server.handle(request(partition, session_epoch=1, **on), VERSION)
    second = server.handle(request(partition, session_epoch=2, **on), VERSION)
    assert not server.holds, "or else the second would not be read before the first is answered"
    assert isinstance(first, Promise)
    assert first.done()
    assert is_waiting(second)
    second.cancel()
    engine.tick()


def test_whoever_else_waits_holds_back_what_it_asks_next(engine: Engine, server: Server) -> None:
    """There is one answer for it to take up: others share what they remember, or have no session that knows both."""
    partition = led(engine)
    without_session = server.handle(request(partition, max_wait_ms=60_000), VERSION)
    assert is_waiting(without_session)
    assert server.holds
    consumer: dict[str, Any] = {"replica_state": ReplicaState(replica_id=-1), "session_epoch": 0}
    begun = server.fetch(request(partition, **consumer), VERSION)
    on = {**consumer, "session_id": begun.session_id, "session_epoch": 1, "max_wait_ms": 60_000}
    in_session = server.handle(request(partition, **on), VERSION)
    assert is_waiting(in_session)
    assert server.holds
    for waiting in (without_session, in_session):
        waiting.cancel()
    engine.tick()


def test_a_throttled_follower_that_is_not_in_sync_waits_while_the_rate_is_used_up(
    engine: Engine, server: Server
) -> None:
    settings = {"leader_replication_throttled_replicas": "*"}
    partition = led(engine, isr=(ME,), **settings)
    for _ in range(4):
        engine.append(partition, bytes(1000))
    view: Any = SimpleNamespace(
        config=SimpleNamespace(leader_replication_throttled_rate=1000), broker_id=ME
    )
    engine.replicas.throttles = Throttles(view, engine.clock)
    assert only(server.fetch(request(partition), VERSION)).records
    held = only(server.fetch(request(partition), VERSION))
    assert (held.error_code, held.records) == (0, b"")
    engine.clock.advance(10_000)
    assert only(server.fetch(request(partition), VERSION)).records

    partition.lead(ME, PartitionImage(ME, 4, 10, (ME, ANN), (ME, ANN)))
    for _ in range(3):  # who is in sync is never held up
        assert only(server.fetch(request(partition), VERSION)).records


def consumer(partition: Partition, rack: str, offset: int = 0) -> FetchRequest:
    return request(partition, offset, replica_state=ReplicaState(), rack_id=rack)


def test_a_consumer_is_sent_to_a_replica_in_its_rack_that_has_what_it_wants(
    engine: Engine, server: Server
) -> None:
    partition = led(engine)
    engine.append(partition, b"one")
    assert only(server.fetch(consumer(partition, "b"), VERSION)).preferred_read_replica == -1
    server.fetch(request(partition, 1, 4), VERSION)
    sent = only(server.fetch(consumer(partition, "b"), VERSION))
    assert (sent.preferred_read_replica, sent.records) == (ANN, b"")
    for rack in ("a", "elsewhere", ""):
        here = only(server.fetch(consumer(partition, rack), VERSION))
        assert (here.preferred_read_replica, bool(here.records)) == (-1, True)
