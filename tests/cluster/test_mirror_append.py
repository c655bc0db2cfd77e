"""A mirror with real brokers: the rows of its source, whoever dies meanwhile; promoted, a topic of its own."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import confluent_kafka
import pytest

from penstock.client.admin import alter_topic_configs, delete_records
from penstock.client.mirroring import NotAMirror, append, promote, supports_mirrors
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.records.batch import BatchHeader, parse_header, split_batches
from penstock.records.control import decode_promotion
from tests.support.cluster import ClusterOfServers
from tests.support.mirrors import Row, batches_from, committed_rows, copy_rest, write_transactions
from tests.support.server import Server, until
from tests.support.transactions import CONFLUENT
from tests.support.variants import first_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

T = TypeVar("T")

ORIGIN = TopicPartition("orders", 0)
COPY = TopicPartition("copy", 0)
TRANSACTIONS = 150
START = 50  # of the source's log; it may lie inside a batch
_EPOCH = slice(12, 16)  # of the leader, in a batch


@pytest.fixture
def source(tmp_path: Path, rng: Random) -> Iterator[Server]:
    """Compacted, with its beginning deleted, and one transaction open."""
    home = tmp_path / "source"
    home.mkdir()
    with Server(home, {"log.cleaner.backoff.ms": 50}) as started:
        started.create_topic(
            ORIGIN.topic,
            cleanup_policy="compact,delete",
            segment_bytes=8192,
            min_cleanable_dirty_ratio=0.01,
            retention_ms=-1,
        )
        left_open = write_transactions(started, ORIGIN.topic, rng, TRANSACTIONS)
        until(lambda: has_gaps(stored(started, 0)), "it is compacted")
        asyncio.run(settle(started))
        until(lambda: stored(started) == stored(started), "compaction is at rest")
        yield started
        left_open.disconnect()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(tmp_path / "target", 3) as started:
        yield started


def stored(server: Server, offset: int = START) -> list[tuple[BatchHeader, bytes]]:
    async def read() -> list[tuple[BatchHeader, bytes]]:
        async with Pool(server.bootstrap) as pool:
            return [found async for found in batches_from(pool, ORIGIN, offset)]

    return asyncio.run(read())


def has_gaps(batches: list[tuple[BatchHeader, bytes]]) -> bool:
    ends = [0, *(header.next_offset for header, _ in batches)]
    return any(header.base_offset > end for (header, _), end in zip(batches, ends, strict=False))


async def settle(server: Server) -> None:
    """From now on it is what it is: no more compaction. Its beginning goes."""
    async with Pool(server.bootstrap) as pool:
        await alter_topic_configs(pool, ORIGIN.topic, set_to={"cleanup.policy": "delete"})
        await delete_records(pool, {ORIGIN: START})


async def kill_while(
    cluster: ClusterOfServers, victim: int, work: Coroutine[Any, Any, T], *, back: bool
) -> T:
    """The broker dies while `work` is under way, which ends well all the same."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        await asyncio.sleep(0)
        await asyncio.to_thread(cluster.kill, victim)
        if back:
            await asyncio.to_thread(cluster.start, victim)
    return task.result()


@pytest.mark.parametrize("replicas", first_of([3, 1]))
def test_a_mirror_is_its_source_and_becomes_a_topic_of_its_own(
    source: Server, target: ClusterOfServers, replicas: int
) -> None:
    target.create_topic(COPY.topic, replicas=replicas, penstock_mirror_source="east")
    expected = committed_rows(source.bootstrap, ORIGIN.topic)
    assert len(expected) > 20

    asyncio.run(copy_with_a_death(source, target, alone=replicas == 1))

    assert copied_rows(target) == expected
    target.start_all()
    target.wait_healthy()
    target.check_replicas_agree(COPY.topic)
    check_same_batches(source, target)

    asyncio.run(promote_with_a_death(target, alone=replicas == 1))

    assert copied_rows(target) == expected, "what was open is aborted"
    write_as_client(target)
    added = copied_rows(target)[len(expected) :]
    assert [row.value for row in added] == [b"plain", b"committed"]
    target.start_all()
    target.wait_healthy()
    target.check_replicas_agree(COPY.topic)
    until(
        lambda: any(server.has_ever_said("topic-promoted") for server in target.servers.values()),
        "the controller notes the end",  # who did so may have been killed right after
    )
    assert len(promotions(target)) == 1


async def copy_with_a_death(source: Server, target: ClusterOfServers, *, alone: bool) -> None:
    """The leader is killed while the rest is being copied."""
    async with Pool(source.bootstrap) as origin, Pool(target.bootstrap, timeout_ms=60_000) as copy:
        assert await supports_mirrors(copy)
        count = 0
        async for _, batch in batches_from(origin, ORIGIN, START):
            await append(copy, COPY, batch, continues_at=0)
            count += 1
            if count == 10:
                break
        leader = await asyncio.to_thread(target.leader_of, *COPY)
        rest = copy_rest(origin, copy, ORIGIN, COPY)
        end = await kill_while(target, leader, rest, back=alone)
        assert await copy_rest(origin, copy, ORIGIN, COPY) == end, "there is no more"


async def promote_with_a_death(target: ClusterOfServers, *, alone: bool) -> None:
    async with Pool(target.bootstrap, timeout_ms=60_000) as pool:
        leader = await asyncio.to_thread(target.leader_of, *COPY)
        await kill_while(target, leader, promote(pool, COPY.topic), back=alone)
        with pytest.raises(NotAMirror):
            await append(pool, COPY, bytes(100), continues_at=0)


def copied_rows(target: ClusterOfServers) -> list[Row]:
    rows = committed_rows(target.bootstrap, COPY.topic)
    return [row for row in rows if row.offset >= START]


def check_same_batches(source: Server, target: ClusterOfServers) -> None:
    """Byte for byte, but for the epoch of the leader."""
    theirs = {header.base_offset: batch for header, batch in stored(source)}
    copied = target.batches(target.leader_of(*COPY), COPY.topic)
    assert copied
    bare = {offset: _bare(batch) for offset, batch in theirs.items()}
    assert {header.base_offset: _bare(batch) for header, batch in copied} == bare
    assert copied[-1][0].next_offset == max(parse_header(it).next_offset for it in theirs.values())


def _bare(batch: bytes) -> bytes:
    return batch[: _EPOCH.start] + batch[_EPOCH.stop :]


def promotions(target: ClusterOfServers) -> list[object]:
    batches = target.batches(target.leader_of(*COPY), COPY.topic)
    found = [decode_promotion(batch, header) for header, batch in batches if header.is_control]
    return [it for it in found if it is not None]


def write_as_client(target: ClusterOfServers) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": target.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    producer.produce(COPY.topic, b"plain", b"k", partition=0)
    assert producer.flush(60) == 0
    transactional = CONFLUENT.producer(target.bootstrap, "of-the-target")
    transactional.initialize()
    for value, ended in ((b"aborted", False), (b"committed", True)):
        transactional.begin()
        transactional.send(COPY.topic, 0, value)
        if ended:
            transactional.commit()
        else:
            transactional.abort()
    transactional.close()


@pytest.mark.parametrize("rounds", first_of([2, 8]), ids=["few", "many"])
def test_a_promotion_is_seen_through_whenever_the_broker_is_killed(
    tmp_path: Path, source: Server, rng: Random, rounds: int
) -> None:
    """Replication factor 1: kill the broker during the promotion, and again while it resumes."""
    (tmp_path / "single").mkdir()
    with Server(tmp_path / "single") as server:
        for number in range(rounds):
            server.create_topic(f"copy-{number}", penstock_mirror_source="east")
            pauses_s = [rng.uniform(0, 0.1) for _ in range(2)]
            end = asyncio.run(promote_and_die(source, server, f"copy-{number}", pauses_s))
            rows = committed_rows(server.bootstrap, f"copy-{number}")
            assert [row for row in rows if row.offset >= START] == committed_rows(
                source.bootstrap, ORIGIN.topic
            )
            control = [
                decode_promotion(bytes(batch), header)
                for path in server.segments(f"copy-{number}")
                for header, batch in split_batches(memoryview(path.read_bytes()))
                if header.base_offset >= end
            ]
            assert control[0] is None, "the open transaction is aborted first"
            assert len([it for it in control if it is not None]) == 1, "and that once"


async def promote_and_die(source: Server, server: Server, topic: str, pauses_s: list[float]) -> int:
    """The end of the mirror."""
    async with Pool(source.bootstrap) as origin, Pool(server.bootstrap, timeout_ms=60_000) as pool:
        end = await copy_rest(origin, pool, ORIGIN, TopicPartition(topic, 0))
        async with asyncio.TaskGroup() as group:
            group.create_task(promote(pool, topic))
            for pause_s in pauses_s:
                await asyncio.sleep(pause_s)
                await asyncio.to_thread(server.crash)
        await promote(pool, topic)  # nothing more happens
        return end
