"""One transaction, written by several at once, with offsets in it: all or nothing, here and with Apache Kafka."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from penstock.client.admin import create_topic
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.raw_transactions import (
    Fenced,
    OffsetToCommit,
    Session,
    TransactionLost,
    add_partitions,
    begin,
    commit_offsets,
    committed_offsets,
    end,
    produce,
    sign,
)
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.testing import Broker
from tests.conformance.test_sdk_apache_kafka import bootstrap as apache  # noqa: F401 - a fixture
from tests.support.transactions import COMMITTED, CONFLUENT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WRITERS = 3
TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def penstock() -> Iterator[str]:
    with Broker({}, subprocess=True) as started:
        yield started.bootstrap


def batch(session: Session, sequence: int, *values: bytes, codec: Codec = Codec.NONE) -> bytearray:
    """Made by someone who knows of no transaction."""
    records = [Record(n, 1_700_000_000_000, b"k", value) for n, value in enumerate(values)]
    made = build_batch(records, codec=codec)
    sign(made, session, sequence)
    return made


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(WRITERS)]


async def write(bootstrap: str, session: Session, place: TopicPartition, name: bytes) -> list[int]:
    """One of several, with connections of its own; what it sends twice is there once."""
    async with Pool(bootstrap) as pool:
        first = batch(session, 0, name + b"-0", name + b"-1")
        second = batch(session, 2, name + b"-2", codec=Codec.ZSTD)
        sent = (first, first, second, second)
        return [await produce(pool, session, place, bytes(it)) for it in sent]


async def write_all(bootstrap: str, session: Session, topic: str, name: bytes) -> None:
    async with asyncio.TaskGroup() as group:
        for place in places(topic):
            group.create_task(write(bootstrap, session, place, name))


async def one_after_the_other(bootstrap: str, topic: str) -> None:
    """Committed, aborted, taken over, committed by the successor."""
    place = TopicPartition(topic, 0)  # of a topic that the same cluster has
    name = f"tx-{topic}"
    async with Pool(bootstrap) as pool:
        await create_topic(pool, topic, partitions=WRITERS, replication_factor=1)
        first = await begin(pool, name, transaction_timeout_ms=TIMEOUT_MS)
        await add_partitions(pool, first, places(topic))
        await write_all(bootstrap, first, topic, b"a")
        await commit_offsets(pool, first, name, {place: OffsetToCommit(7, "batch 1")})
        for _ in range(2):  # as if the first answer had been lost
            await end(pool, first, committed=True)

        second = await begin(pool, name, transaction_timeout_ms=TIMEOUT_MS)
        assert (second.producer_id, second.epoch) > (first.producer_id, first.epoch)
        await add_partitions(pool, second, places(topic))
        await write_all(bootstrap, second, topic, b"b")
        await commit_offsets(pool, second, name, {place: OffsetToCommit(8, "batch 2")})

        third = await begin(pool, name, transaction_timeout_ms=TIMEOUT_MS)  # aborts it
        await check_shut_out(pool, second, topic)
        assert await committed_offsets(pool, name) == {place: (7, "batch 1")}
        await add_partitions(pool, third, places(topic))
        await write_all(bootstrap, third, topic, b"c")
        await commit_offsets(pool, third, name, {place: OffsetToCommit(9, "batch 3")})
        await end(pool, third, committed=True)
        assert await committed_offsets(pool, name) == {place: (9, "batch 3")}
        with pytest.raises(TransactionLost):
            await end(pool, third, committed=False)


async def check_shut_out(pool: Pool, session: Session, topic: str) -> None:
    place = places(topic)[0]
    with pytest.raises(Fenced):
        await produce(pool, session, place, bytes(batch(session, 3, b"late")))
    with pytest.raises(Fenced):
        await add_partitions(pool, session, [place])
    with pytest.raises(Fenced):
        await commit_offsets(pool, session, session.transactional_id, {place: OffsetToCommit(1)})
    with pytest.raises(Fenced):
        await end(pool, session, committed=True)


def check(bootstrap: str) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    asyncio.run(one_after_the_other(bootstrap, topic))
    seen = [b"a-0", b"a-1", b"a-2", b"c-0", b"c-1", b"c-2"]
    assert CONFLUENT.read_all(bootstrap, topic, WRITERS, COMMITTED) == [seen] * WRITERS


def test_several_write_one_transaction(penstock: str) -> None:
    check(penstock)


@pytest.mark.slow
def test_several_write_one_transaction_of_apache_kafka(apache: str) -> None:  # noqa: F811
    check(apache)


def test_a_partition_that_was_not_added_takes_nothing(penstock: str) -> None:
    async def run() -> None:
        async with Pool(penstock) as pool:
            topic = f"t-{uuid.uuid4().hex[:12]}"
            await create_topic(pool, topic)
            session = await begin(pool, topic, transaction_timeout_ms=TIMEOUT_MS)
            place = TopicPartition(topic, 0)
            with pytest.raises(TransactionLost):
                await produce(pool, session, place, bytes(batch(session, 0, b"v")))
            with pytest.raises(ClientError) as refused:
                await add_partitions(pool, session, [place, TopicPartition("absent", 0)])
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await add_partitions(pool, session, [place])
            await produce(pool, session, place, bytes(batch(session, 0, b"v")))
            with pytest.raises(TransactionLost):
                await produce(pool, session, place, bytes(batch(session, 5, b"a hole")))
            await end(pool, session, committed=False)

    asyncio.run(run())
