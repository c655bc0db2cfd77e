"""What the tests of `mirror` have in common: two clusters, the job in a session that is there, and how their logs compare."""

import asyncio
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.job import Summary
from penstock.spark.jobs.mirror.job import JOB
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.progress import Progress
from tests.spark.topics import KEEPS_ALL
from tests.support.mirrors import batches_from
from tests.support.server import PATIENCE_S, Server

_EPOCH = slice(12, 16)  # of the leader: each cluster has its own


@contextmanager
def two_clusters(home: Path) -> Iterator[tuple[Server, Server]]:
    for name in ("east", "west"):
        (home / name).mkdir()
    with Server(home / "east", KEEPS_ALL) as east, Server(home / "west", KEEPS_ALL) as west:
        yield east, west


def mirror(spark: Any, source: Server, target: Server, *what: str, **options: Any) -> Summary:
    """One run of the job, in a session that is there already."""
    chosen = MirrorOptions(
        bootstrap=source.bootstrap, target=target.bootstrap, what=what, **options
    )
    JOB.plan(chosen)
    return JOB.run(spark, chosen, Progress(io.StringIO()))


def stored(server: Server, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """Every batch, by its offset, without what is each cluster's own."""

    async def read() -> list[tuple[int, bytes]]:
        place = TopicPartition(topic, partition)
        async with Pool(server.bootstrap) as pool:
            first = await admin.list_offsets(pool, {place: admin.EARLIEST})
            found = []
            async for header, batch in batches_from(pool, place, first[place].offset):
                masked = bytearray(batch)
                masked[_EPOCH] = bytes(4)
                found.append((header.base_offset, bytes(masked)))
            return found

    return asyncio.run(read())


def settings(server: Server, topic: str) -> dict[str, str | None]:
    async def read() -> dict[str, str | None]:
        async with Pool(server.bootstrap) as pool:
            rows = await admin.topic_configs(pool, topic)
            return {row.name: row.value for row in rows if row.is_overridden}

    return asyncio.run(read())


def change_settings(
    server: Server, topic: str, set_to: dict[str, str], reset: Sequence[str] = ()
) -> None:
    async def change() -> None:
        async with Pool(server.bootstrap) as pool:
            await admin.alter_topic_configs(pool, topic, set_to=set_to, reset=reset)

    asyncio.run(change())


def grow(server: Server, topic: str, partitions: int) -> None:
    """Returns when all of them can be written to."""

    async def change() -> None:
        async with Pool(server.bootstrap) as pool:
            await admin.grow_topic(pool, topic, partitions)
            await admin.ensure_topic(pool, topic, create=False)

    asyncio.run(change())


def commit(server: Server, group: str, topic: str, *offsets: int) -> None:
    """As a consumer of the group that left."""
    consumer = _consumer(server, group)
    places = [
        confluent_kafka.TopicPartition(topic, n, offset, metadata=f"at {offset}")
        for n, offset in enumerate(offsets)
    ]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(server: Server, group: str, topic: str, partitions: int = 1) -> list[tuple[int, str]]:
    consumer = _consumer(server, group)
    places = [confluent_kafka.TopicPartition(topic, n) for n in range(partitions)]
    found = consumer.committed(places, PATIENCE_S)
    consumer.close()
    return [(at.offset, at.metadata or "") for at in found]


def _consumer(server: Server, group: str) -> Any:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": group, "log_level": 0}
    )
