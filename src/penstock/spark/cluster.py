"""Blocking questions about a cluster: which partitions there are and who leads them, where they begin and end.

The answers come from the client's pool, on an event loop that runs only while a question is asked.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from penstock.client import admin, groups
from penstock.client.connection import Address
from penstock.client.errors import ClientError, check
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import NO_TOPIC_ID, TopicPartition
from penstock.spark.offsets import Offsets
from penstock.spark.options import Assign, Fetching, Pattern, Subscribe, Subscription
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

T = TypeVar("T")

_PUBLISH_S: Final = 5.0  # progress that cannot be told must not hold up the query
_LONGEST_PAUSE_MS: Final = 1_000


class Location(NamedTuple):
    """Where to ask for a partition; it may have moved by the time one does."""

    leader: Address | None
    topic_id: bytes  # NO_TOPIC_ID: the brokers have none


class Cluster:
    """Connects when it is first asked. Not thread-safe; closed by whoever made it."""

    def __init__(self, how: Fetching) -> None:
        self._how = how
        self._runner: asyncio.Runner | None = None
        self._pool: Pool | None = None
        self._has_answered = False

    def close(self) -> None:
        if self._runner is not None:
            if self._pool is not None:
                self._runner.run(self._pool.close())
            self._runner.close()
        self._runner = self._pool = None

    def partitions(
        self, subscription: Subscription, *, but_for: Iterable[str] = ()
    ) -> dict[TopicPartition, Location]:
        """All that are to be read. A topic that does not exist is an error, except those `but_for`."""
        match subscription:
            case Assign(wanted):
                found = self._located({p.topic for p in wanted}, set(but_for))
                for partition in wanted:
                    if partition not in found and partition.topic not in but_for:
                        raise _no_partition(partition)
                return {partition: found[partition] for partition in wanted if partition in found}
            case Subscribe(topics):
                return self._located(topics, set(but_for))
            case Pattern(pattern):
                return self._matching(re.compile(pattern))

    def locate(self, partition: TopicPartition) -> Location | None:
        """None if it does not exist."""
        return self._located([partition.topic], {partition.topic}).get(partition)

    def address_of(self, broker: int) -> Address | None:
        """None if the cluster has no such broker at the moment."""
        answer = self._ask(lambda pool: pool.metadata([]))
        return _addresses(answer).get(broker)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._offsets(dict.fromkeys(partitions, admin.EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """One past the last record; under read_committed the last that is decided."""
        return self._offsets(dict.fromkeys(partitions, admin.LATEST))

    def at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        """The first record that is as young; -1 where none is."""
        return self._offsets(timestamps_ms)

    def publish(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Makes them the offsets of a group that has no members."""

        async def question(pool: Pool) -> None:
            try:
                async with asyncio.timeout(_PUBLISH_S):
                    await groups.set_offsets(pool, group, offsets)
            except TimeoutError:
                raise ClientError(
                    f"no answer in {_PUBLISH_S:.0f} s", ErrorCode.REQUEST_TIMED_OUT
                ) from None

        self._once(question)

    def _offsets(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        if not timestamps_ms:
            return {}
        read_committed = self._how.read_committed
        found = self._ask(
            lambda pool: admin.list_offsets(pool, timestamps_ms, read_committed=read_committed)
        )
        return {partition: at.offset for partition, at in found.items()}

    def _located(self, topics: Iterable[str], may_lack: set[str]) -> dict[TopicPartition, Location]:
        names = sorted(topics)
        answer = self._ask(lambda pool: pool.metadata(names))
        return _locations(answer, [t for t in answer.topics if _exists(t, may_lack)])

    def _matching(self, pattern: re.Pattern[str]) -> dict[TopicPartition, Location]:
        answer = self._ask(lambda pool: pool.metadata(None))
        matching = [
            topic
            for topic in answer.topics
            if topic.name and not topic.is_internal and pattern.search(topic.name)
        ]
        return _locations(answer, matching)

    def _ask(self, question: Callable[[Pool], Awaitable[T]]) -> T:
        """Again after a failure: a few times at first, later for as long as a broker may take to return."""
        deadline_s = time.monotonic() + self._how.api_timeout_ms / 1000
        attempt, pause_ms = 1, self._how.offset_pause_ms
        while True:
            try:
                answer = self._once(question)
            except ClientError as error:
                is_patient = self._has_answered and error.code is ErrorCode.BROKER_NOT_AVAILABLE
                if not (is_patient or attempt < self._how.offset_attempts):
                    raise
                if time.monotonic() + pause_ms / 1000 > deadline_s:
                    raise
            else:
                self._has_answered = True
                return answer
            time.sleep(pause_ms / 1000)
            attempt, pause_ms = attempt + 1, min(max(1, pause_ms * 2), _LONGEST_PAUSE_MS)

    def _once(self, question: Callable[[Pool], Awaitable[T]]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def ask() -> T:
            if self._pool is None:
                try:
                    self._pool = Pool(
                        self._how.bootstrap,
                        client_id=self._how.client_id,
                        timeout_ms=self._how.request_timeout_ms,
                    )
                except ValueError as error:
                    message = f"option kafka.bootstrap.servers: {error}"
                    raise ClientError(message, ErrorCode.INVALID_CONFIG) from None
            return await question(self._pool)

        return self._runner.run(ask())


def _exists(topic: MetadataResponseTopic, may_lack: set[str]) -> bool:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if topic.name in may_lack:
            return False
        raise ClientError(
            f"topic {topic.name!r} does not exist; create it with: penstock topic create {topic.name}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    check(topic.error_code, None, f"topic {topic.name!r}")
    return True


def _no_partition(partition: TopicPartition) -> ClientError:
    return ClientError(
        f"topic {partition.topic!r} has no partition {partition.partition}, which assign names",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _locations(
    answer: MetadataResponse, topics: Iterable[MetadataResponseTopic]
) -> dict[TopicPartition, Location]:
    brokers = _addresses(answer)
    return {
        TopicPartition(topic.name or "", partition.partition_index): Location(
            brokers.get(partition.leader_id), topic.topic_id or NO_TOPIC_ID
        )
        for topic in topics
        for partition in topic.partitions
    }


def _addresses(answer: MetadataResponse) -> dict[int, Address]:
    return {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
