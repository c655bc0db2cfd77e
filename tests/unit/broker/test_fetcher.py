"""What a follower asks its leader for, and when. The leader is a script, the logs are real."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import fetcher as fetcher_module
from penstock.broker.fetcher import Fetcher
from penstock.broker.partition import Partition
from penstock.client.connection import OnAnswer
from penstock.client.errors import ClientError
from penstock.metadata.image import PartitionImage
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import ErrorCode
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.support.engine import Engine

ME, ANN = 1, 2
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
        partition.follow(PartitionImage(ANN, 1, 1, (ANN, ME), (ANN, ME)))
    return partitions


def begin(engine: Engine, fetcher: Fetcher, partitions: list[Partition]) -> None:
    for partition in partitions:
        fetcher.add(partition)
    fetcher.start(lambda work, _name: engine.replicas.loop.create_task(work))
    engine.tick()


def indexes(request: FetchRequest) -> list[int]:
    return [it.partition for topic in request.topics for it in topic.partitions]


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
    records = b"".join(it.read() for it in source.read_all(0, 1 << 20).slices)
    begin(engine, fetcher, [target])
    data = PartitionData(
        partition_index=0,
        high_watermark=1,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )
    leader.answer(FetchableTopicResponse(topic_id=target.topic.id, partitions=[data]))
    assert (target.log.next_offset, target.high_watermark) == (1, 1)
    assert (
        b"".join(it.read() for it in target.log.read(0, 1 << 20, upto_offset=1).slices) == records
    )
    assert [it.fetch_offset for it in leader.asked[-1].topics[0].partitions] == [1]


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
