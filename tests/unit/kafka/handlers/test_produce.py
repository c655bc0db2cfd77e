import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.kafka.handlers import produce
from penstock.kafka.hangup import HangUp
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, StorageFault
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.flush import FlushTicket
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.context import BrokerContext
from tests.support.raw_client import encode_request
from tests.support.wired import Client, door_to

ALL, LEADER, NONE = -1, 1, 0
FOREVER_MS = 600_000
UNKNOWN_ID = bytes(15) + b"\xff"


def batch(broker: BrokerContext, *keys: bytes | None, **fields: Any) -> memoryview:
    now_ms = fields.pop("time_ms", broker.services.clock.wall_ms())
    records = [Record(i, now_ms, key, b"value", ()) for i, key in enumerate(keys or (b"k",))]
    return memoryview(bytearray(build_batch(records, **fields)))


def request(
    broker: BrokerContext,
    *targets: tuple[str, int],
    records: memoryview | None = None,
    acks: int = LEADER,
    timeout_ms: int = FOREVER_MS,
    by_id: bool = False,
    **fields: Any,
) -> ProduceRequest:
    """One batch for each target."""
    topics = []
    for name, index in targets:
        data = PartitionProduceData(
            index=index, records=batch(broker) if records is None else records
        )
        named: dict[str, Any] = {"name": name}
        if by_id:
            image = broker.cluster.image.topics.get(name)
            named = {"topic_id": image.id if image else UNKNOWN_ID}
        topics.append(TopicProduceData(**named, partition_data=[data]))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, **fields)


def results(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return [part for topic in response.responses for part in topic.partition_responses]


def ask(broker: BrokerContext, version: int = 9, **fields: Any) -> PartitionProduceResponse:
    (result,) = results(broker.ask(request(broker, ("orders", 0), **fields), version))
    return result


class Gate:
    """Syncs wait at it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait(self) -> None:
        self._open.wait()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, sync = Gate(), FlushTicket.sync

    def gated(ticket: FlushTicket) -> None:
        made.wait()
        sync(ticket)

    monkeypatch.setattr(FlushTicket, "sync", gated)
    yield made
    made.open()


# Into the log ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends_and_says_where(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=2)
    result = ask(broker, version, by_id=version >= 13, records=batch(broker, b"a", b"b"))
    assert (result.error_code, result.base_offset, result.error_message) == (0, 2, None)
    assert result.log_start_offset == (0 if version >= 5 else -1)
    assert broker.partition("orders").log.next_offset == 4


@pytest.mark.parametrize("version", range(3))
def test_old_versions_are_refused_with_a_code(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    assert ask(broker, version).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert broker.partition("orders").log.next_offset == 0


def test_the_time_of_the_append_is_told_where_the_topic_wants_it(broker: BrokerContext) -> None:
    broker.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    broker.create_topic("other")
    assert ask(broker).log_append_time_ms == broker.services.clock.wall_ms()
    (other,) = results(broker.ask(request(broker, ("other", 0)), 9))
    assert other.log_append_time_ms == -1


def test_a_repeated_batch_is_answered_with_its_first_offset(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = ask(broker, records=batch(broker, **fields))
    ask(broker)
    again = ask(broker, records=batch(broker, **fields))
    assert (first.base_offset, again.base_offset, again.error_code) == (0, 0, 0)
    assert broker.partition("orders").log.next_offset == 2


def test_what_was_produced_is_counted(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    records = batch(broker, b"a", b"b", b"c")
    ask(broker, records=records)
    ask(broker, records=memoryview(bytearray(100)))
    metrics = broker.services.metrics.topic("orders")
    assert metrics.messages_in.value == 3
    assert metrics.bytes_in.value == len(records)
    assert (metrics.produce_requests.value, metrics.failed_produce_requests.value) == (1, 1)


# Refusals --------------------------------------------------------------------------------------


def test_each_partition_is_answered_by_itself(broker: BrokerContext) -> None:
    broker.create_topic("orders", partitions=2)
    targets = [("orders", 0), ("absent", 0), ("orders", 2), ("orders", -1), ("orders", 1)]
    answered = results(broker.ask(request(broker, *targets), 9))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [result.error_code for result in answered] == [0, unknown, unknown, unknown, 0]
    assert [result.base_offset for result in answered] == [0, -1, -1, -1, 0]
    assert answered[1].error_message == "topic 'absent' does not exist"


def corrupt(broker: BrokerContext) -> memoryview:
    records = batch(broker)
    records[-1] ^= 1
    return records


def in_two_hours(broker: BrokerContext) -> memoryview:
    return batch(broker, time_ms=broker.services.clock.wall_ms() + 7_200_000)


def of_a_transaction(broker: BrokerContext) -> memoryview:
    return batch(broker, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (corrupt, ErrorCode.CORRUPT_MESSAGE),
        (lambda _: memoryview(b""), ErrorCode.INVALID_RECORD),
        (lambda broker: batch(broker)[:40], ErrorCode.INVALID_RECORD),
        (lambda _: memoryview(bytearray(100)), ErrorCode.INVALID_RECORD),
        (lambda broker: batch(broker, *[b"k"] * 5000), ErrorCode.MESSAGE_TOO_LARGE),
        (in_two_hours, ErrorCode.INVALID_TIMESTAMP),
        (of_a_transaction, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=["crc", "empty", "cut", "old-format", "large", "future", "transactional"],
)
def test_a_batch_that_may_not_enter_is_refused_with_its_reason(
    broker: BrokerContext, make: Callable[[BrokerContext], memoryview], code: ErrorCode
) -> None:
    broker.create_topic("orders", config={"max.message.bytes": "20000"})
    result = ask(broker, records=make(broker))
    assert result.error_code == code, result.error_message
    assert result.base_offset == -1
    assert result.error_message
    assert broker.partition("orders").log.next_offset == 0


def test_a_produce_without_records_is_refused(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    data = PartitionProduceData(index=0, records=None)
    topic = TopicProduceData(name="orders", partition_data=[data])
    (result,) = results(broker.ask(ProduceRequest(acks=1, topic_data=[topic]), 9))
    assert result.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [7, 8, 9])
def test_records_without_a_key_are_named_one_by_one_on_a_compacted_topic(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("orders", config={"cleanup.policy": "compact"})
    result = ask(broker, version, records=batch(broker, b"a", None, b"b", None))
    assert result.error_code == ErrorCode.INVALID_RECORD
    named = [(e.batch_index, e.batch_index_error_message) for e in result.record_errors]
    if version < 8:
        assert named == []
        return
    assert [index for index, _ in named] == [1, 3]
    assert all(message for _, message in named)
    assert broker.partition("orders").log.next_offset == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "käse"])
def test_a_name_that_no_topic_can_have_is_refused_as_such(broker: BrokerContext, name: str) -> None:
    (result,) = results(broker.ask(request(broker, (name, 0)), 9))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_from_version_13_on_a_topic_is_its_id(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    response = broker.ask(request(broker, ("orders", 0), ("absent", 0), by_id=True), 13)
    known, unknown = response.responses
    assert known.topic_id == broker.cluster.image.topics["orders"].id
    assert [r.error_code for r in results(response)] == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    assert unknown.topic_id == UNKNOWN_ID

    old_id = known.topic_id
    broker.run(broker.cluster.delete_topics(["orders"]))
    broker.create_topic("orders")
    again = request(broker, ("orders", 0), by_id=True)
    again.topic_data[0].topic_id = old_id
    assert results(broker.ask(again, 13))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.partition("orders").log.next_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(broker: BrokerContext, acks: int) -> None:
    broker.create_topic("orders")
    assert ask(broker, acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_writing_needs_the_right_to_write(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.WRITE, ResourceType.TOPIC)
    answered = results(broker.ask(request(broker, ("orders", 0), ("absent", 0), ("a/b", 0)), 9))
    assert {result.error_code for result in answered} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    (result,) = results(broker.ask(request(broker, ("orders", 0), by_id=True), 13))
    assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "orders" not in (result.error_message or "")


# When the lead changes hands -------------------------------------------------------------------


def numbered(broker: BrokerContext, sequence: int) -> PartitionProduceResponse:
    """The answer to one batch of an idempotent producer."""
    records = batch(broker, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return ask(broker, 10, records=records, acks=ALL)


def lead(broker: BrokerContext, partition: Partition) -> None:
    image = broker.cluster.image.topics["orders"].partitions[0]
    broker.call(lambda: partition.lead(broker.services.broker_id, image))


def test_who_comes_after_one_that_was_sent_elsewhere_is_not_told_of_a_gap(
    broker: BrokerContext,
) -> None:
    """librdkafka would number anew what it has not seen acknowledged, and send it twice."""
    broker.create_topic("orders")
    assert numbered(broker, 0).base_offset == 0
    assert numbered(broker, 2).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition = broker.partition("orders")
    broker.call(lambda: partition.follow(None))
    assert numbered(broker, 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(broker, partition)
    assert numbered(broker, 2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [numbered(broker, it).base_offset for it in (1, 2)] == [1, 2]
    assert numbered(broker, 4).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_nor_is_it_taken_for_the_first_of_a_producer_that_is_not_known(
    broker: BrokerContext,
) -> None:
    """librdkafka would take what came before it for acknowledged, and never send it again."""
    broker.create_topic("orders")
    partition = broker.partition("orders")
    broker.call(lambda: partition.follow(None))
    assert numbered(broker, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(broker, partition)
    assert numbered(broker, 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [numbered(broker, it).base_offset for it in (0, 1)] == [0, 1]


@pytest.mark.parametrize("refused", [0, 3])
def test_nor_when_the_topic_had_yet_to_be_heard_of(broker: BrokerContext, refused: int) -> None:
    unknown = numbered(broker, refused)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create_topic("orders")
    assert numbered(broker, refused + 1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [numbered(broker, refused + it).base_offset for it in (0, 1)] == [0, 1]


def test_who_was_never_refused_may_begin_with_any_sequence(broker: BrokerContext) -> None:
    """It may have been forgotten here (KIP-360)."""
    broker.create_topic("orders")
    assert numbered(broker, 5).base_offset == 0


# The disk --------------------------------------------------------------------------------------


def test_a_full_disk_refuses_until_there_is_room(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    ask(broker)

    def full(*_: Any, **__: Any) -> None:
        raise DiskFull("no room for 100 bytes")

    log = type(broker.partition("orders").log)
    with monkeypatch.context() as patch:
        patch.setattr(log, "append_as_leader", full)
        assert ask(broker).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert ask(broker).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.replicas.disk_has_room()
    assert ask(broker).base_offset == 1


# Acknowledgement -------------------------------------------------------------------------------


def started(broker: BrokerContext, asked: ProduceRequest, version: int = 9) -> Any:
    """What the handler returns: an answer, a future of it, or nothing."""
    return broker.call(lambda: produce.handle(asked, broker.context(0, version)))


def finished(broker: BrokerContext, answer: Any) -> list[PartitionProduceResponse]:
    async def waited() -> ProduceResponse:
        response: ProduceResponse = await answer
        return response

    return results(broker.run(waited()))


@pytest.mark.parametrize("acks", [ALL, LEADER])
def test_an_acknowledgement_waits_until_the_records_are_durable(
    broker: BrokerContext, gate: Gate, acks: int
) -> None:
    broker.create_topic("orders", config={"flush.messages": "1"})
    broker.create_topic("plain")
    gate.close()
    answer = started(broker, request(broker, ("orders", 0), ("plain", 0), acks=acks))
    assert isinstance(answer, asyncio.Future)
    assert broker.partition("orders").log.next_offset == 1, "it is in the log already"
    gate.open()
    assert [(r.error_code, r.base_offset) for r in finished(broker, answer)] == [(0, 0), (0, 0)]


def test_who_waits_too_long_is_told_so_and_the_records_may_be_kept(
    broker: BrokerContext, gate: Gate
) -> None:
    broker.create_topic("orders", config={"flush.messages": "1"})
    broker.create_topic("plain")
    gate.close()
    targets = [("orders", 0), ("plain", 0)]
    answer = started(broker, request(broker, *targets, acks=ALL, timeout_ms=1))
    late, plain = finished(broker, answer)
    assert (late.error_code, late.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert "within 1 ms" in (late.error_message or "")
    assert plain.error_code == ErrorCode.NONE
    gate.open()
    answer = started(broker, request(broker, ("orders", 0), acks=ALL))
    assert finished(broker, answer)[0].base_offset == 1


def test_a_failure_while_it_waits_is_told_to_each_partition_that_it_concerns(
    broker: BrokerContext, gate: Gate
) -> None:
    for name in ("orders", "other"):
        broker.create_topic(name, config={"flush.messages": "1"})
    gate.close()
    answer = started(broker, request(broker, ("orders", 0), ("other", 0), acks=ALL))
    broker.run(broker.cluster.delete_topics(["orders"]))
    gate.open()
    gone, other = finished(broker, answer)
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (other.error_code, other.base_offset) == (0, 0)


def test_an_unexpected_failure_while_it_waits_is_not_taken_for_success(
    broker: BrokerContext, gate: Gate
) -> None:
    broker.create_topic("orders", config={"flush.messages": "1"})
    gate.close()
    answer = started(broker, request(broker, ("orders", 0), acks=ALL))
    partition = broker.partition("orders")
    assert partition._commits is not None
    partition._commits.fail(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        finished(broker, answer)


def test_who_wants_no_acknowledgement_gets_none_and_waits_for_nothing(
    broker: BrokerContext, gate: Gate
) -> None:
    broker.create_topic("orders", config={"flush.messages": "1"})
    gate.close()
    assert started(broker, request(broker, ("orders", 0), acks=NONE)) is None
    partition = broker.partition("orders")
    assert partition.log.next_offset == 1
    assert partition._commits is None, "nothing is kept for an answer that is not to come"


@pytest.mark.parametrize("target", [("absent", 0), ("orders", 9)])
def test_a_failure_without_acknowledgement_ends_the_connection(
    broker: BrokerContext, target: tuple[str, int]
) -> None:
    broker.create_topic("orders")
    with pytest.raises(HangUp, match="acks=0 failed"):
        started(broker, request(broker, target, acks=NONE))
    with pytest.raises(HangUp, match="acks=0 failed"):
        started(broker, request(broker, ("orders", 0), acks=NONE), version=1)
    with pytest.raises(HangUp, match="acks=0 failed"):
        produce.refuse(request(broker, target, acks=NONE), BrokerError("a bug"))


# Through a connection --------------------------------------------------------------------------


@pytest.fixture
def client(broker: BrokerContext) -> Iterator[Client]:
    with door_to(broker) as door:
        yield door.connect()


def test_answers_come_in_order_though_some_wait_for_the_disk(
    broker: BrokerContext, client: Client, gate: Gate
) -> None:
    broker.create_topic("synced", config={"flush.messages": "1"})
    broker.create_topic("plain")
    synced, plain = request(broker, ("synced", 0), acks=ALL), request(broker, ("plain", 0))
    quiet = request(broker, ("plain", 0), acks=NONE)
    wanted = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="plain", partitions=[wanted])])
    script = [
        (plain, 9),
        (synced, 9),
        (ApiVersionsRequest(), 0),
        (quiet, 9),
        (fetch, 12),
        (MetadataRequest(topics=[]), 9),
        (plain, 9),
        (synced, 9),
        (fetch, 12),
    ]
    gate.close()
    data = b"".join(
        encode_request(message, version, number) for number, (message, version) in enumerate(script)
    )
    client.socket.sendall(data)
    client.tick()
    assert broker.partition("plain").log.next_offset == 3, "nothing waits to enter its log"
    assert broker.partition("synced").log.next_offset == 2
    assert client.received() == [0], "the second is not durable yet"
    gate.open()
    ids = [int.from_bytes(frame[:4], "big") for frame in client.frames(7)]
    assert ids == [1, 2, 4, 5, 6, 7, 8]
    assert client.received() == []


def test_a_producer_that_leaves_while_it_waits_leaves_nothing_behind(
    broker: BrokerContext, client: Client, gate: Gate
) -> None:
    broker.create_topic("orders", config={"flush.messages": "1"})
    gate.close()
    client.send(request(broker, ("orders", 0), acks=ALL), 9)
    client.socket.close()
    client.tick()
    gate.open()
    while broker.partition("orders").high_watermark == 0:
        client.tick()
    client.tick()
    assert not client.is_connected
    assert not broker.partition("orders")._commits


def test_a_consumer_that_leaves_while_it_waits_is_forgotten(
    broker: BrokerContext, client: Client
) -> None:
    broker.create_topic("orders")
    wanted = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="orders", partitions=[wanted])]
    client.send(FetchRequest(max_wait_ms=FOREVER_MS, min_bytes=1, topics=topics), 12)
    assert watched(broker.partition("orders"))
    client.socket.close()
    client.tick()
    assert not client.is_connected
    assert not watched(broker.partition("orders"))


def test_a_produce_that_fails_without_acknowledgement_hangs_up(
    broker: BrokerContext, client: Client
) -> None:
    client.send(request(broker, ("absent", 0), acks=NONE), 9)
    assert not client.is_connected


def test_a_fault_in_the_handler_hangs_up_on_who_expects_no_answer(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Partition, "append", broken)
    client.send(request(broker, ("orders", 0), acks=NONE), 9)
    assert not client.is_connected


def test_a_disk_that_fails_is_an_error_for_every_partition(
    broker: BrokerContext, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    ask(broker)

    def broken(*_: Any, **__: Any) -> None:
        raise StorageFault("write at 0 failed")

    failed: list[StorageFault] = []
    monkeypatch.setattr(type(broker.partition("orders").log), "append_as_leader", broken)
    monkeypatch.setattr(broker.replicas, "disk_failed", failed.append)
    client.send(request(broker, ("orders", 0), acks=ALL), 9)
    _, response = client.receive_as(ProduceResponse, 9)
    assert [r.error_code for r in results(response)] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert len(failed) == 1


def watched(partition: Partition) -> bool:
    return bool(partition.watchers)
