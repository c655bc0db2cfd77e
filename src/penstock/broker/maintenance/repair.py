"""Rebuilds replicas whose logs are damaged: first out of sync by the controller's word, then from the leader, from nothing.

A damaged log is never cut and never leads: what is missing in it may have been acknowledged (L3). It is set
aside, not removed. Where no other replica has what is committed, it stays as it is, for an operator to see.
So is one that ends before what was committed, when no loss of power explains that (E3). One whose leader lacks
what was committed is kept as it is (F3): to build it anew would lose that for good.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.controller.lost_logs import KEPT, LOST, Place, accepted_places, request_for
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.metadata.image import PartitionImage
from penstock.model.errors import BrokerError, StorageFault
from penstock.storage.segment import DamagedLog

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


@dataclass(slots=True)
class _Failed:
    epoch: int  # in which it failed: its leader may still count on what it had
    reported: int = -1  # the epoch that the controller has ended for it
    obstacle: str = ""  # what last kept it from being built anew


class Repair:
    def __init__(self, replicas: ReplicaManager, cluster: Cluster, followers: Followers) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._followers = followers
        self._failed: dict[Partition, _Failed] = {}

    def start(self, spawn: Spawn) -> None:
        spawn(self._run(), "repair")

    def failed(self, partition: Partition) -> None:
        """Its log is damaged, and it has said so."""
        self._failed[partition] = _Failed(partition.leader_epoch)
        self._followers.unfollow(partition)

    def fell_short(self, partition: Partition, committed: int) -> None:
        """Its log lacks what was committed. Only other replicas can have that; of a single one the rest is served."""
        if self.has_copies(partition):
            end = partition.log.next_offset
            partition.storage_failed(
                DamagedLog(f"its log ends at offset {end}; up to {committed} was committed")
            )

    def has_copies(self, partition: Partition) -> bool:
        state = self._state(partition)
        return state is not None and len(state.replicas) > 1

    @property
    def waiting_count(self) -> int:
        return len(self._failed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._failed and self._cluster.epoch and not self._replicas.is_offline:
                await self._mend()

    async def _mend(self) -> None:
        reported = {}
        for partition, failed in list(self._failed.items()):
            state = self._state(partition)
            if state is None or partition.failure is None:
                # deleted, moved to other brokers, or under another leader
                del self._failed[partition]
            elif self._is_counted_on(partition, state, failed):
                if len(state.replicas) > 1 and state.leader_epoch > failed.reported:
                    reported[partition] = state.leader_epoch
            elif state.leader not in (self._cluster.broker_id, -1) and not partition.is_stopped:
                self._rebuild(partition, failed)
        if reported:
            await self._report(reported)

    def _is_counted_on(self, partition: Partition, state: PartitionImage, failed: _Failed) -> bool:
        """In sync, eligible, or about to be: its leader may have asked for that, by what a log had that is thrown away."""
        if self._cluster.broker_id in (*state.isr, *state.elr):
            return True
        return (
            not partition.is_stopped and state.leader != -1 and state.leader_epoch <= failed.epoch
        )

    def _state(self, partition: Partition) -> PartitionImage | None:
        topic = self._cluster.image.topics_by_id.get(partition.topic.id)
        if topic is None or topic.partitions[partition.index : partition.index + 1] == ():
            return None
        state = topic.partitions[partition.index]
        hosted = partition.topic.partitions[partition.index] is partition
        return state if hosted and self._cluster.broker_id in state.replicas else None

    async def _report(self, epochs: Mapping[Partition, int]) -> None:
        """Once in an epoch: that the controller has ended it comes with the metadata."""
        places: dict[Place, Partition] = {(it.topic.id, it.index): it for it in epochs}
        kept = [it for it, partition in places.items() if partition.is_stopped]
        told = {LOST: places.keys() - kept, KEPT: kept}
        request = request_for(self._cluster.broker_id, self._cluster.epoch, told)
        try:
            answered = await self._cluster.report_lost_logs(request)
        except BrokerError as error:
            _log.info("damage-not-reported partitions=%d error=%s", len(places), error)
            return
        for place in accepted_places(answered) & places.keys():
            partition = places[place]
            failed = self._failed.get(partition)
            if failed is not None:
                failed.reported = epochs[partition]

    def _rebuild(self, partition: Partition, failed: _Failed) -> None:
        try:
            self._replicas.start_over(partition)
        except StorageFault as fault:
            self._replicas.disk_failed(fault)
            return
        except BrokerError as error:  # no room to rename it: tried again, told of once
            if failed.obstacle != str(error):
                failed.obstacle = str(error)
                _log.error("replica-not-rebuilt partition=%s error=%s", partition, error)
            return
        del self._failed[partition]
        self._replicas.metrics.replication.rebuilt.value += 1
        _log.warning("replica-rebuilt-from-leader partition=%s", partition)
        self._followers.follow(partition)
