"""What a follower asks its leader for, and when. The leader is a script, the logs are real."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.partitions import fetcher as fetcher_module
from penstock.broker.partitions.fetcher import Fetcher
from penstock.broker.partitions.partition import Partition
from penstock.client.connection import OnAnswer
from penstock.client.errors import ClientError
from penstock.metadata.image import PartitionImage
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import BrokerError, ErrorCode, OutOfResources
from penstock.storage.log import Log
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.support.engine import Engine

ME, ANN = 1, 2
EPOCH = 4
VERSION = 17
SESSION = 99
WAIT_MS = resolve_broker_config({}).replica_fetch_wait_max_ms


class Leader:
    """A connection to one, and the one at its end: it answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[FetchRequest] = []
        self.unanswered: list[OnAnswer] = []
        self.is_closed = False

    def version_for(self, _request: object) -> int:
        return VERSION

    def post(self, request: FetchRequest, _version: int, on_answer: OnAnswer) -> None:
        self.asked.append(request)
        self.unanswered.append(on_answer)

    def decode(self, frame: memoryview, response: type[FetchResponse], version: int) -> Any:
        return response.decode(frame, version)

    async def close(self) -> None:
        self.is_closed = True

    def answer(self, *topics: FetchableTopicResponse) -> None:
        """The buffer is used again at once, as a connection's is."""
        response = FetchResponse(session_id=SESSION, responses=list(topics))
        frame = bytearray(response.encode(VERSION))
        self.unanswered.pop(0)(memoryview(frame))
        frame[:] = bytes(len(frame))


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def fetcher(engine: Engine, leader: Leader) -> Fetcher:
    async def connection(_broker: int, *, timeout_ms: int) -> Leader:
        del timeout_ms
        return leader

    cluster = SimpleNamespace(
        broker_id=ME,
        epoch=7,
        config=resolve_broker_config({}),
        peers=SimpleNamespace(connection=connection),
    )
    throttles = SimpleNamespace(fetched=lambda *_: None)

    async def made() -> Fetcher:
        return Fetcher(ANN, cluster, throttles)  # type: ignore[arg-type] # as much of them as it needs

    return engine.run(made())


def followed(engine: Engine, count: int) -> list[Partition]:
    partitions = engine.topic("t", partitions=count)
    for partition in partitions:
        partition.follow(PartitionImage(ANN, EPOCH, 1, (ANN, ME), (ANN, ME)))
    return partitions


def begin(engine: Engine, fetcher: Fetcher, partitions: list[Partition]) -> None:
    for partition in partitions:
        fetcher.add(partition)
    fetcher.start(lambda work, _name: engine.replicas.loop.create_task(work))
    engine.tick()


def indexes(request: FetchRequest) -> list[int]:
    return [it.partition for topic in request.topics for it in topic.partitions]


def positions(request: FetchRequest) -> list[tuple[int, int]]:
    """From which offsets it asks, each as of which leader epoch."""
    partitions = [it for topic in request.topics for it in topic.partitions]
    return [(it.fetch_offset, it.current_leader_epoch) for it in partitions]


def records_of(partition: Partition, offset: int = 0) -> bytes:
    return b"".join(it.read() for it in partition.read_all(offset, 1 << 20).slices)


def told(partition: Partition, records: bytes = b"", **fields: Any) -> FetchableTopicResponse:
    """What the leader says of one partition."""
    data = PartitionData(
        partition_index=partition.index, aborted_transactions=None, records=records, **fields
    )
    return FetchableTopicResponse(topic_id=partition.topic.id, partitions=[data])


def out_of_range(partition: Partition, log_start: int) -> FetchableTopicResponse:
    return told(
        partition,
        error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
        high_watermark=-1,
        log_start_offset=log_start,
    )


def test_very_many_partitions_are_asked_for_in_pieces_and_only_the_last_waits_for_data(
    engine: Engine, leader: Leader, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "_ASKED_TOGETHER", 2)
    begin(engine, fetcher, followed(engine, 7))
    assert [indexes(it) for it in leader.asked] == [[0, 1]], "a session begins with its answer"
    leader.answer()
    assert [indexes(it) for it in leader.asked[1:]] == [[2, 3], [4, 5]], "two at a time"
    leader.answer()
    assert [indexes(it) for it in leader.asked[3:]] == [[6]]
    assert [it.max_wait_ms for it in leader.asked] == [0, 0, 0, WAIT_MS]
    assert [it.session_epoch for it in leader.asked] == [0, 1, 2, 3]


def test_records_are_taken_before_the_buffer_of_the_answer_is_used_again(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    source, target = engine.partition("source"), followed(engine, 1)[0]
    engine.append(source, b"value")
    records = records_of(source)
    begin(engine, fetcher, [target])
    leader.answer(told(target, records, high_watermark=1))
    assert (target.log.next_offset, target.high_watermark) == (1, 1)
    assert (
        b"".join(it.read() for it in target.log.read(0, 1 << 20, upto_offset=1).slices) == records
    )
    assert positions(leader.asked[-1]) == [(1, EPOCH)]


def test_nothing_is_sent_again_while_what_is_here_is_not_durable_yet(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    source, target = engine.partition("source"), engine.partition("target", flush_messages=1)
    target.follow(PartitionImage(ANN, EPOCH, 1, (ANN, ME), (ANN, ME)))
    engine.append(source, b"value")
    begin(engine, fetcher, [target])
    leader.answer(told(target, records_of(source), high_watermark=0))
    assert (target.fetch_offset, target.log.next_offset) == (0, 1)
    (left,) = leader.asked[-1].forgotten_topics_data
    assert (indexes(leader.asked[-1]), left.partitions) == ([], [0])
    engine.settle()
    fetcher.ask_for(target)  # as who hears that it is durable does
    engine.tick()
    assert positions(leader.asked[-1]) == [(1, EPOCH)]


def test_a_lost_connection_is_opened_again_and_its_session_with_it(
    engine: Engine, leader: Leader, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "_RETRY_S", 0.0)
    begin(engine, fetcher, followed(engine, 1))
    leader.answer()
    leader.unanswered.pop()(ClientError("it is gone", ErrorCode.NETWORK_EXCEPTION))
    engine.tick()
    assert leader.is_closed
    assert [(it.session_id, it.session_epoch) for it in leader.asked] == [
        (0, 0),
        (SESSION, 1),
        (0, 0),
    ]


def lose_log(engine: Engine, fetcher: Fetcher, target: Partition) -> None:
    """It is damaged, and built anew under the same leader's next epoch."""
    target.fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
    fetcher.remove(target)
    target.follow(PartitionImage(ANN, EPOCH + 1, 2, (ANN, ME), (ANN,)))
    engine.replicas.start_over(target)
    fetcher.add(target)
    engine.tick()


def halfway(engine: Engine, leader: Leader, fetcher: Fetcher) -> tuple[Partition, bytes]:
    """A partition with the first of two batches, which has asked for the second; and that one."""
    source, (target,) = engine.partition("source"), followed(engine, 1)
    engine.append(source, b"first")
    first = records_of(source)
    engine.append(source, b"second")
    begin(engine, fetcher, [target])
    leader.answer(told(target, first, high_watermark=1, log_start_offset=0))
    assert positions(leader.asked[-1]) == [(1, EPOCH)]
    return target, records_of(source, 1)


def test_what_was_asked_for_another_log_does_not_enter_this_one(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    target, second = halfway(engine, leader, fetcher)
    lose_log(engine, fetcher, target)
    assert positions(leader.asked[-1]) == [(0, EPOCH + 1)], (
        "the answer for offset 1 is still on its way"
    )
    leader.answer(told(target, second, high_watermark=2, log_start_offset=0))
    assert (target.log.next_offset, target.high_watermark) == (0, 0)
    leader.answer(told(target, high_watermark=0, log_start_offset=0))
    assert positions(leader.asked[-1]) == [], "it goes on waiting from offset 0"


@pytest.mark.parametrize("asked_again", [True, False])
def test_that_the_leader_lacks_what_was_asked_for_earlier_restarts_no_log(
    engine: Engine, leader: Leader, fetcher: Fetcher, asked_again: bool
) -> None:
    target, _ = halfway(engine, leader, fetcher)
    if asked_again:
        lose_log(engine, fetcher, target)
    else:
        target.follow(PartitionImage(ANN, EPOCH + 1, 2, (ANN, ME), (ANN,)))
    before = target.log.next_offset
    leader.answer(out_of_range(target, 40))
    assert (target.log.start_offset, target.log.next_offset) == (0, before)
    assert positions(leader.asked[2]) == [(before, EPOCH + 1)], (
        "asked for as of now, before or after that"
    )


def test_that_the_leader_lacks_what_is_asked_for_restarts_the_log(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    target, _ = halfway(engine, leader, fetcher)
    leader.answer(out_of_range(target, 40))
    assert (target.log.start_offset, target.log.next_offset) == (40, 40)
    assert positions(leader.asked[-1]) == [(40, EPOCH)]


def test_what_starts_inside_a_batch_is_fetched_from_there(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    source, (target,) = engine.partition("source"), followed(engine, 1)
    for _ in range(2):
        engine.append(source, b"a", b"b", b"c")
    source.delete_records_before(2)
    begin(engine, fetcher, [target])
    leader.answer(out_of_range(target, 2))
    assert positions(leader.asked[-1]) == [(2, EPOCH)]
    leader.answer(told(target, records_of(source, 2), high_watermark=6, log_start_offset=2))
    assert (target.log.start_offset, target.high_watermark, target.log.next_offset) == (2, 6, 6)
    assert positions(leader.asked[-1]) == [(6, EPOCH)]


def test_who_asks_twice_for_the_same_takes_it_once(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    target, second = halfway(engine, leader, fetcher)
    fetcher.ask_for(target)
    engine.tick()
    assert [positions(it) for it in leader.asked[-2:]] == [[(1, EPOCH)], [(1, EPOCH)]]
    for _ in range(2):
        leader.answer(told(target, second, high_watermark=2, log_start_offset=0))
    assert (target.log.next_offset, target.high_watermark) == (2, 2)
    assert [positions(it) for it in leader.asked[3:]] == [[(2, EPOCH)]]


def test_a_bug_in_one_partition_keeps_no_other_from_being_followed(
    engine: Engine, leader: Leader, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, (bad, good) = engine.partition("source"), followed(engine, 2)
    engine.append(source, b"value")
    records = records_of(source)
    append = Partition.append_replicated

    def append_replicated(partition: Partition, taken: memoryview) -> None:
        if partition is bad:
            raise ValueError("a bug")
        append(partition, taken)

    monkeypatch.setattr(Partition, "append_replicated", append_replicated)
    begin(engine, fetcher, [bad, good])
    leader.answer(told(bad, records, high_watermark=1), told(good, records, high_watermark=1))
    assert (bad.log.next_offset, good.log.next_offset) == (0, 1)
    assert positions(leader.asked[-1]) == [(1, EPOCH)]


def test_the_epochs_of_a_session_begin_again_after_the_last_one(
    engine: Engine, leader: Leader, fetcher: Fetcher
) -> None:
    begin(engine, fetcher, followed(engine, 1))
    leader.answer()
    fetcher._session_epoch = (1 << 31) - 1  # after as many requests
    for _ in range(3):
        leader.answer()
    assert [it.session_epoch for it in leader.asked] == [0, 1, (1 << 31) - 1, 1, 2]


def test_a_log_that_no_descriptor_is_left_for_is_fetched_once_there_is_one(
    engine: Engine, leader: Leader, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "_RETRY_S", 0.0)
    (target,) = followed(engine, 1)
    open_log, calls = engine.replicas.open_log, []

    def short(partition: Partition) -> Log:
        calls.append(partition)
        if len(calls) == 1:
            raise OutOfResources("no descriptor is left")
        return open_log(partition)

    monkeypatch.setattr(engine.replicas, "open_log", short)
    begin(engine, fetcher, [target])
    engine.tick()
    assert [positions(it) for it in leader.asked] == [[(0, EPOCH)]]
