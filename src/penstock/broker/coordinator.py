"""The groups that this broker coordinates: one shard for each partition of __consumer_offsets that it leads.

A shard is usable when all of its log has been read. What cannot be understood there stops it, and says so.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import iter_unpack
from typing import Final, TypeVar

from penstock.broker import group_log
from penstock.broker.cluster import Cluster, Spawn
from penstock.broker.group_shard import Answer, Asked, GroupShard
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partition import Partition
from penstock.broker.replicas import Replicas
from penstock.groups.events import Effect, Event, Reply
from penstock.groups.listing import type_of
from penstock.groups.machine import Group
from penstock.groups.records import UnknownRecord
from penstock.groups.replay import Replay
from penstock.groups.shard import Shard
from penstock.groups.state import Ground, Rules
from penstock.groups.topics import Topics
from penstock.metadata.controller import TopicSpec
from penstock.metadata.image import Delta, TopicImage
from penstock.model.clock import Clock
from penstock.model.configs import BrokerConfig
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.wire.messages.delete_groups import DeletableGroupResult
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.schema import Struct

_log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
Response = TypeVar("Response", bound=Struct)

MAX_GROUP_ID_BYTES: Final = 32_767  # what a record's key can hold
_SWEEP_SLICE: Final = 100  # groups that are swept between two chances for others
_RELOAD_DELAY_S: Final = 0.1


def java_hash(text: str) -> int:
    """String.hashCode of Java: every client and tool finds a group's partition by it."""
    value = 0
    for (unit,) in iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = 31 * value + unit & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=1 << 16)
def partition_for(group_id: str, count: int) -> int:
    """Kafka's Utils.abs: the smallest number counts as 0."""
    value = java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % count


def rules_of(config: BrokerConfig) -> Rules:
    return Rules(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        consumer_max_size=config.group_consumer_max_size,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_assignors=tuple(
            name for name in ("uniform", "range") if name in config.group_consumer_assignors
        ),
    )


def _of_kind(kind: type[Response], answer: Answer) -> Response | asyncio.Future[Response]:
    assert type(answer) is kind or isinstance(answer, asyncio.Future), f"no {kind.__name__}"
    return answer


class GroupCoordinator:
    """Begun after the broker hosts its partitions; only the event loop calls it."""

    def __init__(
        self,
        replicas: Replicas,
        cluster: Cluster,
        clock: Clock,
        spawn: Spawn,
        metrics: BrokerMetrics,
    ) -> None:
        self.topics = Topics()
        self._ground = Ground(rules_of(cluster.config), self.topics)
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._shards: dict[int, GroupShard] = {}
        self._unloaded: deque[int] = deque()  # led, and not read yet
        self._stopped: dict[int, str] = {}  # led, and why it cannot be used
        self._epochs: dict[int, int] = {}  # leader epochs of what is led
        self._creating: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None
        self._loading: int | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False
        self._report(metrics)

    # Life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over what this broker leads, and from now on what it comes to lead."""
        for topic in self._cluster.image.topics.values():
            self.topics.put(topic.name, topic.id, len(topic.partitions))
        self._take_over()
        self._cluster.on_change(self._apply)
        self._sweeper = self._spawn(self._sweep(), "offsets-expiry")

    def close(self) -> None:
        """Nobody is left without an answer."""
        self._closed = True
        for task in (self._loader, self._sweeper, self._creating):
            if task is not None:
                task.cancel()
        for index in list(self._shards):
            self._shards.pop(index).close()

    def _apply(self, delta: Delta) -> None:
        for gone in delta.deleted:
            self.topics.drop(gone.name)
            if gone.name != OFFSETS_TOPIC:
                self._forget_topic(gone.name)
        for new in delta.created:
            self.topics.put(new.name, new.id, len(new.partitions))
        for change in delta.changed:
            self.topics.put(change.new.name, change.new.id, len(change.new.partitions))
        names = [t.name for t in (*delta.created, *delta.deleted)]
        names += [change.new.name for change in delta.changed]
        if OFFSETS_TOPIC in names:
            self._take_over()

    def _take_over(self) -> None:
        """Shards for the partitions that are led now; those of an older epoch, or elsewhere, are closed."""
        topic = self._cluster.image.topics.get(OFFSETS_TOPIC)
        led = {}
        for index, partition in enumerate(() if topic is None else topic.partitions):
            if partition.leader == self._cluster.broker_id:
                led[index] = partition.leader_epoch
        for index, epoch in list(self._epochs.items()):
            if led.get(index) != epoch:
                self._drop(index)
        for index, epoch in led.items():
            if index not in self._epochs:
                self._epochs[index] = epoch
                self._unloaded.append(index)
        self._load_soon()

    def _drop(self, index: int) -> None:
        del self._epochs[index]
        self._stopped.pop(index, None)
        if index in self._unloaded:
            self._unloaded.remove(index)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    # Finding -----------------------------------------------------------------------------------

    async def coordinator_of(self, group_id: str) -> int:
        """The broker that coordinates the group. The first question ever makes the offsets topic."""
        topic = self._cluster.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            topic = await self._create_topic()
        leader = topic.partitions[partition_for(group_id, len(topic.partitions))].leader
        if leader < 0:
            raise BrokerError(
                f"the coordinator of group '{group_id}' is being elected",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        return leader

    async def _create_topic(self) -> TopicImage:
        if self._creating is None or self._creating.done():
            self._creating = self._spawn(self._create(), "create-offsets-topic")
        await asyncio.shield(self._creating)
        topic = self._cluster.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise BrokerError(
                f"'{OFFSETS_TOPIC}' could not be created", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        return topic

    async def _create(self) -> None:
        config = self._cluster.config
        brokers = len(self._cluster.image.usable_brokers())
        spec = TopicSpec(
            OFFSETS_TOPIC,
            partition_count=config.offsets_topic_num_partitions,
            replication_factor=max(min(config.offsets_topic_replication_factor, brokers), 1),
            config={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        (outcome,) = await self._cluster.create_topics([spec])
        if isinstance(outcome, BrokerError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            _log.error("offsets-topic-not-created error=%s", outcome)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that has the group; raises when it is elsewhere, or not ready."""
        topic = self._replicas.topics.get(OFFSETS_TOPIC)
        if not group_id or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
            raise BrokerError(
                f"a group id has 1 to {MAX_GROUP_ID_BYTES} bytes", ErrorCode.INVALID_GROUP_ID
            )
        if topic is None:
            raise BrokerError(
                f"the coordinator of group '{group_id}' is not known yet",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        index = partition_for(group_id, len(topic.partitions))
        shard = self._shards.get(index)
        return self._late_shard(group_id, index) if shard is None else shard

    def _late_shard(self, group_id: str, index: int) -> GroupShard:
        if index not in self._epochs:
            raise BrokerError(
                f"group '{group_id}' is coordinated by another broker", ErrorCode.NOT_COORDINATOR
            )
        if index in self._stopped:
            raise BrokerError(self._stopped[index], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if index in self._unloaded:
            self._unloaded.remove(index)
            self._unloaded.appendleft(index)
            if self._load_if_empty(index):
                return self._shards[index]
        raise BrokerError(
            f"the groups of {OFFSETS_TOPIC}-{index} are being read back",
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )

    # Asking ------------------------------------------------------------------------------------

    # Each is answered at once where it can be, else in time. Refusals are raised, or the future's.

    def step(
        self, group_id: str, event: Callable[[Asked], Event], kind: type[Response]
    ) -> Response | asyncio.Future[Response]:
        return _of_kind(kind, self._writable(group_id).step(group_id, event))

    def heartbeat(
        self, group_id: str, event: Callable[[Asked], Event]
    ) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
        """Needs no write, so it is answered also while the disk takes none."""
        return _of_kind(HeartbeatResponse, self.shard_of(group_id).step(group_id, event))

    def commit(
        self, request: OffsetCommitRequest, version: int
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        shard = self._writable(request.group_id)
        limit = self._cluster.config.offset_metadata_max_bytes
        answer = shard.ask(
            request.group_id,
            lambda asked: shard.core.commit(asked, request, version, shard.now(), limit),
        )
        return _of_kind(OffsetCommitResponse, answer)

    def delete_offsets(
        self, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        shard = self._writable(request.group_id)
        answer = shard.ask(
            request.group_id, lambda asked: shard.core.delete_offsets(asked, request)
        )
        return _of_kind(OffsetDeleteResponse, answer)

    def delete_group(
        self, group_id: str
    ) -> DeletableGroupResult | asyncio.Future[DeletableGroupResult]:
        shard = self._writable(group_id)

        def delete(asked: Asked) -> list[Effect]:
            code, effects = shard.core.delete_group(group_id)
            result = DeletableGroupResult(group_id=group_id, error_code=code)
            return [*effects, Reply(asked, result)]

        return _of_kind(DeletableGroupResult, shard.ask(group_id, delete))

    def read(
        self, group_id: str, work: Callable[[Shard], Response], kind: type[Response]
    ) -> Response | asyncio.Future[Response]:
        shard = self.shard_of(group_id)
        return _of_kind(kind, shard.read(lambda: work(shard.core)))

    def _writable(self, group_id: str) -> GroupShard:
        """Refuse what would have to be written while nothing can be: memory must not run ahead."""
        shard = self.shard_of(group_id)
        unable = self._replicas.unable
        if unable is not None:
            raise BrokerError(str(unable), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard

    def groups(self) -> Iterator[Group]:
        for shard in self._shards.values():
            yield from shard.core.groups.values()

    @property
    def is_loading(self) -> bool:
        return self._loading is not None or bool(self._unloaded)

    def _report(self, metrics: BrokerMetrics) -> None:
        def states() -> list[tuple[tuple[str, ...], float]]:
            counts = Counter((type_of(g), g.state.value) for g in self.groups())
            return [(labels, float(count)) for labels, count in sorted(counts.items())]

        shards = self._shards.values
        metrics.read_groups(
            groups=lambda: sum(len(shard.core.groups) for shard in shards()),
            offsets=lambda: sum(shard.core.offsets.count for shard in shards()),
            waiting=lambda: sum(shard.waiting_count for shard in shards()),
            stopped=lambda: len(self._stopped),
            states=states,
        )

    # Loading -----------------------------------------------------------------------------------

    def _load_soon(self) -> None:
        if self._unloaded and (self._loader is None or self._loader.done()) and not self._closed:
            self._loader = self._spawn(self._load_all(), "load-groups")

    async def _load_all(self) -> None:
        """One after the other: reading them all at once would be no faster."""
        while self._unloaded:
            index = self._unloaded[0]
            if not self._load_if_empty(index) and index in self._unloaded:
                self._unloaded.remove(index)
                self._loading = index
                try:
                    await self._load(index, self._epochs[index])
                finally:
                    self._loading = None
            await asyncio.sleep(0)

    def _load_if_empty(self, index: int) -> bool:
        """There is nothing to wait for where nothing was ever written."""
        partition = self._partition(index)
        try:
            if partition.log.next_offset > partition.log.start_offset:
                return False
        except BrokerError as error:
            self._stop(index, str(error))
            return False
        self._unloaded.remove(index)
        self._start(index, partition, Shard(self._ground))
        return True

    async def _load(self, index: int, epoch: int) -> None:
        partition = self._partition(index)
        started_ms = self._clock.monotonic_ms()
        replay = Replay(self._ground, now_ms=started_ms, wall_ms=self._clock.wall_ms())
        try:
            count = await group_log.read_all(partition, self._replicas, replay)
            replay.finish()
        except (UnknownRecord, BrokerError, StorageFault) as error:
            self._stop(index, f"{partition} cannot be read: {error}")
            return
        if self._epochs.get(index) != epoch or self._closed:
            return  # led elsewhere, or anew, meanwhile
        self._start(index, partition, Shard(self._ground, replay))
        _log.info(
            "groups-loaded partition=%s records=%d groups=%d offsets=%d ms=%d",
            partition,
            count,
            len(replay.groups),
            replay.offsets.count,
            self._clock.monotonic_ms() - started_ms,
        )

    def _start(self, index: int, partition: Partition, core: Shard) -> None:
        def lost(_: BrokerError) -> None:
            self._reload(index)

        shard = GroupShard(core, partition, self._replicas.loop, self._clock, lost)
        self._shards[index] = shard
        shard.begin()

    def _reload(self, index: int) -> None:
        """Its log refused a write: read back what is really there, after a moment."""
        self._shards.pop(index, None)
        self._replicas.loop.call_later(_RELOAD_DELAY_S, self._queue_again, index)

    def _queue_again(self, index: int) -> None:
        if index in self._epochs and index not in self._unloaded and index not in self._shards:
            self._unloaded.append(index)
            self._load_soon()

    def _stop(self, index: int, reason: str) -> None:
        """Only an operator can help: an upgrade, or a log that was repaired."""
        if index in self._unloaded:
            self._unloaded.remove(index)
        if index not in self._epochs:
            return  # the partition itself is gone
        self._stopped[index] = reason
        _log.critical("group-shard-stopped partition=%s-%d reason=%s", OFFSETS_TOPIC, index, reason)

    def _partition(self, index: int) -> Partition:
        return self._replicas.partition(self._replicas.topic(OFFSETS_TOPIC), index)

    # What time and operators end ---------------------------------------------------------------

    def _forget_topic(self, name: str) -> None:
        if self._replicas.unable is None:
            for shard in list(self._shards.values()):
                shard.do("", lambda _, shard=shard: shard.core.forget_topic(name))  # type: ignore[misc] # bound at once

    async def _sweep(self) -> None:
        """Look for offsets that are past their time, a few groups at a time."""
        while True:
            await asyncio.sleep(self._cluster.config.offsets_retention_check_interval_ms / 1000)
            if self._replicas.unable is not None:
                continue
            for shard in list(self._shards.values()):
                await self._sweep_shard(shard)

    async def _sweep_shard(self, shard: GroupShard) -> None:
        retention_ms = self._cluster.config.offsets_retention_minutes * 60_000
        for count, group_id in enumerate(list(shard.core.groups)):
            if count % _SWEEP_SLICE == 0:
                await asyncio.sleep(0)
            if shard not in self._shards.values():
                return
            shard.do(group_id, lambda now, id=group_id: shard.core.expire(id, now, retention_ms))  # type: ignore[misc] # bound at once
