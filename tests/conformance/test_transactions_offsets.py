"""Consume, transform, produce: the offsets of what was read are committed with what was made of it, or not at all."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.support.ports import kept_addresses
from tests.support.raw_client import RawClient
from tests.support.transactions import (
    COMMITTED,
    CONFLUENT,
    LIBRARIES,
    ConfluentReader,
    Library,
    Transactional,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
INPUT = [b"%d" % number for number in range(10)]


@pytest.fixture
def name(broker: Broker) -> str:
    """Of the input; the output has -out behind it."""
    made = f"eos-{uuid.uuid4().hex[:10]}"
    for topic in (made, f"{made}-out"):
        broker.create_topic(topic, partitions=1)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for value in INPUT:
        producer.produce(made, value, partition=0)
    assert producer.flush(60) == 0
    return made


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def started(library: Library, broker: Broker, name: str) -> Transactional:
    producer = library.producer(broker.bootstrap, f"tx-{name}")
    producer.initialize()
    return producer


def output(broker: Broker, name: str) -> list[bytes]:
    return CONFLUENT.read_all(broker.bootstrap, f"{name}-out", 1, COMMITTED)[0]


@each_library
def test_an_aborted_turn_is_read_again_and_a_committed_one_is_not(
    broker: Broker, name: str, library: Library
) -> None:
    with closing(started(library, broker, name)) as producer:
        for turn, (count, commits) in enumerate([(4, False), (3, True), (7, False), (7, True)]):
            with closing(library.reader(broker.bootstrap, name, f"g-{name}")) as reader:
                producer.begin()
                values = reader.read(count)
                for value in values:
                    producer.send(f"{name}-out", 0, b"%d:" % turn + value)
                before = reader.committed(name, 0)
                producer.send_offsets(reader)
                (producer.commit if commits else producer.abort)()
                after = reader.committed(name, 0)
                assert after == (before or 0) + count if commits else after == before

    expected = [b"1:" + value for value in INPUT[:3]] + [b"3:" + value for value in INPUT[3:]]
    assert output(broker, name) == expected


def test_offsets_of_an_open_transaction_are_unstable_and_not_told(
    broker: Broker, name: str, raw: RawClient
) -> None:
    group = f"g-{name}"

    def fetch(*, stable: bool) -> tuple[int, int]:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequestTopics(name=name, partition_indexes=[0])],
                )
            ],
            require_stable=stable,
        )
        answer = raw.ask(request, OffsetFetchResponse, 8)
        (partition,) = answer.groups[0].topics[0].partitions
        return partition.error_code, partition.committed_offset

    with (
        closing(started(CONFLUENT, broker, name)) as producer,
        closing(CONFLUENT.reader(broker.bootstrap, name, group)) as reader,
    ):
        producer.begin()
        reader.read(4)
        producer.send_offsets(reader)
        assert fetch(stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert fetch(stable=False) == (ErrorCode.NONE, -1)
        producer.commit()
        assert fetch(stable=True) == fetch(stable=False) == (ErrorCode.NONE, 4)


def test_a_member_that_was_replaced_cannot_commit_its_offsets(broker: Broker, name: str) -> None:
    """KIP-447: the group's generation fences it, whatever its transactional id."""
    group = f"g-{name}"
    stale = ConfluentReader(broker.bootstrap, name, group)
    try:
        assert stale.read(4) == INPUT[:4]
        metadata, positions = stale.consumer.consumer_group_metadata(), stale.positions()
    finally:
        stale.close()  # it leaves, so that the next one has the partition
    with (
        closing(CONFLUENT.reader(broker.bootstrap, name, group)) as successor,
        closing(started(CONFLUENT, broker, name)) as producer,
    ):
        assert successor.read(1) == INPUT[:1]
        producer.begin()
        producer.send(f"{name}-out", 0, b"twice")
        raw_producer: Any = producer._producer  # type: ignore[attr-defined] # only here it is needed
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            raw_producer.send_offsets_to_transaction(positions, metadata, 60)
        assert refused.value.args[0].code() in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        )
        assert refused.value.args[0].txn_requires_abort()
        producer.abort()
        assert successor.committed(name, 0) is None
    assert output(broker, name) == []


def test_offsets_survive_a_restart_with_the_transaction_that_committed_them() -> None:
    with Broker(kept_addresses(), subprocess=True) as broker:
        broker.create_topic("in", partitions=1)
        for commits in (True, False):
            with (
                closing(started(CONFLUENT, broker, str(commits))) as producer,
                closing(CONFLUENT.reader(broker.bootstrap, "in", "g")) as reader,
            ):
                producer.begin()
                producer.send("in", 0, b"x")
                producer.commit()
                producer.begin()
                reader.read(1)
                producer.send_offsets(reader)
                (producer.commit if commits else producer.abort)()
        broker.stop()
        broker.start()
        with closing(CONFLUENT.reader(broker.bootstrap, "in", "g")) as reader:
            assert reader.committed("in", 0) == 1, "the first message, and not its marker"
            assert reader.read(1) == [b"x"]
