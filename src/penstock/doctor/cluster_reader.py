"""Gather the facts of a cluster through Kafka's APIs, bounded in requests, bytes and time.

Brokers and partitions are needed. Each other stage may fail or run out of time: then its facts are unknown,
and the report says why.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from penstock import __version__
from penstock.client import admin, features, groups, reassignments, settings
from penstock.client.errors import ClientError
from penstock.client.pool import AnyBroker, Broker, Deadline, Pool
from penstock.client.reassignments import Disk, Members, Places
from penstock.doctor import sampling
from penstock.doctor.cluster_facts import INTERNAL, Behind, ClusterFacts, GroupFacts, KeySample
from penstock.doctor.load_checks import hot_partitions
from penstock.model.errors import CorruptBatch
from penstock.model.ids import TopicPartition
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

MOST_TOPICS: Final = 2_000  # whose settings are read
MOST_SIZES: Final = 20_000  # partitions
MOST_RATES: Final = 5_000  # partitions
MOST_GROUPS: Final = 200
MOST_OFFSETS: Final = 5_000  # partitions that groups read
MOST_UNREAD: Final = 50  # first unread batches
MOST_LARGE: Final = 50  # logs of each broker whose first timestamp is read
MOST_KEYS: Final = 10_000  # messages of a hot partition
MOST_HOT: Final = 3
STAGE_S: Final = 20.0
_REACH_MS: Final = 3_000  # of one broker
_TOPICS_AT_ONCE: Final = 200
_KEYS_BYTES: Final = 1 << 20
_TOPIC_KEYS: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "segment.ms",
    "segment.bytes",
)


async def gather(pool: Pool, *, now_ms: int, seconds: float) -> ClusterFacts:
    """`seconds`: how long the rates of partitions are measured."""
    members = await reassignments.members(pool)
    places = await reassignments.places(pool)
    return await _Gathering(pool, members, places, now_ms).run(seconds)


class _Gathering:
    """One run. Stages fill their facts step by step, so that one that is cut short leaves what it has."""

    def __init__(self, pool: Pool, members: Members, places: Places, now_ms: int) -> None:
        self._pool = pool
        self._members = members
        self._places = places
        self._now_ms = now_ms
        self._unreachable: dict[int, str] = {}
        self._topics: dict[str, settings.Settings] = {}
        self._brokers: dict[int, settings.Settings] = {}
        self._disks: dict[int, Disk] = {}
        self._features: features.Features | None = None
        self._first: dict[TopicPartition, int] = {}
        self._rates: dict[TopicPartition, float] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._keys: dict[TopicPartition, KeySample] = {}
        self._groups: list[GroupFacts] = []
        self._committed: dict[str, dict[TopicPartition, int]] = {}
        self._unknown: list[str] = []

    async def run(self, seconds: float) -> ClusterFacts:
        await self._stage("reach of brokers", self._reach_brokers)
        await self._stage("settings of topics", self._read_topics)
        await self._stage("settings of brokers", self._read_brokers)
        await self._stage("levels of features", self._read_features)
        await self._stage("sizes of logs", self._read_disks)
        await self._stage("ages of logs", self._read_first_timestamps)
        await self._stage("rates of partitions", lambda: self._measure_rates(seconds))
        await self._stage("keys of hot partitions", self._sample_keys)
        await self._stage("groups", self._read_groups)
        await self._stage("lag of groups", self._read_lags)
        return ClusterFacts(
            self._members,
            self._places,
            self._now_ms,
            unreachable=self._unreachable,
            topics=self._topics,
            brokers=self._brokers,
            disks=self._disks,
            first_timestamps_ms=self._first,
            features=self._features,
            rates=self._rates,
            keys=self._keys,
            groups=tuple(self._groups),
            unknown=tuple(self._unknown),
        )

    async def _stage(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            async with asyncio.timeout(STAGE_S):
                await work()
        except TimeoutError:
            self._unknown.append(f"{name}: not all of it within {STAGE_S:.0f} s")
        except (ClientError, CorruptBatch) as error:
            self._unknown.append(f"{name}: {error}")

    def _sampled(self, what: str, items: Sequence[Any], most: int) -> list[Any]:
        if len(items) > most:
            self._unknown.append(f"{what}: a sample of {most:,} of {len(items):,}")
        return sampling.evenly(items, most)

    @property
    def _reachable(self) -> list[int]:
        running = [node.id for node in self._members.running]
        return [broker_id for broker_id in running if broker_id not in self._unreachable]

    @property
    def _led(self) -> list[TopicPartition]:
        """Partitions whose leader can be asked."""
        reachable = frozenset(self._reachable)
        return [at for at, place in self._places.items() if place.leader in reachable]

    # Settings and versions -----------------------------------------------------------------------

    async def _read_topics(self) -> None:
        """Topics with replicas out of sync come first: min.insync.replicas says how bad that is."""
        names = sorted({at.topic for at in self._places})
        lacking = {
            at.topic for at, place in self._places.items() if len(place.isr) < len(place.original)
        }
        first = [name for name in names if name in lacking or name in INTERNAL]
        others = [name for name in names if name not in lacking and name not in INTERNAL]
        wanted = self._sampled("settings of topics out of sync", first, MOST_TOPICS)
        wanted += self._sampled("settings of topics", others, MOST_TOPICS)
        for start in range(0, len(wanted), _TOPICS_AT_ONCE):
            asked = [(settings.TOPIC, name) for name in wanted[start : start + _TOPICS_AT_ONCE]]
            found = await settings.describe(self._pool, AnyBroker(), asked, _TOPIC_KEYS)
            self._topics.update({name: values for (_, name), values in found.items()})

    async def _reach_brokers(self) -> None:
        request = ApiVersionsRequest(
            client_software_name="penstock", client_software_version=__version__
        )
        for node in self._members.running:
            try:
                await self._pool.once(
                    Broker(node.id), request, ApiVersionsResponse, Deadline(_REACH_MS)
                )
            except ClientError as error:
                self._unreachable[node.id] = error.message

    async def _read_brokers(self) -> None:
        for broker_id in self._reachable:
            resource = settings.BROKER, str(broker_id)
            found = await settings.describe(self._pool, Broker(broker_id), [resource], None)
            self._brokers[broker_id] = found.get(resource, {})

    async def _read_features(self) -> None:
        if self._unreachable:
            self._unknown.append("levels of features: not every broker answers")
            return
        self._features = await features.describe(self._pool)

    # Disks and rates -----------------------------------------------------------------------------

    async def _read_disks(self) -> None:
        running = self._reachable
        every = list(self._places)
        asked = (
            None if len(every) <= MOST_SIZES else self._sampled("sizes of logs", every, MOST_SIZES)
        )
        self._disks = await reassignments.disks(self._pool, running, asked)
        silent = sorted(set(running) - self._disks.keys())
        if silent:
            self._unknown.append(f"sizes of logs: no answer from {len(silent)} brokers")

    async def _read_first_timestamps(self) -> None:
        """Of the largest logs of each broker: they decide whether retention fits."""
        led = set(self._led)
        wanted: dict[TopicPartition, int] = {}
        for disk in self._disks.values():
            sizes = disk.sizes_bytes
            largest = sorted((at for at in sizes if at in led), key=lambda at: -sizes[at])
            wanted.update(dict.fromkeys(largest[:MOST_LARGE], 0))
        if wanted:
            found = await admin.list_offsets(self._pool, wanted)
            self._first = {
                at: row.timestamp_ms for at, row in found.items() if row.timestamp_ms > 0
            }

    async def _measure_rates(self, seconds: float) -> None:
        """The growth of end offsets, of topics with several partitions."""
        if not seconds:
            return
        led = self._led
        several = {at.topic for at in led if at.partition > 0} - INTERNAL
        candidates = [at for at in led if at.topic in several]
        wanted = self._sampled("rates of partitions", candidates, MOST_RATES)
        if not wanted:
            return
        clock_s = asyncio.get_running_loop().time
        asked = dict.fromkeys(wanted, admin.LATEST)
        begun_s, before = clock_s(), await admin.list_offsets(self._pool, asked)
        await asyncio.sleep(seconds)
        ended_s, after = clock_s(), await admin.list_offsets(self._pool, asked)
        for at in wanted:
            self._rates[at] = (after[at].offset - before[at].offset) / (ended_s - begun_s)
            self._ends[at] = after[at].offset

    async def _sample_keys(self) -> None:
        for at, _ in hot_partitions(self._rates)[:MOST_HOT]:
            [(_, start)] = (await admin.list_offsets(self._pool, {at: admin.EARLIEST})).items()
            offset = max(start.offset, self._ends[at] - MOST_KEYS)
            batches = await sampling.fetch(self._pool, at, offset, _KEYS_BYTES)
            self._keys[at] = sampling.count_keys(batches, MOST_KEYS)

    # Groups --------------------------------------------------------------------------------------

    async def _read_groups(self) -> None:
        listed = [
            group
            for group in await groups.list_groups(self._pool)
            if group.protocol in ("consumer", "")
        ]
        led = frozenset(self._led)
        failed: dict[str, str] = {}
        for group in self._sampled("groups", listed, MOST_GROUPS):
            try:
                await self._read_group(group, led)
            except ClientError as error:  # deleted meanwhile, or its coordinator does not answer
                failed[group.name] = error.message
        if failed:
            name, reason = next(iter(failed.items()))
            self._unknown.append(f"groups: {len(failed)} of {len(listed)} ({name}: {reason})")

    async def _read_group(self, group: groups.Listed, led: frozenset[TopicPartition]) -> None:
        committed = await groups.committed(self._pool, group.name)
        members, idle = 0, 0
        if group.state not in ("Empty", "Dead"):
            described = await groups.describe_group(self._pool, group.name)
            members = len(described.members)
            is_stable = described.state == "Stable"
            idle = sum(not member.partitions for member in described.members) * is_stable
        self._committed[group.name] = {
            at: offset for at, offset in committed.items() if offset >= 0 and at in led
        }
        self._groups.append(GroupFacts(group.name, group.state, members, idle))

    async def _read_lags(self) -> None:
        read = sorted({at for committed in self._committed.values() for at in committed})
        wanted = self._sampled("lag of groups", read, MOST_OFFSETS)
        if not wanted:
            return
        starts = await admin.list_offsets(self._pool, dict.fromkeys(wanted, admin.EARLIEST))
        ends = await admin.list_offsets(self._pool, dict.fromkeys(wanted, admin.LATEST))
        for index, group in enumerate(self._groups):
            behind = [
                Behind(at, offset, starts[at].offset, ends[at].offset)
                for at, offset in self._committed[group.name].items()
                if at in ends and offset < ends[at].offset
            ]
            self._groups[index] = group._replace(behind=tuple(behind))
        await self._read_ages()

    async def _read_ages(self) -> None:
        """When the first unread messages were written, for those furthest behind."""
        rows = {
            (row.partition, max(row.committed, row.start)): row.lag
            for group in self._groups
            for row in group.behind
            if row.lag
        }
        wanted = sorted(rows, key=lambda key: (-rows[key], key))
        ages: dict[tuple[TopicPartition, int], int | None] = {}
        try:
            for at, offset in wanted[:MOST_UNREAD]:
                with suppress(ClientError, CorruptBatch):  # deleted meanwhile: the age is unknown
                    batches = await sampling.fetch(self._pool, at, offset, 1)
                    ages[at, offset] = sampling.newest_of_first_batch(batches)
        finally:
            for index, group in enumerate(self._groups):
                behind = [
                    row._replace(
                        unread_since_ms=ages.get((row.partition, max(row.committed, row.start)))
                    )
                    for row in group.behind
                ]
                self._groups[index] = group._replace(behind=tuple(behind))
