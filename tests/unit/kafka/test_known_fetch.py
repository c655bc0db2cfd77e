"""Fetches that are recognised ask for what a decoder would read in them, and are answered as any other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.context import Context
from penstock.kafka.fetch_sessions import wanted_partitions
from penstock.kafka.handlers.fetch import FetchAgain
from penstock.kafka.known_fetch import KnownFetch
from penstock.kafka.security import ANONYMOUS, Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.header import RequestHeader, decode_request_header, encode_request_header
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import decode_for
from tests.support.context import Rules
from tests.support.engine import Engine, running_engine
from tests.support.readers import BY_ID, BY_NAME, Part, Reader, Server, is_waiting, told_of
from tests.unit.storage.logs import FaultyDisk, scratch

VERSIONS = range(9, 18)
TOPIC_ID = bytes(range(1, 17))
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)

offsets = st.integers(-1, (1 << 63) - 1)
parts = st.dictionaries(st.integers(0, 40), offsets, min_size=1, max_size=8)


def fetch(places: dict[int, int], topic: str = "orders", **fields: Any) -> FetchRequest:
    asked = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            current_leader_epoch=index - 1,
            partition_max_bytes=1000 + index,
        )
        for index, offset in places.items()
    ]
    topics = [FetchTopic(topic=topic, topic_id=TOPIC_ID, partitions=asked)]
    return FetchRequest(**{"max_wait_ms": 9, "min_bytes": 1, **fields}, topics=topics)


def frame(
    request: FetchRequest, version: int, number: int = 1, client: str | None = "me"
) -> memoryview:
    header = RequestHeader(request.api_key, version, number, client)
    return memoryview(encode_request_header(header) + request.encode(version))


def decoded(data: memoryview) -> tuple[RequestHeader, FetchRequest, int]:
    header, body_at = decode_request_header(data)
    request, _ = decode_for(FetchRequest, header.api_version)(data, body_at)
    return header, request, body_at


def take(known: KnownFetch, data: memoryview) -> bool:
    """As a connection does; whether it was recognised, and if so rightly."""
    header = known.recognise(data)
    if header is None:
        found, request, body_at = decoded(data)
        known.learn(found, request, data, body_at)
        return False
    expected, request, _ = decoded(data)
    assert header == expected
    assert [numbers(it) for it in known.wanted] == [
        numbers(it) for it in wanted_partitions(request)
    ]
    known.request.topics = request.topics  # its numbers are those of another
    assert known.request == request
    return True


def numbers(wanted: Any) -> tuple[Any, ...]:
    return wanted.key, wanted.offset, wanted.leader_epoch, wanted.max_bytes


@given(
    version=st.sampled_from(VERSIONS),
    client=st.none() | st.text(max_size=20),
    rack=st.text(max_size=5),
    requests=st.lists(parts, min_size=3, max_size=6),
)
def test_from_the_third_on_a_topic_s_fetches_are_recognised_whatever_they_ask_for(
    version: int, client: str | None, rack: str, requests: list[dict[int, int]]
) -> None:
    known = KnownFetch()
    fields = {"rack_id": rack} if version >= 11 else {}
    taken = [
        take(known, frame(fetch(places, **fields), version, number, client))
        for number, places in enumerate(requests)
    ]
    assert taken == [False, False] + [True] * (len(requests) - 2)


@given(
    version=st.sampled_from(VERSIONS),
    places=parts,
    cut=st.integers(0, 60),
    flips=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 255)), max_size=3),
    more=st.binary(max_size=40),
)
def test_what_is_recognised_is_what_a_decoder_reads(
    version: int, places: dict[int, int], cut: int, flips: list[tuple[int, int]], more: bytes
) -> None:
    known = KnownFetch()
    for _ in range(3):
        take(known, frame(fetch(places), version))
    spoiled = bytearray(frame(fetch(places), version))
    for at, flip in flips:
        spoiled[at % len(spoiled)] ^= flip
    del spoiled[max(8, len(spoiled) - cut) :]
    try:
        take(known, memoryview(spoiled + more))
    except (MalformedMessage, ValueError):  # or of a version that is not there
        assert known.recognise(memoryview(spoiled + more)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_other_requests_are_decoded(version: int) -> None:
    places = {0: 5, 1: 6}
    others = [
        fetch(places, max_bytes=77),
        fetch(places, session_epoch=0),
        fetch(places, session_id=4, session_epoch=2),
        fetch(places, "other") if version < 13 else fetch(places, isolation_level=1),
        FetchRequest(topics=[*fetch(places).topics, *fetch(places).topics]),
        fetch({}),
    ]
    for other in others:
        known = KnownFetch()
        for _ in range(3):
            take(known, frame(fetch(places), version))
        assert not take(known, frame(other, version))


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (11, {"session_epoch": 0}),
        (11, {"session_id": 3, "session_epoch": 1}),
        (11, {"replica_id": 2}),
        (16, {"replica_state": ReplicaState(replica_id=2)}),
    ],
)
def test_sessions_and_replicas_are_never_recognised(version: int, fields: dict[str, Any]) -> None:
    known = KnownFetch()
    assert not any(take(known, frame(fetch({0: 1}, **fields), version)) for _ in range(5))


@pytest.mark.parametrize("version", [11, 12, 17])
def test_large_requests_are_decoded_where_their_number_is_not_one_byte(version: int) -> None:
    known = KnownFetch()
    for count in (126, 126, 127, 200):
        take(known, frame(fetch(dict.fromkeys(range(count), 7)), version))
    assert take(known, frame(fetch(dict.fromkeys(range(126), 7)), version))
    assert take(known, frame(fetch(dict.fromkeys(range(127), 7)), version)) == (version < 12)


def test_a_partition_that_is_named_twice_is_asked_for_once_with_the_last_word() -> None:
    known = KnownFetch()
    request = fetch({3: 5, 4: 6})
    request.topics[0].partitions += fetch({3: 7}).topics[0].partitions
    assert [take(known, frame(request, 16)) for _ in range(3)] == [False, False, True]
    assert [(it.index, it.offset) for it in known.wanted] == [(3, 7), (4, 6)]


def test_what_is_kept_of_partitions_has_an_end() -> None:
    known = KnownFetch()
    for first in range(0, 5_000, 100):
        take(known, frame(fetch({first + more: 1 for more in range(100)}), 16))
    assert len(known._by_index) <= 1100


# Answers ------------------------------------------------------------------------------------------


class KnowingServer(Server):
    """Takes fetches as a connection does."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.known = FetchAgain()
        self.recognised = 0

    def handle(self, request: FetchRequest, version: int) -> Any:
        data = frame(request, version)
        header = self.known.recognise(data)
        if header is None:
            self.known.learn(*decoded(data)[:2], data, decoded(data)[2])
            return super().handle(request, version)
        self.recognised += 1
        context = Context(self.services, header, ANONYMOUS, "TEST", "host")

        async def handled() -> Any:
            return self.known.handle(self.known.request, context)

        return self.engine.runner.run(handled())


@pytest.fixture
def engine() -> Iterator[Engine]:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as started:
        started.topic("a", partitions=2)
        started.topic("b")
        for key in (A0, A0, A1, B0):
            append(started, key)
        yield started


@pytest.fixture
def server(engine: Engine) -> KnowingServer:
    return KnowingServer(engine)


@pytest.fixture(params=[11, BY_NAME, BY_ID], ids=["plain", "by-name", "by-id"])
def reader(server: KnowingServer, request: pytest.FixtureRequest) -> Reader:
    return Reader(server, request.param)


def append(engine: Engine, key: tuple[str, int]) -> None:
    topic = engine.replicas.topic(key[0])
    engine.append(engine.replicas.partition(topic, key[1]), b"x" * 10)


def test_answers_are_those_of_requests_that_are_decoded(
    engine: Engine, server: KnowingServer, reader: Reader
) -> None:
    plain = Reader(Server(engine), reader.version)
    for wanted in (
        {A0: Part(), A1: Part()},
        {A1: Part(), A0: Part(1)},
        {A0: Part(1)},
        {A1: Part(99), A0: Part(2)},
        {A0: Part(0, 60), A1: Part(0)},
        {A0: Part(0, leader_epoch=99)},
        {A0: Part(0), ("a", 7): Part()},
    ):
        assert reader.full(wanted) == plain.full(wanted)
    assert server.recognised == 5


def test_a_topic_that_is_made_again_is_found_by_its_name_and_not_by_its_id(
    engine: Engine, server: KnowingServer, reader: Reader
) -> None:
    for _ in range(3):
        assert reader.full({B0: Part()})[B0].high_watermark == 1
    engine.replicas.remove_topic("b")
    by_name = reader.version < 13
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
    assert reader.full({B0: Part()})[B0].error == gone
    engine.topic("b")
    for _ in range(2):
        append(engine, B0)
    told = reader.full({B0: Part()})[B0]
    assert (told.error, told.high_watermark) == ((0, 2) if by_name else (gone, -1))
    assert server.recognised == 3


def test_a_right_that_is_taken_away_ends_the_reading(server: KnowingServer, reader: Reader) -> None:
    server.services.authorizer = rules = Rules()
    for _ in range(3):
        assert reader.full({A0: Part()})[A0].error == 0
    rules.exceptions.add((Operation.READ, ResourceType.TOPIC, "a"))
    assert reader.full({A0: Part()})[A0].error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert server.recognised == 2


def test_a_known_fetch_waits_for_what_is_not_there_yet(
    engine: Engine, server: KnowingServer, reader: Reader
) -> None:
    for _ in range(3):
        reader.full({A0: Part()})
    waits = server.handle(reader.request({A0: Part(2)}, max_wait_ms=0), reader.version)
    assert not is_waiting(waits), "another request: it does not want to wait"
    for _ in range(2):
        reader.full({A0: Part()}, max_wait_ms=600_000)
    waits = server.handle(reader.request({A0: Part(2)}, max_wait_ms=600_000), reader.version)
    assert is_waiting(waits)
    append(engine, A0)
    engine.tick()
    (topic,) = waits.result().responses
    assert told_of(topic.partitions[0]).high_watermark == 3
