"""Hand leadership to other brokers while this broker's disk is full: they may have room (L4).

A partition is handed off only if enough other replicas are in sync. This broker then follows
without fetching, and rejoins the ISR when it has room. If the others are full as well,
leadership may come back, but not at once.
"""

import asyncio
import logging
from typing import Final

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.controller.lost_logs import KEPT, Place, accepted_places, request_for
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_AGAIN_MS: Final = 30_000  # the same partition


class FullDiskHandoff:
    def __init__(self, replicas: ReplicaManager, cluster: Cluster, clock: Clock) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._yielded_ms: dict[Partition, int] = {}

    def start(self, spawn: Spawn) -> None:
        spawn(self._run(), "yield")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._replicas.is_full:
                self._yielded_ms.clear()
            elif self._cluster.epoch:
                await self._give_way()

    async def _give_way(self) -> None:
        now_ms = self._clock.monotonic_ms()
        chosen = [it for it in self._replicas.partitions() if self._may_yield(it, now_ms)]
        if not chosen:
            return
        places: dict[Place, Partition] = {(it.topic.id, it.index): it for it in chosen}
        request = request_for(self._cluster.broker_id, self._cluster.epoch, {KEPT: places})
        try:
            answered = await self._cluster.report_lost_logs(request)
        except BrokerError as error:
            _log.info("lead-not-yielded partitions=%d error=%s", len(places), error)
            return
        yielded = [places[it] for it in accepted_places(answered) & places.keys()]
        if yielded:  # the controller rejects the others for now, for example with too few in sync
            self._yielded_ms |= dict.fromkeys(yielded, now_ms)
            _log.warning("lead-yielded partitions=%d reason=%s", len(yielded), "disk-full")

    def _may_yield(self, partition: Partition, now_ms: int) -> bool:
        if partition.leadership is None or partition.failure is not None:
            return False
        if now_ms - self._yielded_ms.get(partition, -_AGAIN_MS) < _AGAIN_MS:
            return False
        brokers, me = self._cluster.image.brokers, self._cluster.broker_id
        others = [it for it in partition.isr if it != me and it in brokers and brokers[it].may_lead]
        return partition.is_leader and len(others) >= max(partition.min_isr, 1)
