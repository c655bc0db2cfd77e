"""The groups that this broker coordinates: one shard for each partition of __consumer_offsets that it leads."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.coordinators.group_shard import Answer, GroupShard
from penstock.broker.coordinators.shard import PendingReply
from penstock.broker.coordinators.shards import Lost, Shards, partition_for
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.groups.events import Effect, Event, Reply
from penstock.groups.listing import type_of
from penstock.groups.machine import Group
from penstock.groups.replay import Replay
from penstock.groups.shard import Now, Shard
from penstock.groups.state import GroupContext, Rules
from penstock.groups.topics import Topics
from penstock.metadata.image import Delta
from penstock.metadata.rules.config_changes import MAX_GROUP_ID_BYTES
from penstock.model.clock import Clock
from penstock.model.configs import BrokerConfig
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.group_configs import GROUP_SETTINGS, ConsumerTimes, consumer_times
from penstock.model.ids import TopicPartition
from penstock.storage.log import Origin
from penstock.wire.messages.delete_groups import DeletableGroupResult
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from penstock.wire.schema import Struct

_log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
Response = TypeVar("Response", bound=Struct)

_GROUP_COUNTS: Final = 4  # as many offsets as a group itself costs
_SWEEP_SLICE: Final = 500  # offsets that are looked at between two chances for others


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


def _check_id(group_id: str) -> None:
    if not group_id or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
        raise BrokerError(
            f"a group id has 1 to {MAX_GROUP_ID_BYTES} bytes", ErrorCode.INVALID_GROUP_ID
        )


class GroupCoordinator:
    """Begun after the broker hosts its partitions; only the event loop calls it."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cluster: Cluster,
        clock: Clock,
        spawn: Spawn,
        metrics: BrokerMetrics,
    ) -> None:
        self.topics = Topics()
        self._own_times: dict[str, ConsumerTimes] = {}
        self._context = GroupContext(rules_of(cluster.config), self.topics, self._own_times)
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._shards: Shards[Replay, GroupShard] = Shards(
            OFFSETS_TOPIC,
            replicas,
            cluster,
            clock,
            spawn,
            new_replay=self._new_replay,
            open_shard=self._open_shard,
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._report(metrics)

    # Life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over what this broker leads, and from now on what it comes to lead."""
        for topic in self._cluster.image.topics.values():
            self.topics.put(topic.name, topic.id, len(topic.partitions))
        for group_id in self._cluster.image.group_configs:
            self._take_group_settings(group_id)
        self._shards.begin()
        self._cluster.on_change(self._apply)
        self._sweeper = self._spawn(self._sweep(), "offsets-expiry")

    def close(self) -> None:
        """Nobody is left without an answer."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._shards.close()

    def _new_replay(self) -> Replay:
        return Replay(
            self._context,
            now_ms=self._clock.monotonic_ms(),
            wall_ms=self._replicas.expiry_clock.now_ms(),
        )

    def _open_shard(self, replay: Replay, partition: Partition, lost: Lost) -> GroupShard:
        core = Shard(self._context, replay)
        return GroupShard(core, partition, self._replicas.loop, self._clock, lost)

    def _apply(self, delta: Delta) -> None:
        for gone in delta.deleted:
            self.topics.drop(gone.name)
            if gone.name != OFFSETS_TOPIC:
                self._forget_topic(gone.name)
        for new in delta.created:
            self.topics.put(new.name, new.id, len(new.partitions))
        for change in delta.changed:
            self.topics.put(change.new.name, change.new.id, len(change.new.partitions))
        for group_id in delta.group_configs:
            self._take_group_settings(group_id)
            self._warn_of_settings(group_id)

    def _take_group_settings(self, group_id: str) -> None:
        """They rule from each member's next heartbeat on."""
        overrides = self._cluster.image.group_configs.get(group_id)
        if overrides is None:
            self._own_times.pop(group_id, None)
        else:
            self._own_times[group_id] = consumer_times(overrides, self._cluster.config)

    def _warn_of_settings(self, group_id: str) -> None:
        """Once for the cluster: every broker takes these settings in."""
        if not self._cluster.is_controller:
            return
        for name in self._cluster.image.group_configs.get(group_id, ()):
            setting = GROUP_SETTINGS.get(name)  # a newer broker may know more of them
            if setting is not None and setting.no_effect:
                _log.warning(
                    "setting-without-effect group=%s name=%s reason=%s",
                    group_id, name, setting.no_effect,
                )  # fmt: skip

    # Finding -----------------------------------------------------------------------------------

    async def coordinator_of(self, group_id: str) -> int:
        """The broker that coordinates the group. The first question ever makes the offsets topic."""
        return await self._shards.coordinator_of(group_id)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that has the group; raises when it is elsewhere, or not ready."""
        _check_id(group_id)
        return self._shards.shard_of(group_id)

    # Asking ------------------------------------------------------------------------------------

    # Each is answered at once where it can be, else in time. Refusals are raised, or the future's.

    def step(
        self, group_id: str, event: Callable[[PendingReply], Event], kind: type[Response]
    ) -> Response | asyncio.Future[Response]:
        return _of_kind(kind, self._writable(group_id).step(group_id, event))

    def heartbeat(
        self, group_id: str, event: Callable[[PendingReply], Event]
    ) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
        """Needs no write, so it is answered also while the log takes none.

        While the group is being read back nobody can say that a member is wrong, and clients take
        any error for the truth: like Kafka, tell it to go on.
        """
        try:
            shard = self.shard_of(group_id)
        except BrokerError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse()
            raise
        return _of_kind(HeartbeatResponse, shard.step(group_id, event))

    def commit(
        self, request: OffsetCommitRequest, version: int
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        shard = self._writable(request.group_id)
        limit = self._cluster.config.offset_metadata_max_bytes
        answer = shard.ask(
            request.group_id,
            lambda reply_to: shard.core.commit(reply_to, request, version, shard.now(), limit),
        )
        return _of_kind(OffsetCommitResponse, answer)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse | asyncio.Future[TxnOffsetCommitResponse]:
        limit = self._cluster.config.offset_metadata_max_bytes
        answer = self._writable(request.group_id).commit_in_transaction(request, limit)
        return _of_kind(TxnOffsetCommitResponse, answer)

    def end_transaction(
        self, index: int, producer_id: int, marker: bytearray, *, committed: bool
    ) -> None:
        """Write a marker into a partition of the offsets topic. Raises when it cannot be written now."""
        shard = self._shards.at(index)
        if shard is not None:
            shard.end_transaction(producer_id, marker, committed=committed)
            return
        partition = self._replicas.partition(self._replicas.topic(OFFSETS_TOPIC), index)
        now_ms = self._clock.wall_ms()  # nobody has read that log, so nobody has to know
        partition.append(memoryview(marker), now_ms=now_ms, origin=Origin.COORDINATOR)

    async def partition_of(self, group_id: str) -> TopicPartition:
        """Where the group's offsets are kept. The first question ever makes the offsets topic."""
        _check_id(group_id)
        topic = await self._shards.topic()
        return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, len(topic.partitions)))

    def delete_offsets(
        self, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        shard = self._writable(request.group_id)
        answer = shard.ask(
            request.group_id, lambda reply_to: shard.core.delete_offsets(reply_to, request)
        )
        return _of_kind(OffsetDeleteResponse, answer)

    def delete_group(
        self, group_id: str
    ) -> DeletableGroupResult | asyncio.Future[DeletableGroupResult]:
        shard = self._writable(group_id)

        def delete(reply_to: PendingReply) -> list[Effect]:
            code, effects = shard.core.delete_group(group_id)
            result = DeletableGroupResult(group_id=group_id, error_code=code)
            return [*effects, Reply(reply_to, result)]

        return _of_kind(DeletableGroupResult, shard.ask(group_id, delete))

    def read(
        self, group_id: str, work: Callable[[Shard], Response], kind: type[Response]
    ) -> Response | asyncio.Future[Response]:
        shard = self.shard_of(group_id)
        return _of_kind(kind, shard.read(lambda: work(shard.core)))

    def read_offsets(
        self, group_id: str, work: Callable[[Shard], Response], kind: type[Response]
    ) -> Response | asyncio.Future[Response]:
        """For `work` that reads committed offsets: it does not wait for commits in flight."""
        shard = self.shard_of(group_id)
        return _of_kind(kind, shard.read_committed(lambda: work(shard.core)))

    def _writable(self, group_id: str) -> GroupShard:
        _check_id(group_id)
        return self._shards.writable_shard_of(group_id)

    def groups(self) -> Iterator[Group]:
        for shard in self._shards:
            yield from shard.core.groups.values()

    @property
    def is_loading(self) -> bool:
        return self._shards.is_loading

    def _report(self, metrics: BrokerMetrics) -> None:
        def states() -> list[tuple[tuple[str, ...], float]]:
            counts = Counter((type_of(g), g.state.value) for g in self.groups())
            return [(labels, float(count)) for labels, count in sorted(counts.items())]

        shards = self._shards
        metrics.read_groups(
            groups=lambda: sum(len(shard.core.groups) for shard in shards),
            offsets=lambda: sum(shard.core.offsets.count for shard in shards),
            waiting=lambda: sum(shard.waiting_count for shard in shards),
            stopped=lambda: shards.stopped_count,
            states=states,
        )

    # What time and operators end ---------------------------------------------------------------

    def _forget_topic(self, name: str) -> None:
        for shard in self._shards:
            if not shard.is_writable:
                continue
            try:
                shard.do("", lambda _, shard=shard: shard.core.forget_topic(name))  # type: ignore[misc] # bound at once
            except Exception:  # noqa: BLE001 - the shard is lost, but not those of others
                _log.exception("topic-not-forgotten topic=%s shard=%s", name, shard.partition)

    async def _sweep(self) -> None:
        """Look for offsets that are past their time, a few at a time."""
        while True:
            await asyncio.sleep(self._cluster.config.offsets_retention_check_interval_ms / 1000)
            for shard in self._shards:
                try:
                    await self._sweep_shard(shard)
                except Exception:  # noqa: BLE001 - likewise
                    _log.exception("sweep-failed shard=%s", shard.partition)

    async def _sweep_shard(self, shard: GroupShard) -> None:
        seen = _SWEEP_SLICE
        for group_id in list(shard.core.groups):
            for positions in _slices(shard.core.offsets.of_group(group_id)):
                seen += len(positions) + _GROUP_COUNTS
                if seen >= _SWEEP_SLICE:
                    seen = 0
                    await asyncio.sleep(0)
                if shard not in self._shards or not shard.is_writable:
                    return
                shard.do(group_id, partial(self._expire, shard, group_id, positions))

    def _expire(
        self, shard: GroupShard, group_id: str, positions: list[tuple[str, int]], now: Now
    ) -> list[Effect]:
        retention_ms = self._cluster.config.offsets_retention_minutes * 60_000
        expiry_now = Now(now.ms, self._replicas.expiry_clock.now_ms())
        is_due = shard.may_expire(retention_ms)
        return shard.core.expire(group_id, expiry_now, retention_ms, positions, is_due=is_due)


def _slices(offsets: Mapping[str, Mapping[int, bytes]]) -> Iterator[list[tuple[str, int]]]:
    """The positions of a group, topic and partition; one empty slice if there are none.

    Topics and partitions may come and go between two slices.
    """
    positions: list[tuple[str, int]] = []
    is_empty = True
    for topic in list(offsets):
        for index in list(offsets.get(topic, ())):
            positions.append((topic, index))
            if len(positions) == _SWEEP_SLICE:
                yield positions
                positions, is_empty = [], False
    if positions or is_empty:
        yield positions
