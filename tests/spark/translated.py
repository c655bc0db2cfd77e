"""What the tests of `mirror --translate` have in common: a copy that is exact, and groups that go on at the next record."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import confluent_kafka.admin

from penstock.client import admin, groups
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.jobs.mirror.translate.origin import HEADER
from tests.spark.transforms import Read, read_committed
from tests.support.server import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Side(Protocol):
    """A cluster of whatever make."""

    @property
    def bootstrap(self) -> str: ...

    def topics(self) -> dict[str, int]: ...


class Foreign(NamedTuple):
    """One that is not ours."""

    bootstrap: str

    def topics(self) -> dict[str, int]:
        asked: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        listed = asked.list_topics(timeout=PATIENCE_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}


class Kept(NamedTuple):
    """What a copy must have of a record."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def kept(rows: Iterable[Read]) -> list[Kept]:
    return [
        Kept(
            row.partition,
            row.key,
            row.value,
            tuple(header for header in row.headers if header[0] != HEADER),
            row.timestamp_ms,
        )
        for row in rows
    ]


def rows_at(side: Side, topic: str) -> list[Read]:
    return read_committed(side, topic)  # type: ignore[arg-type]  # it asks for no more than this


def origins(rows: Iterable[Read]) -> list[list[bytes | None]]:
    return [[value for key, value in row.headers if key == HEADER] for row in rows]


def assert_exact(source: Side, target: Side, topic: str, copy: str | None = None) -> list[Read]:
    """The rows of the copy: those of the source, in their partitions and order, each with where it came from."""
    wanted, found = rows_at(source, topic), rows_at(target, copy or topic)
    assert kept(found) == kept(wanted)
    for before, after, told in zip(wanted, found, origins(found), strict=True):
        assert told[-1] is not None
        assert told[-1].endswith(f":{topic}:{before.partition}:{before.offset}".encode())
        assert after.partition == before.partition
    return found


# Groups ------------------------------------------------------------------------------------------


def set_groups(side: Side, topic: str, at: dict[str, dict[int, int]]) -> None:
    async def write() -> None:
        async with Pool(side.bootstrap) as pool:
            for name, offsets in at.items():
                places = {TopicPartition(topic, n): offset for n, offset in offsets.items()}
                await groups.set_offsets(pool, name, places)

    asyncio.run(write())


def groups_at(side: Side, topic: str, names: Iterable[str]) -> dict[str, dict[int, int]]:
    async def read() -> dict[str, dict[int, int]]:
        async with Pool(side.bootstrap) as pool:
            found = {name: await groups.committed(pool, name) for name in names}
        return {
            name: {place.partition: at for place, at in places.items() if place.topic == topic}
            for name, places in found.items()
        }

    return asyncio.run(read())


def a_group_for_every_offset(side: Side, topic: str, prefix: str) -> dict[str, dict[int, int]]:
    """Its positions; one group has the same number in all partitions, and no more than there are."""

    async def read() -> dict[int, int]:
        async with Pool(side.bootstrap) as pool:
            places = [TopicPartition(topic, n) for n in range(side.topics()[topic])]
            found = await admin.list_offsets(pool, dict.fromkeys(places, admin.LATEST))
            return {place.partition: at.offset for place, at in found.items()}

    ends = asyncio.run(read())
    at = {
        f"{prefix}-{offset:03}": {n: min(offset, end) for n, end in ends.items()}
        for offset in range(max(ends.values()) + 1)
    }
    set_groups(side, topic, at)
    return at


def assert_groups_go_on(
    source: Side, target: Side, topic: str, at: dict[str, dict[int, int]], copy: str | None = None
) -> None:
    """On the target each reads first what it would have read next on the source: nothing again, nothing left out."""
    wanted, found = rows_at(source, topic), rows_at(target, copy or topic)
    moved = groups_at(target, copy or topic, at)
    for name, places in at.items():
        for partition, offset in places.items():
            there = moved[name][partition]
            assert kept(_from(found, partition, there)) == kept(_from(wanted, partition, offset)), (
                *(name, partition, offset, there),
            )


def _from(rows: Sequence[Read], partition: int, offset: int) -> Iterator[Read]:
    return (row for row in rows if row.partition == partition and row.offset >= offset)


def next_of(side: Side, group: str, topic: str, count: int) -> list[bytes | None]:
    """Values that a consumer of the group gets when it goes on, and nothing comes after them."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": side.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    ends = 0
    while len(found) < count or not ends:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "nothing comes"
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return found
