"""What a job must know of a cluster before Spark starts: which it is, and the offsets between which to read.

Asked once: whatever a job reads twice, or after a crash, lies between the same offsets.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.errors import BadOption

T = TypeVar("T")
_CLIENT_ID: Final = "penstock-pipeline"


class Ranges(NamedTuple):
    """From `first` up to, and without, `after`."""

    cluster_id: str
    first: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]

    @property
    def offsets(self) -> int:
        """At least as many as there are records: compaction and transactions leave gaps."""
        return sum(max(0, self.after[place] - first) for place, first in self.first.items())

    @property
    def readable_first(self) -> dict[TopicPartition, int]:
        """As `first`, which a time may have put within an open transaction: nothing can be read from there yet."""
        return {place: min(first, self.after[place]) for place, first in self.first.items()}

    def source_options(self, bootstrap: str) -> dict[str, str]:
        """Of `format("penstock")`, to read just this."""
        assigned: dict[str, list[int]] = {}
        for topic, partition in sorted(self.first):
            assigned.setdefault(topic, []).append(partition)
        return {
            "kafka.bootstrap.servers": bootstrap,
            "assign": json.dumps(assigned),
            "startingOffsets": offsets_json(self.first),
            "endingOffsets": offsets_json(self.after),
        }


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """`{"topic": {"0": 17}}`, as Spark writes offsets."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic)


def ask(bootstrap: str, question: Callable[[Pool], Awaitable[T]]) -> T:
    """Blocks until the cluster has answered; ClientError says why it did not."""

    async def run() -> T:
        async with _pool(bootstrap) as pool:
            return await question(pool)

    return asyncio.run(run())


def _pool(bootstrap: str) -> Pool:
    try:
        return Pool(bootstrap, client_id=_CLIENT_ID)
    except ValueError as error:
        raise BadOption(f"--bootstrap: {error}") from None


def find_ranges(
    bootstrap: str,
    topics: Sequence[str],
    *,
    since_ms: int | None = None,
    read_committed: bool = False,
) -> Ranges:
    """All that the topics hold; raises for a topic that does not exist.

    `since_ms`: from the first record that is as young; older ones may follow it, and no younger one is before it.
    `read_committed`: nothing from the first open transaction on.
    """

    async def question(pool: Pool) -> Ranges:
        found = await admin.describe_topics(pool, topics)
        places = [
            TopicPartition(topic.name or "", partition.partition_index)
            for topic in found
            for partition in topic.partitions
        ]
        latest = await _offsets(pool, places, admin.LATEST, read_committed=read_committed)
        first = await _offsets(pool, places, admin.EARLIEST if since_ms is None else since_ms)
        cluster = await pool.metadata([])
        return Ranges(
            cluster.cluster_id or "",
            {place: _or_end(first[place], latest[place]) for place in places},
            {place: latest[place] for place in places},
        )

    return ask(bootstrap, question)


async def _offsets(
    pool: Pool,
    places: Sequence[TopicPartition],
    timestamp_ms: int,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(places, timestamp_ms)
    answer = await admin.list_offsets(pool, wanted, read_committed=read_committed)
    return {place: at.offset for place, at in answer.items()}


def _or_end(offset: int, end: int) -> int:
    """No record is that young: there is nothing from there on."""
    return end if offset < 0 else offset
