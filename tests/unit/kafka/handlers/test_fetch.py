import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.partitions.partition import Partition
from penstock.kafka.handlers import fetch as fetch_module
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tests.support.context import BrokerContext
from tests.support.engine import Engine, running_engine
from tests.support.readers import (
    ALL,
    BY_ID,
    BY_NAME,
    UNKNOWN_ID,
    Key,
    Part,
    Reader,
    Server,
    is_waiting,
    told_of,
    watchers,
)
from tests.unit.broker.partitions.test_partition import end, transactional
from tests.unit.storage.logs import FaultyDisk, headers, scratch

LONG_MS = 600_000
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as started:
        started.topic("a", partitions=2)
        started.topic("b")
        yield started


@pytest.fixture
def server(engine: Engine) -> Server:
    return Server(engine)


@pytest.fixture
def reader(server: Server) -> Reader:
    return Reader(server)


def partition(engine: Engine, key: Key) -> Partition:
    return engine.replicas.partition(engine.replicas.topic(key[0]), key[1])


def append(engine: Engine, key: Key, size: int = 10) -> int:
    """A batch of one record; the size of the batch."""
    before = partition(engine, key).log.size_bytes
    engine.append(partition(engine, key), b"x" * size)
    return partition(engine, key).log.size_bytes - before


def wait(reader: Reader, parts: dict[Key, Part], **limits: Any) -> Any:
    """A fetch that finds too little, and waits for it."""
    limits.setdefault("max_wait_ms", LONG_MS)
    request = reader.request(parts, **limits)
    waits = reader.server.handle(request, reader.version)
    assert is_waiting(waits)
    return waits


def counts(reader: Reader, response: FetchResponse) -> dict[Key, int]:
    return {key: len(headers(told.data)) for key, told in reader.told(response).items()}


# Limits ----------------------------------------------------------------------------------------


def test_a_batch_larger_than_every_limit_is_given_if_it_is_the_first(
    engine: Engine, reader: Reader
) -> None:
    for key in (A0, A1):
        append(engine, key, 5000)
    told = reader.full({A0: Part(max_bytes=1), A1: Part(max_bytes=1)}, max_bytes=1)
    assert [len(headers(part.data)) for part in told.values()] == [1, 0]


def test_empty_partitions_do_not_use_up_the_right_to_a_large_batch(
    engine: Engine, reader: Reader
) -> None:
    append(engine, A1, 5000)
    told = reader.full({A0: Part(), B0: Part(9), A1: Part()}, max_bytes=1)
    assert len(headers(told[A1].data)) == 1


def test_the_brokers_own_limit_counts_too(engine: Engine) -> None:
    reader = Reader(Server(engine, fetch_max_bytes=1024))
    for _ in range(20):
        append(engine, A0, 100)
    assert 500 < len(reader.full({A0: Part()})[A0].data) <= 1024


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 400), max_size=4), min_size=1, max_size=4),
    limits=st.lists(st.integers(0, 1500), min_size=4, max_size=4),
    max_bytes=st.integers(0, 2500),
)
def test_an_answer_holds_what_kip_74_says(
    sizes: list[list[int]], limits: list[int], max_bytes: int
) -> None:
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as engine:
        partitions = engine.topic("t", partitions=len(sizes))
        batches = [
            [append(engine, ("t", index), size) for size in group]
            for index, group in enumerate(sizes)
        ]
        reader = Reader(Server(engine))
        parts = {("t", p.index): Part(0, limits[p.index]) for p in partitions}
        told = reader.full(parts, max_bytes=max_bytes)
        found = [len(headers(told["t", index].data)) for index in range(len(sizes))]
        assert found == plain_kip_74(batches, limits, max_bytes)


def plain_kip_74(batches: list[list[int]], limits: list[int], max_bytes: int) -> list[int]:
    """How many batches of each partition: limits are kept, but never for the first batch of all."""
    found, left, empty = [], max_bytes, True
    for group, limit in zip(batches, limits, strict=False):
        count = used = 0
        for size in group:
            if used + size > min(limit, left) and not (empty and count == 0):
                break
            used, count = used + size, count + 1
        empty = empty and count == 0
        left -= used
        found.append(count)
    return found


# Waiting ---------------------------------------------------------------------------------------


def test_a_fetch_waits_for_its_bytes_over_all_its_partitions(
    engine: Engine, reader: Reader
) -> None:
    size = append(engine, A0)
    waits = wait(reader, {A0: Part(), B0: Part()}, min_bytes=3 * size)
    append(engine, B0)
    engine.tick()
    assert is_waiting(waits)
    append(engine, A1)
    engine.tick()
    assert is_waiting(waits), "nobody asked for that one"
    append(engine, A0)
    engine.tick()
    assert counts(reader, waits.result()) == {A0: 2, B0: 1}
    assert [watchers(partition(engine, key)) for key in (A0, A1, B0)] == [0, 0, 0]


def test_one_answer_tells_of_all_that_grew_in_a_tick(engine: Engine, reader: Reader) -> None:
    waits = wait(reader, {A0: Part(), B0: Part()}, min_bytes=1)
    append(engine, A0)
    append(engine, B0)
    engine.tick()
    assert counts(reader, waits.result()) == {A0: 1, B0: 1}


def test_who_waits_for_many_reads_again_only_where_something_was_committed(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    read = Partition.read

    def counted(self: Partition, *where: Any, **how: Any) -> Any:
        reads[str(self)] += 1
        return read(self, *where, **how)

    monkeypatch.setattr(Partition, "read", counted)
    waits = wait(reader, {A0: Part(), A1: Part(), B0: Part()}, min_bytes=1)
    append(engine, B0)
    engine.tick()
    assert counts(reader, waits.result()) == {A0: 0, A1: 0, B0: 1}
    assert reads == {"a-0": 1, "a-1": 1, "b-0": 2}


def test_when_its_time_is_up_a_fetch_gets_what_there_is(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    waits = wait(reader, {A0: Part(), B0: Part()}, min_bytes=ALL, max_wait_ms=1)
    response = engine.runner.run(asyncio.wait_for(waits, None))
    assert counts(reader, response) == {A0: 1, B0: 0}
    assert watchers(partition(engine, A0)) == 0


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max_wait_ms": 0, "min_bytes": 1}, "it has no time"),
        ({"max_wait_ms": LONG_MS, "min_bytes": 0}, "it lacks nothing"),
        ({"max_wait_ms": -1, "min_bytes": 1}, "it has no time"),
    ],
)
def test_a_fetch_that_need_not_wait_is_answered_at_once(
    reader: Reader, limits: dict[str, int], why: str
) -> None:
    told = reader.full({A0: Part()}, **limits)
    assert told[A0].data == b"", why


def test_a_fetch_of_nothing_is_answered_at_once(reader: Reader) -> None:
    assert reader.full({}, max_wait_ms=LONG_MS) == {}


def test_what_is_there_is_not_waited_for(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    assert reader.full({B0: Part(), A0: Part()}, max_wait_ms=LONG_MS)[A0].data


def test_more_than_fits_into_an_answer_is_enough(engine: Engine, reader: Reader) -> None:
    """Whatever `min_bytes` says: waiting would not make the answer larger."""
    for _ in range(5):
        append(engine, A0, 100)
    for limits in ({"max_bytes": 300}, {"max_bytes": ALL}):
        told = reader.full(
            {A0: Part(max_bytes=300)}, max_wait_ms=LONG_MS, min_bytes=100_000, **limits
        )
        assert len(headers(told[A0].data)) == 1


def test_the_end_of_a_segment_is_not_waited_at(engine: Engine, server: Server) -> None:
    """An answer comes from one segment; the bytes that `min_bytes` lacks are in the next one."""
    engine.topic("t", segment_bytes=10_240)
    for _ in range(3):
        append(engine, ("t", 0), 5000)
    told = Reader(server).full({("t", 0): Part(1)}, max_wait_ms=LONG_MS, min_bytes=8000)
    assert [header.base_offset for header in headers(told["t", 0].data)] == [1]


def test_growth_that_cannot_be_carried_is_not_counted_twice(engine: Engine, reader: Reader) -> None:
    """The count of arrived bytes is only a hint: the logs are looked at before the answer."""
    size = append(engine, A0, 100)
    waits = wait(reader, {A0: Part(1), B0: Part()}, min_bytes=2 * size)
    other = wait(reader, {A0: Part(1)}, min_bytes=3 * size)
    append(engine, A0, 100)
    append(engine, B0, 100)
    engine.tick()
    assert counts(reader, waits.result()) == {A0: 1, B0: 1}
    assert is_waiting(other)
    other.cancel()


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_topic_that_goes_wakes_who_waits_for_it(
    engine: Engine, server: Server, version: int
) -> None:
    reader = Reader(server, version)
    waits = wait(reader, {A0: Part(), B0: Part()})
    gone = partition(engine, B0)
    engine.replicas.remove_topic("b")
    told = reader.told(waits.result())
    expected = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == BY_NAME else ErrorCode.UNKNOWN_TOPIC_ID
    )
    assert {key: part.error for key, part in told.items()} == {A0: 0, B0: expected}
    engine.tick()
    assert watchers(gone) == watchers(partition(engine, A0)) == 0


def test_a_new_epoch_a_new_start_and_a_fault_wake_who_waits(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    one = partition(engine, A0)
    waits = wait(reader, {A0: Part(1, leader_epoch=3)})
    one.leader_epoch = 4
    one.wake()
    assert reader.told(waits.result())[A0].error == ErrorCode.FENCED_LEADER_EPOCH
    waits = wait(reader, {A0: Part(1)})
    one.delete_records_before(1)
    assert reader.told(waits.result())[A0].log_start == 1
    waits = wait(reader, {A0: Part(1)})
    engine.replicas.disk_failed(StorageFault("the disk is gone"))
    assert reader.told(waits.result())[A0].error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_fetch_that_is_given_up_leaves_nothing_behind(engine: Engine, reader: Reader) -> None:
    waits = wait(reader, {A0: Part(), B0: Part()})
    assert watchers(partition(engine, A0)) == 1
    waits.cancel()
    engine.tick()
    assert [watchers(partition(engine, key)) for key in (A0, B0)] == [0, 0]
    append(engine, A0)
    engine.tick()
    timers = [timer for timer in engine.loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined] # asyncio's own
    assert timers == []


# Isolation -------------------------------------------------------------------------------------


def test_what_is_not_committed_does_not_end_the_waiting_of_committed_readers(
    engine: Engine, server: Server
) -> None:
    committed, plain = Reader(server, isolation=1), Reader(server)
    waits, hasty = wait(committed, {A0: Part()}), wait(plain, {A0: Part()})
    transactional(engine, partition(engine, A0), 7, 0)
    engine.tick()
    assert is_waiting(waits)
    assert counts(plain, hasty.result()) == {A0: 1}
    end(engine, partition(engine, A0), 7, commit=True)
    engine.tick()
    assert counts(committed, waits.result()) == {A0: 2}


def test_a_small_marker_may_make_many_bytes_visible(engine: Engine, server: Server) -> None:
    reader = Reader(server, isolation=1)
    waits = wait(reader, {A0: Part()}, min_bytes=500)
    for sequence in range(10):
        transactional(engine, partition(engine, A0), 7, sequence)
        engine.tick()
    assert is_waiting(waits)
    end(engine, partition(engine, A0), 7, commit=True)
    engine.tick()
    assert counts(reader, waits.result()) == {A0: 11}


def test_aborted_transactions_are_named_to_committed_readers(
    engine: Engine, server: Server
) -> None:
    transactional(engine, partition(engine, A0), 7, 0)
    end(engine, partition(engine, A0), 7, commit=False)
    for isolation, expected in ((0, None), (1, [(7, 0)])):
        reader = Reader(server, isolation=isolation)
        (topic,) = server.fetch(reader.request({A0: Part()}), BY_NAME).responses
        (data,) = topic.partitions
        aborted = data.aborted_transactions
        found = None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]
        assert found == expected
        assert (data.last_stable_offset, data.high_watermark) == (2, 2)


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "part", "code"),
    [
        (("absent", 0), Part(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("", 0), Part(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("a", 2), Part(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("a", -1), Part(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (A0, Part(2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (A0, Part(-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (A0, Part(leader_epoch=2), ErrorCode.FENCED_LEADER_EPOCH),
        (A0, Part(leader_epoch=4), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_each_partition_is_refused_by_itself_and_the_others_are_answered_at_once(
    engine: Engine, reader: Reader, key: Key, part: Part, code: ErrorCode
) -> None:
    append(engine, A0)
    append(engine, B0)
    response = reader.server.fetch(
        reader.request({key: part, B0: Part()}, max_wait_ms=LONG_MS, min_bytes=ALL), BY_NAME
    )
    refused, good = (topic.partitions[0] for topic in response.responses)
    assert (refused.error_code, refused.high_watermark) == (code, -1)
    assert told_of(refused).data == b""
    assert len(headers(told_of(good).data)) == 1


def test_topics_are_named_by_id_from_version_13(engine: Engine, server: Server) -> None:
    append(engine, A0)
    reader = Reader(server, BY_ID)
    reader.ids["unknown"] = UNKNOWN_ID
    response = server.fetch(reader.request({A0: Part(), ("unknown", 0): Part()}), BY_ID)
    known, unknown = response.responses
    assert (known.topic, known.topic_id) == ("", engine.replicas.topic("a").id)
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# The disk --------------------------------------------------------------------------------------


def test_cold_data_is_brought_in_by_a_thread(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(engine, A0)
    warmed: list[object] = []
    monkeypatch.setattr(fetch_module, "is_resident", lambda _: False)
    monkeypatch.setattr(fetch_module, "warm", warmed.append)
    answer = reader.server.handle(reader.request({A0: Part()}), BY_NAME)
    response = engine.run(answer)
    assert counts(reader, response) == {A0: 1}
    assert len(warmed) == 1


def test_a_fetch_that_waited_for_cold_data_is_answered_too(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = wait(reader, {A0: Part()})
    monkeypatch.setattr(fetch_module, "is_resident", lambda _: False)
    append(engine, A0)

    async def woken() -> FetchResponse:
        while not waits.done():
            await asyncio.sleep(0)
            engine.threads.run()
        response: FetchResponse = waits.result()
        return response

    assert counts(reader, engine.runner.run(woken())) == {A0: 1}


def test_a_disk_that_fails_while_data_is_brought_in_is_a_fault(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise StorageFault("read at 0 failed")

    append(engine, A0)
    monkeypatch.setattr(fetch_module, "is_resident", lambda _: False)
    monkeypatch.setattr(fetch_module, "warm", broken)
    answer = reader.server.handle(reader.request({A0: Part()}), BY_NAME)
    with pytest.raises(ExceptionGroup) as group:
        engine.run(answer)
    assert group.group_contains(StorageFault)


def test_a_read_that_fails_refuses_that_partition(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(engine, A0)

    def broken(*_: object, **__: object) -> None:
        raise StorageFault("read at 0 failed")

    monkeypatch.setattr(type(partition(engine, A0).log), "read", broken)
    assert reader.full({A0: Part()})[A0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert engine.replicas.is_offline


# Rights and versions ---------------------------------------------------------------------------


def request_for(broker: BrokerContext, version: int, **fields: Any) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=ALL)
    if version >= 18:
        wanted.high_watermark = 3  # of a replica in KRaft (KIP-1166)
    name: dict[str, Any] = {"topic": "orders"}
    if version >= 13:
        name = {"topic_id": broker.cluster.image.topics["orders"].id}
    return FetchRequest(
        max_wait_ms=0, max_bytes=ALL, topics=[FetchTopic(**name, partitions=[wanted])], **fields
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_carries_the_records(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=3)
    context = broker.context(1, version)
    response = broker.call(lambda: fetch_module.handle(request_for(broker, version), context))
    assert isinstance(response, FetchResponse)
    (topic,) = response.responses
    (data,) = topic.partitions
    assert (data.error_code, data.high_watermark) == (0, 3)
    (header,) = headers(told_of(data).data)
    assert header.record_count == 3


def test_reading_needs_the_right_to_read(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.append("orders")
    broker.forbid(Operation.READ, ResourceType.TOPIC, "orders")
    for version in (12, 13):
        (topic,) = broker.ask(request_for(broker, version), version).responses
        assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_who_may_not_read_does_not_learn_what_exists(broker: BrokerContext) -> None:
    broker.allow_only()
    request = FetchRequest(
        max_wait_ms=0, topics=[FetchTopic(topic="absent", partitions=[FetchPartition(partition=0)])]
    )
    (topic,) = broker.ask(request, 12).responses
    assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_right_that_is_taken_away_ends_a_session_s_reading(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    request = request_for(broker, 12, session_epoch=0)
    session_id = broker.ask(request, 12).session_id
    broker.append("orders")
    broker.forbid(Operation.READ, ResourceType.TOPIC, "orders")
    again = FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=1)
    (topic,) = broker.ask(again, 12).responses
    assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [12, 17, 18])
def test_only_brokers_may_fetch_as_replicas(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    fields: dict[str, Any] = (
        {"replica_id": 3} if version < 15 else {"replica_state": ReplicaState(replica_id=3)}
    )
    broker.forbid(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    response = broker.ask(request_for(broker, version, **fields), version)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_session_that_is_not_there_is_refused_as_a_whole(broker: BrokerContext) -> None:
    response = broker.ask(FetchRequest(session_id=99, session_epoch=4), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (response.session_id, response.responses) == (0, [])


def test_a_partition_that_failed_is_refused_and_looked_for_again(
    engine: Engine, reader: Reader
) -> None:
    append(engine, A0)
    partition(engine, A0).fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
    reader.begin({A0: Part()})
    for _ in range(2):
        assert reader.go_on({})[A0].error == ErrorCode.KAFKA_STORAGE_ERROR
