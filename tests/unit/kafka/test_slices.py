"""A large Produce is appended in slices: what happens between two of them changes neither order nor outcome."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.kafka import slices
from penstock.metadata.image import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.node.tasks import Tasks
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.bombs import zeros
from tests.support.context import BROKER_ID, BrokerContext, broker_context
from tests.support.frames import Buffer, counted_buffers
from tests.support.raw_client import encode_request
from tests.support.txn_session import Session, committed_values
from tests.support.wired import Client, Door, door_to

TOPIC = "many"
COUNT = 300  # partitions: 15 slices
FIRST, LAST = 0, COUNT - 1
OTHER = 77  # a broker
FOREVER_MS = 600_000
VERSION = 9
ENDS = pytest.mark.parametrize(
    ("end", "is_pipelined"),
    [
        (end, is_pipelined)
        for end in (socket.socket.close, lambda sock: sock.shutdown(socket.SHUT_WR))
        for is_pipelined in (False, True)
    ],
    ids=["close", "close-pipelined", "half-close", "half-close-pipelined"],
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerContext]:
    with broker_context(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture(autouse=True)
def one_slice_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fast machine all slices would be appended in two turns."""
    monkeypatch.setattr(slices, "_PARTS_PER_TURN", 1)


@pytest.fixture
def broker(started: BrokerContext) -> Iterator[BrokerContext]:
    yield started
    started.reset()


@pytest.fixture
def door(broker: BrokerContext) -> Iterator[Door]:
    broker.create_topic(TOPIC, partitions=COUNT)
    with door_to(broker) as opened:
        yield opened


def batch(broker: BrokerContext, value: bytes = b"v", **producer: int) -> memoryview:
    now_ms = broker.services.clock.wall_ms()
    return memoryview(build_batch([Record(0, now_ms, b"k", value, ())], **producer))  # type: ignore[arg-type]  # names of integers only


def produce(
    records: memoryview | Sequence[memoryview],
    indexes: Sequence[int] = range(COUNT),
    *,
    acks: int = 1,
    topic: str = TOPIC,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """The same records to each partition, or each its own."""
    each = [records] * len(indexes) if isinstance(records, memoryview) else records
    data = [
        PartitionProduceData(index=index, records=one)
        for index, one in zip(indexes, each, strict=True)
    ]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=FOREVER_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def ends(broker: BrokerContext, topic: str = TOPIC) -> list[int]:
    partitions = broker.replicas.topic(topic).partitions
    return [it.log.next_offset for it in partitions if it is not None]


def codes(client: Client, version: int = VERSION) -> list[int]:
    """Of the next response, in the order of partitions."""
    response = client.receive_as(ProduceResponse, version)[1]
    found = [data for topic in response.responses for data in topic.partition_responses]
    assert [data.index for data in found] == list(range(COUNT))
    return [data.error_code for data in found]


def send_until_half(
    broker: BrokerContext, client: Client, request: ProduceRequest, version: int = VERSION
) -> None:
    """Send the request, and stop in the middle of its slices."""
    client.socket.sendall(encode_request(request, version))
    first = broker.partition(TOPIC, FIRST)
    while not first.log.next_offset:
        client.tick(1)
    assert not ends(broker)[LAST]


def later(client: Client, happens: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if happens():
            return
        client.tick(1)
    pytest.fail("it never happens")


def moved_away(broker: BrokerContext, index: int) -> None:
    image = PartitionImage(OTHER, 5, 9, (OTHER, BROKER_ID), (OTHER,))
    broker.call(lambda: broker.partition(TOPIC, index).follow(image))


def test_other_connections_are_served_between_two_slices(broker: BrokerContext, door: Door) -> None:
    client, other = door.connect(), door.connect()
    send_until_half(broker, client, produce(batch(broker)))
    other.send(produce(batch(broker, b"other"), [LAST]), VERSION)
    (response,) = other.receive_as(ProduceResponse, VERSION)[1].responses
    assert response.partition_responses[0].base_offset == 0
    assert codes(client) == COUNT * [ErrorCode.NONE]
    assert ends(broker) == (COUNT - 1) * [1] + [2]


def test_a_produce_does_not_overtake_a_large_one_of_its_connection(
    broker: BrokerContext, door: Door
) -> None:
    client = door.connect()
    client.send(produce(batch(broker)), VERSION, correlation_id=1)
    client.send(produce(batch(broker, b"later"), [LAST]), VERSION, correlation_id=2)
    assert codes(client) == COUNT * [ErrorCode.NONE]
    number, response = client.receive_as(ProduceResponse, VERSION)
    assert number == 2
    assert response.responses[0].partition_responses[0].base_offset == 1


def test_the_next_request_does_not_wait_for_the_acknowledgement_of_a_large_one(
    broker: BrokerContext, door: Door
) -> None:
    client = door.connect()
    led = PartitionImage(BROKER_ID, 4, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER))
    broker.call(lambda: broker.partition(TOPIC, FIRST).lead(BROKER_ID, led))
    client.send(produce(batch(broker), acks=-1), VERSION, correlation_id=1)
    client.send(produce(batch(broker), [LAST]), VERSION, correlation_id=2)
    later(client, lambda: ends(broker)[LAST] == 2)
    assert client.received() == []
    assert not door.loop.memory.used_bytes, "the frame is not needed any more"
    moved_away(broker, FIRST)
    found = codes(client)
    assert found[FIRST] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert set(found[FIRST + 1 :]) == {ErrorCode.NONE}
    assert client.receive_as(ProduceResponse, VERSION)[0] == 2


@pytest.fixture
def buffers() -> Iterator[type[Buffer]]:
    with counted_buffers() as counted:
        yield counted


SIZES = pytest.mark.parametrize("size", [1, 300], ids=["of the scratch buffer", "with a buffer"])


@SIZES
def test_a_frame_is_not_kept_while_its_acknowledgement_is_awaited(
    broker: BrokerContext, door: Door, buffers: type[Buffer], size: int
) -> None:
    client = door.connect()
    led = PartitionImage(BROKER_ID, 4, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER))
    broker.call(lambda: broker.partition(TOPIC, FIRST).lead(BROKER_ID, led))
    moved_away(broker, FIRST + 1)  # a refusal does not keep it either
    client.socket.sendall(encode_request(produce(batch(broker, bytes(size)), acks=-1), VERSION))
    later(client, lambda: ends(broker)[LAST] == 1)
    client.tick()
    assert client.received() == []
    assert buffers.made
    assert not buffers.alive()
    moved_away(broker, FIRST)
    assert codes(client)[LAST] == ErrorCode.NONE


@SIZES
@pytest.mark.parametrize("acks", [0, 1])
def test_a_frame_is_not_kept_when_its_request_ends_the_connection(
    broker: BrokerContext, door: Door, buffers: type[Buffer], size: int, acks: int
) -> None:
    client = door.connect()
    moved_away(broker, FIRST + 1)
    send_until_half(broker, client, produce(batch(broker, bytes(size)), acks=acks))
    if acks:
        broker.call(lambda: client.connection.close("reset by peer"))
    later(client, lambda: not client.is_connected)
    client.tick(2)
    assert buffers.made
    assert not buffers.alive()


def test_slices_are_dropped_when_the_client_is_gone_and_sends_them_again(
    broker: BrokerContext, door: Door
) -> None:
    """Each batch enters once and in order, though the second connection comes while the first is in its slices."""
    gone, again = door.connect(), door.connect()
    first = batch(broker, producer_id=5, producer_epoch=0, base_sequence=0)
    second = batch(broker, producer_id=5, producer_epoch=0, base_sequence=1)
    send_until_half(broker, gone, produce(first))
    broker.call(lambda: gone.connection.close("reset by peer"))
    for one in (first, second):
        again.send(produce(one), VERSION)
        assert codes(again) == COUNT * [ErrorCode.NONE]
    assert ends(broker) == COUNT * [2]


@pytest.mark.parametrize(("acks", "is_kept"), [(0, True), (1, False), (-1, False)])
def test_only_what_is_never_sent_again_is_appended_for_a_client_that_is_gone(
    broker: BrokerContext, door: Door, acks: int, is_kept: bool
) -> None:
    client = door.connect()
    send_until_half(broker, client, produce(batch(broker), acks=acks))
    broker.call(lambda: client.connection.close("reset by peer"))
    client.tick(200)
    assert ends(broker)[LAST] == is_kept
    assert not door.loop.memory.used_bytes


@ENDS
def test_later_records_are_not_followed_by_slices_that_the_client_gave_up(
    broker: BrokerContext, door: Door, end: Callable[[socket.socket], None], is_pipelined: bool
) -> None:
    """Without sequence numbers nothing else keeps the order of a client that sends again."""
    gone, again = door.connect(), door.connect()
    send_until_half(broker, gone, produce(batch(broker, b"first")))
    if is_pipelined:  # the end is behind what the broker does not read yet
        gone.socket.sendall(encode_request(produce(batch(broker, b"second"), [LAST]), VERSION))
    end(gone.socket)
    for value in (b"first", b"second"):
        again.send(produce(batch(broker, value), [LAST]), VERSION)
        again.receive_as(ProduceResponse, VERSION)
    later(again, lambda: not gone.is_connected)
    again.tick(200)
    assert committed_values(broker, TOPIC, LAST) == [b"first", b"second"]
    assert not door.loop.memory.used_bytes


@ENDS
def test_all_that_arrived_without_acknowledgements_is_appended_when_the_client_ends(
    broker: BrokerContext, door: Door, end: Callable[[socket.socket], None], is_pipelined: bool
) -> None:
    client = door.connect()
    send_until_half(broker, client, produce(batch(broker, b"first"), acks=0))
    if is_pipelined:
        second = produce(batch(broker, b"second"), acks=0)
        client.socket.sendall(encode_request(second, VERSION))
    end(client.socket)
    later(client, lambda: not client.is_connected)
    assert ends(broker) == COUNT * [1 + is_pipelined]
    assert committed_values(broker, TOPIC, LAST) == [b"first", b"second"][: 1 + is_pipelined]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_client_that_stops_sending_after_the_last_slice_gets_its_response(
    broker: BrokerContext, door: Door, acks: int
) -> None:
    client = door.connect()
    led = PartitionImage(BROKER_ID, 4, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER))
    broker.call(lambda: broker.partition(TOPIC, FIRST).lead(BROKER_ID, led))
    send_until_half(broker, client, produce(batch(broker), acks=acks))
    later(client, lambda: ends(broker) == COUNT * [1])
    client.socket.shutdown(socket.SHUT_WR)
    client.tick()
    moved_away(broker, FIRST)
    assert set(codes(client)[FIRST + 1 :]) == {ErrorCode.NONE}
    later(client, lambda: not client.is_connected)


def test_a_leader_that_changes_between_two_slices_refuses_the_rest(
    broker: BrokerContext, door: Door
) -> None:
    client = door.connect()
    send_until_half(broker, client, produce(batch(broker)))
    moved_away(broker, LAST)
    found = codes(client)
    assert found[LAST] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert set(found[:LAST]) == {ErrorCode.NONE}
    assert ends(broker)[LAST] == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_a_broker_that_stops_appends_no_more_slices(
    broker: BrokerContext, door: Door, acks: int
) -> None:
    tasks = Tasks()
    door.loop.spawn = tasks.spawn
    client = door.connect()
    send_until_half(broker, client, produce(batch(broker), acks=acks))
    broker.call(door.listener.close)
    broker.run(tasks.close())
    before = ends(broker)
    client.tick(200)
    assert ends(broker) == before
    assert before[LAST] == 0
    assert not door.loop.memory.used_bytes


def test_without_acknowledgements_a_failure_closes_the_connection_after_the_last_slice(
    broker: BrokerContext, door: Door
) -> None:
    moved_away(broker, FIRST)
    client = door.connect()
    client.send(produce(batch(broker), acks=0), VERSION)
    later(client, lambda: not client.is_connected)
    assert ends(broker) == [0] + (COUNT - 1) * [1]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_batch_that_is_opened_first_is_not_overtaken(
    broker: BrokerContext, door: Door, acks: int
) -> None:
    broker.create_topic("keyed", partitions=COUNT, config={"cleanup.policy": "compact"})
    large = memoryview(zeros(100_000, broker.services.clock.wall_ms()))
    each = [batch(broker)] * COUNT
    each[FIRST] = each[LAST] = large
    client = door.connect()
    client.send(produce(each, topic="keyed", acks=acks), VERSION)
    client.send(produce(batch(broker, b"small"), [LAST], topic="keyed"), VERSION)
    if acks:
        assert codes(client) == COUNT * [ErrorCode.NONE]
    response = client.receive_as(ProduceResponse, VERSION)[1]
    assert response.responses[0].partition_responses[0].base_offset == 1
    assert ends(broker, "keyed") == (COUNT - 1) * [1] + [2]
    assert not door.loop.memory.used_bytes


def test_a_transaction_gets_all_its_slices(broker: BrokerContext, door: Door) -> None:
    session = begun(broker)
    client = door.connect()
    client.send(in_transaction(broker, session), 12)
    assert codes(client, 12) == COUNT * [ErrorCode.NONE]
    assert session.end(committed=True) is ErrorCode.NONE
    later(client, lambda: ends(broker) == COUNT * [2])  # with a marker in each


def test_a_transaction_that_ends_between_two_slices_gets_no_more_of_them(
    broker: BrokerContext, door: Door
) -> None:
    session = begun(broker)
    client = door.connect()
    send_until_half(broker, client, in_transaction(broker, session), 12)

    async def end() -> None:
        transactions = broker.services.transactions
        answer = transactions.end(session.id, session.producer, committed=False, version=2)
        if asyncio.isfuture(answer):
            await answer

    broker.run(end())
    assert codes(client, 12)[LAST] != ErrorCode.NONE
    partitions = [broker.partition(TOPIC, index) for index in range(COUNT)]
    later(client, lambda: all(it.log.next_offset for it in partitions))  # each has its marker
    client.tick(200)
    assert all(it.last_stable_offset == it.log.next_offset for it in partitions)


def begun(broker: BrokerContext) -> Session:
    session = Session(broker)
    assert session.initialize() is ErrorCode.NONE
    return session


def in_transaction(broker: BrokerContext, session: Session) -> ProduceRequest:
    records = build_batch(
        [Record(0, broker.services.clock.wall_ms(), b"k", b"v", ())],
        producer_id=session.producer.id,
        producer_epoch=session.producer.epoch,
        base_sequence=0,
        transactional=True,
    )
    return produce(memoryview(records), acks=-1, transactional_id=session.id)
