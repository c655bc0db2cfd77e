"""Keeps the in-sync replicas of what this broker leads true: who lags leaves, who has caught up returns.

A change is asked of the controller and counts once it is committed. Many go in one request, and one
request is under way at a time.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.partition import Partition
from penstock.metadata.image import PartitionImage
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode
from penstock.replication.leader import Leadership
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)

_log = logging.getLogger(__name__)

_BATCH_S: Final = 0.02  # what is asked for within this time goes together
_RETRY_S: Final = 0.2
_MAX_PARTITIONS: Final = 1000  # in one request, for which no loop may stand still for long
_SLOWEST_LOOK_S: Final = 1.0
_SLOW_MS: Final = 1000  # a follower that holds producers up for so long is told of
_TELL_EVERY_MS: Final = 10_000
_HOPELESS: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST, ErrorCode.OPERATION_NOT_ATTEMPTED}
)


class IsrKeeper:
    """Answers what partitions ask of a Replication. Only the event loop calls it."""

    def __init__(
        self,
        cluster: Cluster,
        followers: Followers,
        clock: Clock,
        metrics: BrokerMetrics,
    ) -> None:
        self._metrics = metrics.replication
        metrics.read_replica_lag(self.lags)
        self._cluster = cluster
        self._followers = followers
        self._clock = clock
        self._behind: dict[Partition, int] = {}  # since when not everyone in sync had everything
        self._wanted: dict[Partition, None] = {}  # whose proposals are to be sent
        self._put_off: dict[Partition, None] = {}  # where somebody may have to be taken in yet
        self._proposed = asyncio.Event()
        self._told_ms: dict[int, int] = {}  # of each slow follower
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, spawn: Spawn) -> None:
        self._tasks = [spawn(self._send_all(), "isr-changes"), spawn(self._look_all(), "isr-lag")]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # What partitions ask -----------------------------------------------------------------------

    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool:
        lag_ms = self._cluster.config.replica_lag_time_max_ms
        in_time = self._clock.monotonic_ms() - caught_up_ms <= lag_ms
        return in_time and self._is_eligible(broker_id)

    def fell_behind(self, partition: Partition) -> None:
        self._behind[partition] = self._clock.monotonic_ms()

    def isr_changes(self, partition: Partition, members: tuple[int, ...]) -> None:
        leadership = partition.leadership
        assert leadership is not None
        added = [member for member in members if member not in leadership.isr.members]
        if not all(map(self._is_eligible, added)):
            self._put_off[partition] = None
            return
        leadership.propose(members)
        self._wanted[partition] = None
        self._proposed.set()

    def made_durable(self, partition: Partition) -> None:
        self._followers.made_durable(partition)

    def _is_eligible(self, broker_id: int) -> bool:
        """B2: only who takes part, and is not about to stop, may be in sync."""
        image = self._cluster.image
        broker = image.brokers.get(broker_id)
        registered = image.registrations.get(broker_id)
        leaving = registered is not None and registered.in_controlled_shutdown
        return broker is not None and not broker.fenced and not leaving

    def lags(self) -> list[tuple[tuple[str, ...], float]]:
        """How many records each follower lacks of the partition where it lacks most."""
        lags: dict[int, int] = {}
        for partition in self._behind:
            if partition.leadership is None or partition.failure is not None:
                continue
            end = partition.log.next_offset
            for broker_id, follower in partition.leadership.followers():
                lags[broker_id] = max(lags.get(broker_id, 0), end - follower.next_offset)
        return [((str(broker_id),), float(lag)) for broker_id, lag in sorted(lags.items())]

    # Who lags ----------------------------------------------------------------------------------

    async def _look_all(self) -> None:
        while True:
            lag_ms = self._cluster.config.replica_lag_time_max_ms
            await asyncio.sleep(min(lag_ms / 4000, _SLOWEST_LOOK_S))
            self._look(self._clock.monotonic_ms(), lag_ms)
            self._look_again_at_put_off()

    def _look_again_at_put_off(self) -> None:
        """Who has everything asks for nothing new: that it may be in sync by now, nobody else would notice."""
        put_off, self._put_off = self._put_off, {}
        for partition in put_off:
            leadership = partition.leadership
            if leadership is None or partition.failure is not None:
                continue
            if leadership.proposed is not None:
                self._put_off[partition] = None  # until that is decided
            elif self._knows_of_more(leadership):
                partition.take_in_followers(leadership)

    def _knows_of_more(self, leadership: Leadership) -> bool:
        """Whether one that is out of sync has fetched in the session that it has now: in a later one it will anew."""
        brokers = self._cluster.image.brokers
        return any(
            broker_id not in leadership.isr.members
            and (known := brokers.get(broker_id)) is not None
            and known.epoch == follower.broker_epoch
            and not known.in_controlled_shutdown
            for broker_id, follower in leadership.followers()
        )

    def _look(self, now_ms: int, lag_ms: int) -> None:
        slow: dict[int, int] = {}
        for partition, since_ms in list(self._behind.items()):
            if not self._is_still_behind(partition):
                del self._behind[partition]
                partition.is_behind = False
                continue
            leadership, end = partition.leadership, partition.log.next_offset
            assert leadership is not None
            for broker_id in leadership.late(
                end, now_ms=now_ms, lag_ms=_SLOW_MS, since_ms=since_ms
            ):
                slow[broker_id] = slow.get(broker_id, 0) + 1
            kept = leadership.shrunk(end, now_ms=now_ms, lag_ms=lag_ms, since_ms=since_ms)
            if kept is not None:
                self.isr_changes(partition, kept)
            partition.replica_time_passed()
        for broker_id, count in slow.items():
            self._tell_of(broker_id, count, now_ms)

    def _is_still_behind(self, partition: Partition) -> bool:
        if partition.leadership is None or partition.failure is not None:
            return False
        return partition.high_watermark < partition.log.next_offset

    def _tell_of(self, broker_id: int, count: int, now_ms: int) -> None:
        if now_ms - self._told_ms.get(broker_id, -_TELL_EVERY_MS) >= _TELL_EVERY_MS:
            self._told_ms[broker_id] = now_ms
            _log.warning(
                "replica-lagging broker=%d partitions=%d effect=%s",
                broker_id,
                count,
                "acks=all-waits",
            )

    # Asking the controller ---------------------------------------------------------------------

    async def _send_all(self) -> None:
        while True:
            await self._proposed.wait()
            await asyncio.sleep(_BATCH_S)
            self._proposed.clear()
            taken = list(islice(self._wanted, _MAX_PARTITIONS))
            for partition in taken:
                del self._wanted[partition]
                self._put_off[partition] = None  # there may be others to be taken in after this
            batch = [partition for partition in taken if _proposal(partition) is not None]
            if self._wanted:
                self._proposed.set()
            if batch and not await self._send(batch):
                self._wanted |= dict.fromkeys(batch)
                self._proposed.set()
                await asyncio.sleep(_RETRY_S)

    async def _send(self, batch: list[Partition]) -> bool:
        """Whether the controller has answered. Until it has, the proposals stand (R6)."""
        asked: dict[tuple[bytes, int], tuple[Partition, int, tuple[int, ...]]] = {
            (p.topic.id, p.index): (p, p.leader_epoch, tuple(p.isr)) for p in batch
        }
        try:
            response = await self._cluster.alter_partition(self._request(batch))
        except BrokerError as error:
            _log.info("isr-change-put-off partitions=%d error=%s", len(batch), error)
            return False
        if response.error_code:
            _log.info("isr-change-put-off code=%d", response.error_code)
            return False
        for topic in response.topics:
            for answer in topic.partitions:
                partition, epoch, before = asked[topic.topic_id, answer.partition_index]
                if partition.leader_epoch == epoch and partition.leadership is not None:
                    self._take(partition, before, answer)
        return True

    def _request(self, batch: Iterable[Partition]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for partition in batch:
            leadership, members = partition.leadership, _proposal(partition)
            assert leadership is not None
            assert members is not None
            topic_id = partition.topic.id
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=leadership.epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=it, broker_epoch=self._epoch_of(partition, it))
                        for it in members
                    ],
                    partition_epoch=leadership.isr.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._cluster.broker_id,
            broker_epoch=self._cluster.epoch,
            topics=list(topics.values()),
        )

    def _epoch_of(self, partition: Partition, broker_id: int) -> int:
        """The session in which a follower fetched what makes it in sync: in another it may have lost it (KIP-903)."""
        if broker_id == self._cluster.broker_id:
            return self._cluster.epoch
        leadership = partition.leadership
        session = leadership.session_of(broker_id) if leadership is not None else None
        if session is not None:
            return session
        known = self._cluster.image.brokers.get(broker_id)
        return -1 if known is None else known.epoch

    def _take(
        self, partition: Partition, before: tuple[int, ...], answer: PartitionDataResponse
    ) -> None:
        if answer.error_code in _HOPELESS:
            _log.info("isr-change-refused partition=%s code=%d", partition, answer.error_code)
            partition.isr_refused()
        elif not answer.error_code:
            self._count(partition, before, answer)
            partition.isr_committed(
                PartitionImage(
                    answer.leader_id,
                    answer.leader_epoch,
                    answer.partition_epoch,
                    (),
                    tuple(answer.isr),
                )
            )
        # else metadata that is newer than ours is on its way: the proposal stands until it is here

    def _count(
        self, partition: Partition, before: tuple[int, ...], answer: PartitionDataResponse
    ) -> None:
        """`before`: when it was asked for. By now the change may have come with the metadata too."""
        if len(answer.isr) < len(before):
            self._metrics.isr_shrinks.value += 1
        elif len(answer.isr) > len(before):
            self._metrics.isr_expands.value += 1
        _log.info("isr partition=%s was=%s is=%s", partition, _text(before), _text(answer.isr))


def _proposal(partition: Partition) -> tuple[int, ...] | None:
    return None if partition.leadership is None else partition.leadership.proposed


def _text(members: Iterable[int]) -> str:
    return ",".join(map(str, members))
